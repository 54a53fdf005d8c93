// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/estimator/estimator.hpp>

namespace lrmoe {

namespace detail {

struct kept_count {
  index_type above = 0;
  index_type tied = 0;

  // Kokkos' team scan starts from the literal 0.
  KOKKOS_FUNCTION kept_count(int /*zero*/ = 0) {}
  KOKKOS_FUNCTION kept_count& operator+=(const kept_count& other) {
    above += other.above;
    tied += other.tied;
    return *this;
  }
  KOKKOS_FUNCTION friend kept_count operator+(kept_count left, const kept_count& right) {
    return left += right;
  }
};

}  // namespace detail

/// In every segment keep the quota's number of rows with the largest keys; of equal keys the rows
/// that come first.
///   key_of(row) -> std::uint32_t, pure: evaluated several times
///   factor_of(L, q) -> float, factor of the kept rows of a segment of L rows with quota q
///   inclusion_of(L, q, keep) -> float, recorded for every row
/// Radix select: four passes, each counting one byte of the keys that still compete in 256 bins and
/// descending into the bin that holds the q-th largest; one scan then writes the rows in order.
/// Space     one team a segment, 1 KiB of team scratch
/// Order     asynchronous on the space. Deterministic.
template <class ExecutionSpace, class Device, class KeyOf, class FactorOf, class InclusionOf>
void select_largest(const std::string& label, const ExecutionSpace& space,
                    const segments<Device>& rows, const KeyOf& key_of, const FactorOf& factor_of,
                    const InclusionOf& inclusion_of, const selection<Device>& kept) {
  using team_policy = Kokkos::TeamPolicy<ExecutionSpace>;
  using team_member = typename team_policy::member_type;
  using scratch_space = typename ExecutionSpace::scratch_memory_space;
  using histogram = Kokkos::View<index_type*, scratch_space, Kokkos::MemoryUnmanaged>;
  constexpr int num_bins = 256;
  const auto E = static_cast<int>(rows.offsets.extent(0)) - 1;

  Kokkos::parallel_for(
      label,
      team_policy(space, E, Kokkos::AUTO)
          .set_scratch_size(0, Kokkos::PerTeam(histogram::shmem_size(num_bins))),
      KOKKOS_LAMBDA(const team_member& team) {
        const int e = team.league_rank();
        const index_type begin = rows.offsets(e);
        const index_type L = rows.offsets(e + 1) - begin;
        const index_type kept_begin = rows.kept_offsets(e);
        const index_type q = rows.kept_offsets(e + 1) - kept_begin;
        const auto all_rows = Kokkos::TeamThreadRange(team, L);
        const histogram bins(team.team_scratch(0), num_bins);

        std::uint32_t threshold = 0;  // bytes of the q-th largest key found so far
        index_type wanted = q;        // still to be taken from keys that match those bytes
        for (int shift = 24; shift >= 0 && q > 0; shift -= 8) {
          const std::uint32_t known = shift == 24 ? 0 : ~std::uint32_t{0} << (shift + 8);
          Kokkos::parallel_for(Kokkos::TeamThreadRange(team, num_bins),
                               [&](const int bin) { bins(bin) = 0; });
          team.team_barrier();
          Kokkos::parallel_for(all_rows, [&](const index_type i) {
            const std::uint32_t key = key_of(begin + i);
            if ((key & known) == threshold) {
              Kokkos::atomic_inc(&bins(static_cast<int>((key >> shift) & 0xffU)));
            }
          });
          team.team_barrier();
          int bin = num_bins - 1;
          while (bin > 0 && bins(bin) < wanted) wanted -= bins(bin--);
          threshold |= static_cast<std::uint32_t>(bin) << shift;
          team.team_barrier();
        }

        // Keys above the threshold are all kept, of those equal to it the first `wanted`.
        Kokkos::parallel_scan(all_rows, [&](const index_type i, detail::kept_count& running,
                                            const bool final) {
          const std::uint32_t key = q > 0 ? key_of(begin + i) : 0;
          const detail::kept_count before = running;
          const bool above = q > 0 && key > threshold;
          const bool tied = q > 0 && key == threshold;
          running.above += above ? 1 : 0;
          running.tied += tied ? 1 : 0;
          if (!final) return;
          const bool keep = above || (tied && before.tied < wanted);
          kept.inclusion(begin + i) = inclusion_of(L, q, keep);
          if (!keep) return;
          const index_type position = kept_begin + before.above + Kokkos::min(before.tied, wanted);
          kept.rows(position) = begin + i;
          kept.factors(position) = factor_of(L, q);
        });
      });
}

}  // namespace lrmoe
