// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/scoring/scorer.hpp>

namespace lrmoe {

/// The LRM score: squared Frobenius norm of the pair's contribution to dW_down, the outer product of
/// h_p and w_p dO_t.
///   score_p = w_p^2 ||dO_t||^2 ||h_p||^2,   size = |w_p| ||dO_t|| ||h_p||
/// Sampling proportionally to this size minimises the expected squared error of dW_down
/// (Cauchy-Schwarz).
struct lrm_score {
  KOKKOS_FUNCTION float size(const pair_features& pair) const {
    return Kokkos::abs(pair.weight) * pair.gradient_norm * pair.activation_norm;
  }
};

}  // namespace lrmoe
