// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/estimator/estimator.hpp>
#include <lrmoe/estimator/radix_threshold.hpp>

namespace lrmoe {

/// The largest sizes for certain, and a simple random sample of the rest, which keeps it unbiased.
///
/// In a segment of L rows with quota q, the t = ceil(share q) largest sizes (ties to the lowest row,
/// NaN above all) are kept with factor 1. The other q - t places go to a simple random sample of the
/// other L - t rows, the q - t largest of one random key a row, with factor (L - t)/(q - t). Where
/// q < L, t is at most q - 1: without a sample, the dropped rows would be missing from the
/// expectation as well.
///
/// Against `pps`: among the open rows large ones are kept as rarely as small ones, so the variance is
/// higher; but no factor exceeds (L - t)/(q - t).
///
/// Cost      one team a segment: two radix searches, two scans
/// Space     1 KiB of team scratch
/// Source    a take-all stratum beside a simple random sample: Hidiroglou 1986
struct top_plus_sampled {
  std::uint64_t seed = 0;
  double share = 0.5;  ///< of the quota, kept for certain, in [0, 1)

  static constexpr bool keeps_all() { return false; }
  static constexpr bool unbiased() { return true; }
  void validate() const {
    require(share >= 0.0 && share < 1.0, "top_plus_sampled: share = ", share,
            " is outside [0, 1): leave places for the sample, or choose the estimator top");
  }

  /// Number of certain rows of a segment of L rows with quota q.
  KOKKOS_FUNCTION index_type certain(index_type L, index_type q) const {
    if (q == 0 || q == L) return q;
    // The slack keeps a product such as 0.07 * 100, which rounds to just above 7, from becoming 8.
    const double exact = share * q * (1.0 - 1e-12);
    return Kokkos::min(static_cast<index_type>(Kokkos::ceil(exact)), q - 1);
  }

  template <class ExecutionSpace, class Device, class Unit = detail::translation_unit>
  void select(const ExecutionSpace& space, const segments<Device>& rows,
              const vector_view<const float, Device>& sizes, const draw_key& key,
              const selection<Device>& kept) const {
    using team_policy = Kokkos::TeamPolicy<ExecutionSpace>;
    using team_member = typename team_policy::member_type;
    const auto E = static_cast<int>(rows.offsets.extent(0)) - 1;
    const auto self = *this;
    Kokkos::parallel_for(
        "lrmoe::top_plus_sampled::select",
        team_policy(space, E, Kokkos::AUTO)
            .set_scratch_size(0, Kokkos::PerTeam(detail::radix_scratch_bytes<ExecutionSpace>())),
        KOKKOS_LAMBDA(const team_member& team) {
          using detail::claim;
          const int e = team.league_rank();
          const index_type begin = rows.offsets(e);
          const index_type L = rows.offsets(e + 1) - begin;
          const index_type kept_begin = rows.kept_offsets(e);
          const index_type q = rows.kept_offsets(e + 1) - kept_begin;
          const index_type t = self.certain(L, q);
          const detail::radix_counters<ExecutionSpace> bins(team.team_scratch(0),
                                                            detail::radix_bins);

          const auto size = [&](const index_type i) { return detail::size_key(sizes(begin + i)); };
          const detail::key_threshold largest = detail::radix_threshold(
              team, L, t, [](index_type) { return true; }, size, bins);
          const index_type ties_end = detail::end_of_ties(team, L, largest, size, bins);
          const auto is_open = [&](const index_type i) {
            const claim found = largest.of(size(i));
            return found == claim::none || (found == claim::open && i >= ties_end);
          };

          const auto random = [&](const index_type i) -> std::uint32_t {
            return key.words(self.seed, static_cast<std::uint32_t>(begin + i)).word[0];
          };
          const detail::key_threshold sampled =
              detail::radix_threshold(team, L, q - t, is_open, random, bins);
          const auto open_rows = static_cast<float>(L - t);
          const auto open_places = static_cast<float>(q - t);
          detail::keep_in_order(
              team, L, sampled.ties,
              [&](const index_type i) {
                return is_open(i) ? sampled.of(random(i)) : claim::certain;
              },
              [&](const index_type i, const bool keep, const index_type place) {
                const bool open = is_open(i);
                kept.inclusion(begin + i) = open ? open_places / open_rows : 1.0F;
                if (!keep) return;
                kept.rows(kept_begin + place) = begin + i;
                kept.factors(kept_begin + place) = open ? open_rows / open_places : 1.0F;
              });
        });
  }
};

}  // namespace lrmoe
