// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/control/score_history.hpp>
#include <lrmoe/types.hpp>

namespace lrmoe {

/// Count every expert's pairs by size.
/// Shapes    offsets (E+1); sizes (P) by row; histogram (E, size_bins::count), overwritten
/// Space     one team an expert; counts are integers, so their order does not matter
/// Order     asynchronous on the space. Deterministic.
template <class ExecutionSpace, class Device, class Unit = detail::translation_unit>
void size_histogram(const ExecutionSpace& space,
                    const vector_view<const index_type, Device>& offsets,
                    const vector_view<const float, Device>& sizes,
                    const matrix_view<index_type, Device>& histogram) {
  using team_policy = Kokkos::TeamPolicy<ExecutionSpace>;
  using team_member = typename team_policy::member_type;
  const auto E = static_cast<int>(histogram.extent(0));
  Kokkos::parallel_for(
      "lrmoe::size_histogram::count", team_policy(space, E, Kokkos::AUTO),
      KOKKOS_LAMBDA(const team_member& team) {
        const int e = team.league_rank();
        Kokkos::parallel_for(Kokkos::TeamThreadRange(team, size_bins::count),
                             [&](const int bin) { histogram(e, bin) = 0; });
        team.team_barrier();
        Kokkos::parallel_for(Kokkos::TeamThreadRange(team, offsets(e), offsets(e + 1)),
                             [&](const index_type r) {
                               Kokkos::atomic_inc(&histogram(e, size_bins::of(sizes(r))));
                             });
      });
}

}  // namespace lrmoe
