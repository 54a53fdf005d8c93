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
  const auto K = static_cast<int>(static_cast<std::int64_t>(row_of_pair.extent(0)) / T);
  const bool weighted = weights.extent(0) != 0;
  const bool based = base.extent(0) != 0;
  const bool chunked = detail::in_chunks<ExecutionSpace>(D, rows, base, out);
  // Rows that a GPU loads before it adds the first. Such a batch has no branches: a row that is not there
  // adds -0, which changes nothing.
  constexpr int batch = detail::on_gpu<ExecutionSpace> ? 8 : 1;
  detail::for_each_row(
      "lrmoe::combine::sum", space, T,
      KOKKOS_LAMBDA(const detail::row_lanes<ExecutionSpace>& lanes, const std::int64_t t) {
        const index_type* row_of_token = &row_of_pair(t * K);
        const Accumulate* weight_of_token = weighted ? &weights(t, 0) : nullptr;
        // A block of columns at a time keeps the partial sums in registers or the nearest cache.
        lanes.template for_each_block<Element, 1>(D, chunked, [&]<class Block>(const Block& block) {
          typename Block::values sums = {};
          if (based) block.fetch(&base(t, 0)).unpack(sums);
          for (int k = 0; k < K; k += batch) {
            index_type row[batch];
            Accumulate weight[batch];
            for (int j = 0; j < batch; ++j) {
              const int at = batch == 1 ? k : Kokkos::min(k + j, K - 1);
              row[j] = row_of_token[at];
              weight[j] = weighted ? weight_of_token[at] : Accumulate(1);
            }
            if (batch == 1 && row[0] == no_expert) continue;
            typename Block::chunk chunks[batch];
            for (int j = 0; j < batch; ++j) {
              const bool there = k + j < K && row[j] != no_expert;
              chunks[j] = block.fetch(there ? &rows(row[j], 0) : nullptr, there);
              if (!there) weight[j] = -Accumulate(0);
            }
            for (int j = 0; j < batch; ++j) {
              typename Block::values values;
              chunks[j].unpack(values);
              block.for_each([&](const int d) { sums[d] += weight[j] * values[d]; });
            }
          }
          block.store(&out(t, 0), sums);
        });
      });
}

}  // namespace lrmoe
