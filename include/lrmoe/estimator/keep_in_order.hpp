// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/estimator/split_sum.hpp>

namespace lrmoe::detail {

/// What a row has to be kept by: nothing, a place among the open ones, or certainty.
enum class claim { none, open, certain };

/// Of the rows 0 .. L of a team's segment keep every certain one and the first `open_places` open ones.
///   claim_of(i) -> claim, pure before write(i): evaluated several times
///   write(i, keep, place)   once for every row; `place` counts the kept rows before row i
/// Called by every thread of the team with equal arguments. No barrier, before or after.
template <class Team, class ClaimOf, class Write>
KOKKOS_FUNCTION void keep_in_order(const Team& team, const index_type L,
                                   const index_type open_places, const ClaimOf& claim_of,
                                   const Write& write) {
  const auto places = static_cast<std::uint64_t>(open_places);
  Kokkos::parallel_scan(
      Kokkos::TeamThreadRange(team, L),
      [&](const index_type i, split_sum& running, const bool final) {
        const split_sum before = running;
        const claim found = claim_of(i);
        running.certain += found == claim::certain ? 1 : 0;
        running.open += found == claim::open ? 1 : 0;
        if (!final) return;
        const bool keep = found == claim::certain || (found == claim::open && before.open < places);
        write(i, keep, static_cast<index_type>(before.certain + Kokkos::min(before.open, places)));
      });
}

}  // namespace lrmoe::detail
