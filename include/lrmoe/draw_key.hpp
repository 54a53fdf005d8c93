// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/detail/counter_random.hpp>

namespace lrmoe {

/// Names one draw: training step, layer, source rank and, where a call draws more than once, phase. With
/// the seed of the policy that draws and an expert or row index it selects a random block.
struct draw_key {
  std::uint64_t step = 0;    ///< below 2^56
  std::uint32_t layer = 0;   ///< below 2^16
  std::uint32_t source = 0;  ///< below 2^16
  std::uint32_t phase = 0;   ///< below 2^8

  /// Four random words for one index (below 2^32) of this draw.
  KOKKOS_FUNCTION detail::random_block words(std::uint64_t seed, std::uint32_t index) const {
    return detail::philox(seed, step ^ (static_cast<std::uint64_t>(phase) << 56),
                          (static_cast<std::uint64_t>(layer ^ (source << 16)) << 32) | index);
  }
};

}  // namespace lrmoe
