// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <concepts>

#include <lrmoe/draw_key.hpp>
#include <lrmoe/types.hpp>

namespace lrmoe {

/// What a scorer may know of a pair (t, e) once the gradient of the layer's output has arrived.
struct pair_features {
  float weight;           ///< w_p, routing weight
  float gradient_norm;    ///< ||dO_t||, gradient of the token's output
  float activation_norm;  ///< ||h_p||, hidden activation of the pair
  index_type pair;        ///< p, for scorers that draw
  draw_key key;           ///< step, layer and source of this call, likewise
};

/// A scorer gives a pair its *size*, the square root of its score: estimators draw proportionally
/// to the size or keep the largest. Roots keep products of three norms inside the range of float.
/// size() is called in kernels; the result must not be negative. Estimators count a NaN or infinity
/// as large, so that a diverged pair is likely kept and shows in the gradient, and the report counts
/// such pairs.
template <class Scorer>
concept scorer = std::copyable<Scorer> && requires(const Scorer& s, const pair_features& pair) {
  { s.size(pair) } -> std::same_as<float>;
};

}  // namespace lrmoe
