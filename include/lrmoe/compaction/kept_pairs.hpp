// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/compaction/expert_order.hpp>
#include <lrmoe/estimator/estimator.hpp>
#include <lrmoe/memory/workspace.hpp>
#include <lrmoe/routing/router.hpp>

namespace lrmoe {

/// What backward gathers by, for M kept pairs in the order of the selection.
template <class Accumulate, class Device>
struct kept_pairs {
  vector_view<const index_type, Device> offsets;  // (E+1) kept pairs of each expert
  vector_view<index_type, Device> tokens;         // (M)   token of the m-th kept pair
  vector_view<Accumulate, Device> weights;        // (M)   its routing weight
  vector_view<index_type, Device> kept_of_pair;   // (P)   its m, or no_expert for a dropped pair
};

/// Look up the tokens and weights of the kept rows, and where each pair ended up.
/// Shapes    capacity: entries to make room for, an upper bound of M = kept_offsets(E)
/// Order     asynchronous on the space; the views live in the workspace until the call ends
template <class ExecutionSpace, class Accumulate, class Device>
kept_pairs<Accumulate, Device> gather_kept_pairs(
    const ExecutionSpace& space, workspace<Device>& scratch, const expert_order<Device>& order,
    const routing<Accumulate, Device>& routed, const vector_view<index_type, Device>& kept_offsets,
    const selection<Device>& selected, std::int64_t capacity) {
  const auto K = static_cast<index_type>(routed.experts.extent(1));
  const auto E = static_cast<std::int64_t>(kept_offsets.extent(0)) - 1;
  const kept_pairs<Accumulate, Device> kept{
      kept_offsets, scratch["kept_pairs::tokens"].template vector<index_type>(capacity),
      scratch["kept_pairs::weights"].template vector<Accumulate>(capacity),
      scratch["kept_pairs::kept_of_pair"].template vector<index_type>(order.row_of_pair.extent(0))};
  Kokkos::deep_copy(space, kept.kept_of_pair, no_expert);
  Kokkos::parallel_for(
      "lrmoe::kept_pairs::gather", Kokkos::RangePolicy<ExecutionSpace>(space, 0, capacity),
      KOKKOS_LAMBDA(const std::int64_t m) {
        if (m >= kept.offsets(E)) return;
        const index_type p = order.pair_of_row(selected.rows(m));
        kept.tokens(m) = p / K;
        kept.weights(m) = routed.weights(p / K, p % K);
        kept.kept_of_pair(p) = static_cast<index_type>(m);
      });
  return kept;
}

/// Values of kept pairs back in pair order, zero for dropped pairs.
///   of_pairs[t, k] = of_kept[kept_of_pair[t K + k]]
/// Order     asynchronous on the space
template <class ExecutionSpace, class Accumulate, class Device>
void spread_kept_values(const ExecutionSpace& space, const kept_pairs<Accumulate, Device>& kept,
                        const vector_view<Accumulate, Device>& of_kept,
                        const matrix_view<Accumulate, Device>& of_pairs) {
  const auto K = static_cast<std::int64_t>(of_pairs.extent(1));
  Kokkos::parallel_for(
      "lrmoe::kept_pairs::spread",
      Kokkos::RangePolicy<ExecutionSpace>(space, 0, kept.kept_of_pair.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t p) {
        const index_type m = kept.kept_of_pair(p);
        of_pairs(p / K, p % K) = m == no_expert ? Accumulate(0) : of_kept(m);
      });
}

}  // namespace lrmoe
