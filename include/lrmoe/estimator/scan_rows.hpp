// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/estimator/split_sum.hpp>

namespace lrmoe::detail {

/// Running sums over the rows 0 .. L of a team's segment.
///   value_of(i) -> split_sum, pure before write(i): evaluated twice
///   write(i, before, after)   once for every row, with the sums before and after row i
/// Each thread takes a run of rows. Written out because Kokkos' team scan has room for eight bytes a
/// thread on GPUs.
/// Called by every thread of the team with equal arguments.
template <class Team, class ValueOf, class Write>
KOKKOS_FUNCTION void scan_rows(const Team& team, const index_type L, const ValueOf& value_of,
                               const Write& write) {
  const std::int64_t threads = team.team_size();
  const std::int64_t each = (L + threads - 1) / threads;
  const auto begin = static_cast<index_type>(Kokkos::min<std::int64_t>(L, each * team.team_rank()));
  const auto end = static_cast<index_type>(Kokkos::min<std::int64_t>(L, begin + each));
  split_sum own;
  for (index_type i = begin; i < end; ++i) own += value_of(i);
  split_sum running;
  running.certain = team.team_scan(own.certain);
  running.open = team.team_scan(own.open);
  for (index_type i = begin; i < end; ++i) {
    const split_sum before = running;
    running += value_of(i);
    write(i, before, running);
  }
}

}  // namespace lrmoe::detail
