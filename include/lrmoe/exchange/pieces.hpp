// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>

namespace lrmoe::mpi {

/// Part of a message.
struct piece {
  std::int64_t offset = 0;  ///< bytes from the message's start
  int size = 0;             ///< bytes
};

/// MPI counts in 32 bits: a message of any size goes in pieces of at most 1 GiB.
inline constexpr std::int64_t largest_piece_bytes = std::int64_t{1} << 30;

/// Pieces of a message, 0 for none.
constexpr std::int64_t num_pieces(std::int64_t bytes) {
  return bytes / largest_piece_bytes + (bytes % largest_piece_bytes != 0 ? 1 : 0);
}

/// Piece i in [0, num_pieces(bytes)); they are contiguous, and all but the last are of the largest size.
constexpr piece piece_of(std::int64_t bytes, std::int64_t i) {
  const std::int64_t offset = i * largest_piece_bytes;
  return {offset, static_cast<int>(std::min(bytes - offset, largest_piece_bytes))};
}

}  // namespace lrmoe::mpi
