// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/scoring/scorer.hpp>

namespace lrmoe {

/// Size of a pair = ||dO_t||: the K pairs of a token are equally likely.
struct gradient_norm_score {
  KOKKOS_FUNCTION float size(const pair_features& pair) const { return pair.gradient_norm; }
};

}  // namespace lrmoe
