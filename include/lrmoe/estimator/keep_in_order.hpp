// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/estimator/scan_rows.hpp>

namespace lrmoe::detail {

/// What a row has to be kept by: nothing, a place among the open ones, or certainty.
enum class claim { none, open, certain };

/// Of the rows 0 .. L of a team's segment keep every certain one and the first `open_places` open ones.
///   claim_of(i) -> claim, pure before write(i): evaluated several times
///   write(i, keep, place)   once for every row; `place` counts the kept rows before row i
/// Called by every thread of the team with equal arguments. No barrier after it.
template <class Team, class ClaimOf, class Write>
KOKKOS_FUNCTION void keep_in_order(const Team& team, const index_type L,
                                   const index_type open_places, const ClaimOf& claim_of,
                                   const Write& write) {
  const auto places = static_cast<std::uint64_t>(open_places);
  scan_rows(
      team, L,
      [&](const index_type i) {
        const claim found = claim_of(i);
        split_sum value;
        value.certain = found == claim::certain ? 1 : 0;
        value.open = found == claim::open ? 1 : 0;
        return value;
      },
      [&](const index_type i, const split_sum& before, const split_sum& after) {
        const bool keep =
            after.certain != before.certain || (after.open != before.open && before.open < places);
        write(i, keep, static_cast<index_type>(before.certain + Kokkos::min(before.open, places)));
      });
}

}  // namespace lrmoe::detail
