// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/scoring/scorer.hpp>

namespace lrmoe {

/// Size of a pair = a uniform number in (0, 1], fresh in every step: the control for every informed
/// scorer.
struct random_score {
  std::uint64_t seed = 0;

  KOKKOS_FUNCTION float size(const pair_features& pair) const {
    constexpr std::uint64_t stream = 0x73636f7265ULL;  // apart from an estimator of the same seed
    const std::uint32_t word =
        pair.key.words(seed ^ stream, static_cast<std::uint32_t>(pair.pair)).word[0];
    return (static_cast<float>(word >> 8) + 1.0F) * 0x1p-24F;
  }
};

}  // namespace lrmoe
