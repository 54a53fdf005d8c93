// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/detail/row_parallel.hpp>

namespace lrmoe {

/// Each token sums its K rows in ascending k: no scatter, no atomics, one fixed order.
///   out[t] = base[t] + sum_k weights[t, k] rows[row_of_pair[t K + k]]
/// Shapes    rows (., D); row_of_pair (T K), no_expert rows count as zero; weights (T, K) or empty
///           for all 1; base (T, D) or empty for zero; out (T, D)
/// Numerics  sums in the accumulation type, one rounding to Element. Deterministic.
/// Order     asynchronous on the space
template <class ExecutionSpace, class Element, class Accumulate, class Device,
          class Unit = detail::translation_unit>
void combine(const ExecutionSpace& space, const matrix_view<const Element, Device>& rows,
             const vector_view<const index_type, Device>& row_of_pair,
             const matrix_view<const Accumulate, Device>& weights,
             const matrix_view<const Element, Device>& base,
             const matrix_view<Element, Device>& out) {
  const auto T = static_cast<std::int64_t>(out.extent(0));
  const auto D = static_cast<std::int64_t>(out.extent(1));
  if (T == 0) return;
  const auto K = static_cast<std::int64_t>(row_of_pair.extent(0)) / T;
  const bool weighted = weights.extent(0) != 0;
  const bool based = base.extent(0) != 0;
  // A block of columns at a time keeps the partial sums in registers or the nearest cache.
  constexpr int block = detail::row_block<ExecutionSpace, Element>;
  detail::for_each_row(
      "lrmoe::combine::sum", space, T,
      KOKKOS_LAMBDA(const detail::row_lanes<ExecutionSpace>& lanes, const std::int64_t t) {
        lanes.template for_each_block<Element>(D, [&](const std::int64_t first, const int width) {
          Accumulate sums[block] = {}, values[block];
          if (based) detail::load_block<ExecutionSpace>(&base(t, first), width, sums);
          for (std::int64_t k = 0; k < K; ++k) {
            const index_type row = row_of_pair(t * K + k);
            if (row == no_expert) continue;
            const Accumulate weight = weighted ? weights(t, k) : Accumulate(1);
            detail::load_block<ExecutionSpace>(&rows(row, first), width, values);
            detail::for_columns<ExecutionSpace, Element>(
                width, [&](const int d) { sums[d] += weight * values[d]; });
          }
          detail::store_block<ExecutionSpace>(&out(t, first), width, sums);
        });
      });
}

}  // namespace lrmoe
