// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/compaction/kept_pairs.hpp>

namespace lrmoe {

/// The rows that no selection kept, by expert in ascending order.
template <class Device>
struct dropped_pairs {
  vector_view<index_type, Device> offsets;  // (E+1)
  vector_view<index_type, Device> rows;     // (N - M)
  vector_view<index_type, Device> tokens;   // (N - M)
};

/// Shapes    N rows exist, of which M are kept
/// Order     asynchronous on the space; the views live in the workspace until the call ends
template <class ExecutionSpace, class Accumulate, class Device,
          class Unit = detail::translation_unit>
dropped_pairs<Device> gather_dropped_pairs(const ExecutionSpace& space, workspace<Device>& scratch,
                                           const expert_order<Device>& order,
                                           const kept_pairs<Accumulate, Device>& kept,
                                           std::int64_t N, std::int64_t M) {
  const auto E1 = static_cast<std::int64_t>(order.offsets.extent(0));
  const dropped_pairs<Device> dropped{
      scratch["dropped_pairs::offsets"].template vector<index_type>(E1),
      scratch["dropped_pairs::rows"].template vector<index_type>(N - M),
      scratch["dropped_pairs::tokens"].template vector<index_type>(N - M)};
  Kokkos::parallel_for(
      "lrmoe::dropped_pairs::offsets", Kokkos::RangePolicy<ExecutionSpace>(space, 0, E1),
      KOKKOS_LAMBDA(const std::int64_t e) {
        dropped.offsets(e) = order.offsets(e) - kept.groups.offsets(e);
      });
  Kokkos::parallel_scan(
      "lrmoe::dropped_pairs::gather", Kokkos::RangePolicy<ExecutionSpace>(space, 0, N),
      KOKKOS_LAMBDA(const std::int64_t r, index_type& position, const bool final) {
        if (kept.kept_of_pair(order.pair_of_row(r)) != no_expert) return;
        if (final) {
          dropped.rows(position) = static_cast<index_type>(r);
          dropped.tokens(position) = order.token_of_row(r);
        }
        ++position;
      });
  return dropped;
}

/// Write the values of dropped pairs to their places.
///   of_pairs[t, k] = of_dropped[j],   pair t K + k in row rows[j]
/// Order     asynchronous on the space
template <class ExecutionSpace, class Accumulate, class Device,
          class Unit = detail::translation_unit>
void spread_dropped_values(const ExecutionSpace& space, const expert_order<Device>& order,
                           const dropped_pairs<Device>& dropped,
                           const vector_view<Accumulate, Device>& of_dropped,
                           const matrix_view<Accumulate, Device>& of_pairs) {
  const auto K = static_cast<std::int64_t>(of_pairs.extent(1));
  Kokkos::parallel_for(
      "lrmoe::dropped_pairs::spread",
      Kokkos::RangePolicy<ExecutionSpace>(space, 0, dropped.rows.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t j) {
        const index_type p = order.pair_of_row(dropped.rows(j));
        of_pairs(p / K, p % K) = of_dropped(j);
      });
}

}  // namespace lrmoe
