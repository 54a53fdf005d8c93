// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <string>

#include <lrmoe/estimator/estimator.hpp>
#include <lrmoe/estimator/radix_threshold.hpp>

namespace lrmoe {

/// In every segment keep the quota's number of rows with the largest keys; of equal keys the rows
/// that come first.
///   key_of(row) -> std::uint32_t, pure: evaluated several times
///   factor_of(L, q) -> float, factor of the kept rows of a segment of L rows with quota q
///   inclusion_of(L, q, keep) -> float, recorded for every row
/// A radix search finds the q-th largest key; one scan then writes the rows in order.
/// Space     one team a segment, 1 KiB of team scratch
/// Order     asynchronous on the space. Deterministic.
template <class ExecutionSpace, class Device, class KeyOf, class FactorOf, class InclusionOf,
          class Unit = detail::translation_unit>
void select_largest(const std::string& label, const ExecutionSpace& space,
                    const segments<Device>& rows, const KeyOf& key_of, const FactorOf& factor_of,
                    const InclusionOf& inclusion_of, const selection<Device>& kept) {
  using team_policy = Kokkos::TeamPolicy<ExecutionSpace>;
  using team_member = typename team_policy::member_type;
  const auto E = static_cast<int>(rows.offsets.extent(0)) - 1;

  Kokkos::parallel_for(
      label,
      team_policy(space, E, Kokkos::AUTO)
          .set_scratch_size(0, Kokkos::PerTeam(detail::radix_scratch_bytes<ExecutionSpace>())),
      KOKKOS_LAMBDA(const team_member& team) {
        const int e = team.league_rank();
        const index_type begin = rows.offsets(e);
        const index_type L = rows.offsets(e + 1) - begin;
        const index_type kept_begin = rows.kept_offsets(e);
        const index_type q = rows.kept_offsets(e + 1) - kept_begin;
        const detail::radix_counters<ExecutionSpace> bins(team.team_scratch(0), detail::radix_bins);
        const auto key = [&](const index_type i) -> std::uint32_t { return key_of(begin + i); };

        const detail::key_threshold threshold = detail::radix_threshold(
            team, L, q, [](index_type) { return true; }, key, bins);
        detail::keep_in_order(
            team, L, threshold.ties, [&](const index_type i) { return threshold.of(key(i)); },
            [&](const index_type i, const bool keep, const index_type place) {
              kept.inclusion(begin + i) = inclusion_of(L, q, keep);
              if (!keep) return;
              kept.rows(kept_begin + place) = begin + i;
              kept.factors(kept_begin + place) = factor_of(L, q);
            });
      });
}

}  // namespace lrmoe
