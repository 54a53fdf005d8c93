// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>

#include <Kokkos_Macros.hpp>

namespace lrmoe::detail {

struct random_block {
  std::uint32_t word[4];
};

/// Philox4x32-10: four random words as a pure function of a 64-bit key and a 128-bit counter, hence
/// the same on every backend, for any number of threads and in any order.
/// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
KOKKOS_INLINE_FUNCTION random_block philox(std::uint64_t key, std::uint64_t counter_high,
                                           std::uint64_t counter_low) {
  constexpr std::uint64_t multiplier_0 = 0xD2511F53U;
  constexpr std::uint64_t multiplier_1 = 0xCD9E8D57U;
  constexpr std::uint32_t weyl_0 = 0x9E3779B9U;
  constexpr std::uint32_t weyl_1 = 0xBB67AE85U;

  auto key_0 = static_cast<std::uint32_t>(key);
  auto key_1 = static_cast<std::uint32_t>(key >> 32);
  random_block c{
      {static_cast<std::uint32_t>(counter_low), static_cast<std::uint32_t>(counter_low >> 32),
       static_cast<std::uint32_t>(counter_high), static_cast<std::uint32_t>(counter_high >> 32)}};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product_0 = multiplier_0 * c.word[0];
    const std::uint64_t product_1 = multiplier_1 * c.word[2];
    c = {{static_cast<std::uint32_t>(product_1 >> 32) ^ c.word[1] ^ key_0,
          static_cast<std::uint32_t>(product_1),
          static_cast<std::uint32_t>(product_0 >> 32) ^ c.word[3] ^ key_1,
          static_cast<std::uint32_t>(product_0)}};
    key_0 += weyl_0;
    key_1 += weyl_1;
  }
  return c;
}

}  // namespace lrmoe::detail
