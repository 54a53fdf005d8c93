// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/compaction/expert_order.hpp>
#include <lrmoe/experts/row_groups.hpp>
#include <lrmoe/memory/workspace.hpp>
#include <lrmoe/routing/router.hpp>

namespace lrmoe {

/// What backward gathers by, for M kept pairs in the order of the selection.
template <class Accumulate, class Device>
struct kept_pairs {
  row_groups<Device> groups;                     // kept pairs of each expert
  vector_view<index_type, Device> tokens;        // (M)  token of the m-th kept pair
  vector_view<Accumulate, Device> weights;       // (M)  its routing weight
  vector_view<index_type, Device> kept_of_pair;  // (P)  its m, or no_expert for a dropped pair
};

/// Look up the tokens and weights of M rows, and where each pair ended up.
/// Shapes    rows (M) in the groups, by expert
/// Order     asynchronous on the space; the views live in the workspace until the call ends
template <class ExecutionSpace, class Accumulate, class Device,
          class Unit = detail::translation_unit>
kept_pairs<Accumulate, Device> gather_kept_pairs(
    const ExecutionSpace& space, workspace<Device>& scratch, const expert_order<Device>& order,
    const routing<Accumulate, Device>& routed, const row_groups<Device>& groups,
    const vector_view<const index_type, Device>& rows) {
  const auto K = static_cast<index_type>(routed.experts.extent(1));
  const auto M = static_cast<std::int64_t>(rows.extent(0));
  const kept_pairs<Accumulate, Device> kept{
      groups, scratch["kept_pairs::tokens"].template vector<index_type>(M),
      scratch["kept_pairs::weights"].template vector<Accumulate>(M),
      scratch["kept_pairs::kept_of_pair"].template vector<index_type>(order.row_of_pair.extent(0))};
  Kokkos::deep_copy(space, kept.kept_of_pair, no_expert);
  Kokkos::parallel_for(
      "lrmoe::kept_pairs::gather", Kokkos::RangePolicy<ExecutionSpace>(space, 0, M),
      KOKKOS_LAMBDA(const std::int64_t m) {
        const index_type p = order.pair_of_row(rows(m));
        kept.tokens(m) = p / K;
        kept.weights(m) = routed.weights(p / K, p % K);
        kept.kept_of_pair(p) = static_cast<index_type>(m);
      });
  return kept;
}

/// Values of kept pairs back in pair order, zero for the others.
///   of_pairs[t, k] = of_kept[m] / factors[m],   m = kept_of_pair[t K + k]
/// Shapes    of_kept (M); factors (M), or empty for all 1; of_pairs (T, K)
/// Order     asynchronous on the space
template <class ExecutionSpace, class Accumulate, class Device,
          class Unit = detail::translation_unit>
void spread_kept_values(const ExecutionSpace& space, const kept_pairs<Accumulate, Device>& kept,
                        const vector_view<Accumulate, Device>& of_kept,
                        const vector_view<const float, Device>& factors,
                        const matrix_view<Accumulate, Device>& of_pairs) {
  const auto K = static_cast<std::int64_t>(of_pairs.extent(1));
  const bool scaled = factors.extent(0) != 0;
  Kokkos::parallel_for(
      "lrmoe::kept_pairs::spread",
      Kokkos::RangePolicy<ExecutionSpace>(space, 0, kept.kept_of_pair.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t p) {
        const index_type m = kept.kept_of_pair(p);
        Accumulate value = 0;
        if (m != no_expert)
          value = scaled ? of_kept(m) / static_cast<Accumulate>(factors(m)) : of_kept(m);
        of_pairs(p / K, p % K) = value;
      });
}

}  // namespace lrmoe
