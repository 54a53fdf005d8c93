// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstddef>
#include <cstdint>

namespace train {

/// 64-bit FNV-1a: tells accidental damage, not malice.
inline std::uint64_t checksum(const void* data, std::size_t size_bytes,
                              std::uint64_t seed = 0xcbf29ce484222325u) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < size_bytes; ++i) seed = (seed ^ bytes[i]) * 0x100000001b3u;
  return seed;
}

}  // namespace train
