// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/detail/counter_random.hpp>
#include <lrmoe/types.hpp>

namespace lrmoe::detail {

/// A pseudo-random permutation of [0, count), computed element by element: no table, no sort.
///
/// A number of b bits, 2^b >= count, is split into two parts of about b/2 bits; each round adds
/// (xor) a keyed hash of one part to the other, which can be undone, so the rounds permute [0, 2^b).
/// Results beyond count are permuted again until they fall inside: fewer than two times on average,
/// more for the smallest counts, as few bits mix slowly and b is at least 6.
/// Source    Luby and Rackoff 1988 (the rounds); Black and Rogaway 2002 (the cycle walk)
class permutation {
 public:
  /// Takes the last three words of the block as key.
  KOKKOS_FUNCTION permutation(index_type count, const random_block& random)
      : count_(static_cast<std::uint32_t>(count)) {
    int bits = least_bits;
    while ((std::uint32_t{1} << bits) < count_) ++bits;
    low_bits_ = bits / 2;
    low_mask_ = (std::uint32_t{1} << low_bits_) - 1;
    high_mask_ = (std::uint32_t{1} << (bits - low_bits_)) - 1;
    for (int i = 0; i < 3; ++i) keys_[i] = random.word[i + 1];
  }

  KOKKOS_FUNCTION index_type operator()(index_type index) const {
    auto value = static_cast<std::uint32_t>(index);
    do {
      value = permuted(value);
    } while (value >= count_);
    return static_cast<index_type>(value);
  }

 private:
  static constexpr int least_bits = 6;
  static constexpr std::uint32_t rounds = 8;

  KOKKOS_FUNCTION std::uint32_t permuted(std::uint32_t value) const {
    std::uint32_t low = value & low_mask_;
    std::uint32_t high = value >> low_bits_;
    for (std::uint32_t round = 0; round < rounds; round += 2) {
      high ^= hash(low, round) & high_mask_;
      low ^= hash(high, round + 1) & low_mask_;
    }
    return (high << low_bits_) | low;
  }
  /// Finalizer of MurmurHash3 over the part and the round's key.
  KOKKOS_FUNCTION std::uint32_t hash(std::uint32_t part, std::uint32_t round) const {
    std::uint32_t h = part + keys_[round % 3] + round * 0x9E3779B9U;
    h = (h ^ (h >> 16)) * 0x85EBCA6BU;
    h = (h ^ (h >> 13)) * 0xC2B2AE35U;
    return h ^ (h >> 16);
  }

  std::uint32_t count_;
  int low_bits_;
  std::uint32_t low_mask_, high_mask_;
  std::uint32_t keys_[3];
};

}  // namespace lrmoe::detail
