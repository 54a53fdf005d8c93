// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/compaction/expert_order.hpp>
#include <lrmoe/detail/row_parallel.hpp>
#include <lrmoe/detail/views.hpp>
#include <lrmoe/scoring/scorer.hpp>

namespace lrmoe {

/// Euclidean norm of each row of a matrix.
/// Numerics  squares are summed in the accumulation type, in a fixed order: deterministic
/// Order     asynchronous on the space
template <class ExecutionSpace, class Element, class Device, class Unit = detail::translation_unit>
void row_norms(const ExecutionSpace& space, const matrix_view<const Element, Device>& rows,
               const vector_view<float, Device>& norms) {
  const auto D = static_cast<std::int64_t>(rows.extent(1));
  const bool chunked = detail::in_chunks<ExecutionSpace>(D, rows);
  detail::for_each_row(
      "lrmoe::row_norms::sum", space, static_cast<std::int64_t>(rows.extent(0)),
      KOKKOS_LAMBDA(const detail::row_lanes<ExecutionSpace>& lanes, const std::int64_t t) {
        const auto squares = lanes.sum_squares(&rows(t, 0), D, chunked);
        lanes.once([&] { norms(t) = static_cast<float>(Kokkos::sqrt(squares)); });
      });
}

/// Size of every row under a scorer, and the size of its contribution to dW_down, which certificates
/// need whatever the scorer.
///   size[r] = scorer(w_p, ||dO_t||, ||h_r||),   contribution[r] = |w_p| ||dO_t|| ||h_r||
/// Shapes    weights (T, K); gradient_norms (T), or empty for 1 before gradients exist;
///           activation_norms, outputs (N) by row
/// Order     asynchronous on the space
template <class ExecutionSpace, scorer Scorer, class Accumulate, class Device,
          class Unit = detail::translation_unit>
void score_pairs(const ExecutionSpace& space, const Scorer& policy, const draw_key& key,
                 const expert_order<Device>& order,
                 const matrix_view<const Accumulate, Device>& weights,
                 const vector_view<const float, Device>& gradient_norms,
                 const vector_view<const float, Device>& activation_norms,
                 const vector_view<float, Device>& sizes,
                 const vector_view<float, Device>& contributions) {
  const auto K = static_cast<std::int64_t>(weights.extent(1));
  const bool known = gradient_norms.extent(0) != 0;
  Kokkos::parallel_for(
      "lrmoe::score_pairs::score", Kokkos::RangePolicy<ExecutionSpace>(space, 0, sizes.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t r) {
        const index_type p = order.pair_of_row(r);
        const pair_features features{static_cast<float>(weights(p / K, p % K)),
                                     known ? gradient_norms(p / K) : 1.0F, activation_norms(r), p,
                                     key};
        sizes(r) = policy.size(features);
        contributions(r) =
            Kokkos::abs(features.weight) * features.gradient_norm * features.activation_norm;
      });
}

}  // namespace lrmoe
