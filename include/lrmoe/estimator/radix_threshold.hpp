// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/estimator/keep_in_order.hpp>

namespace lrmoe::detail {

/// What separates the largest keys from the rest: all above `key` belong to them, and the first
/// `ties` rows whose key equals it.
struct key_threshold {
  std::uint32_t key = ~std::uint32_t{0};
  index_type ties = 0;

  KOKKOS_FUNCTION claim of(std::uint32_t other) const {
    if (other > key) return claim::certain;
    return other == key ? claim::open : claim::none;
  }
};

/// Sizes are not negative, so their bit patterns order as the numbers do, NaN above all.
KOKKOS_INLINE_FUNCTION std::uint32_t size_key(float size) {
  return Kokkos::bit_cast<std::uint32_t>(size) & 0x7fffffffU;
}

inline constexpr int radix_bins = 256;

/// Counters of one team, in team scratch of radix_scratch_bytes.
template <class ExecutionSpace>
using radix_counters = Kokkos::View<index_type*, typename ExecutionSpace::scratch_memory_space,
                                    Kokkos::MemoryUnmanaged>;
template <class ExecutionSpace>
std::size_t radix_scratch_bytes() {
  return radix_counters<ExecutionSpace>::shmem_size(radix_bins);
}

/// Threshold of the `wanted` largest keys among the competing rows of 0 .. L, a team's segment.
///   competes(i) -> bool, key_of(i) -> std::uint32_t, pure: evaluated several times
///   bins        radix_bins counters
/// Radix search: four passes, each counting one byte of the keys that still compete and descending
/// into the bin that holds the wanted one.
/// Expects   0 <= wanted <= number of competing rows; every thread of the team calls, with equal
///           arguments
/// Order     ends with a barrier of the team (or, for wanted = 0, does nothing). Deterministic.
template <class Team, class Competes, class KeyOf, class Counters>
KOKKOS_FUNCTION key_threshold radix_threshold(const Team& team, const index_type L,
                                              const index_type wanted, const Competes& competes,
                                              const KeyOf& key_of, const Counters& bins) {
  if (wanted == 0) return {};
  const int num_bins = radix_bins;  // a constant whose address device code may take
  key_threshold found{0, wanted};   // the bytes found so far; still to be taken from their keys
  for (int shift = 24; shift >= 0; shift -= 8) {
    const std::uint32_t known = shift == 24 ? 0 : ~std::uint32_t{0} << (shift + 8);
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, num_bins),
                         [&](const int bin) { bins(bin) = 0; });
    team.team_barrier();
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, L), [&](const index_type i) {
      if (!competes(i)) return;
      const std::uint32_t key = key_of(i);
      if ((key & known) == found.key) {
        Kokkos::atomic_inc(&bins(static_cast<int>((key >> shift) & 0xffU)));
      }
    });
    team.team_barrier();
    int bin = num_bins - 1;
    while (bin > 0 && bins(bin) < found.ties) found.ties -= bins(bin--);
    found.key |= static_cast<std::uint32_t>(bin) << shift;
    team.team_barrier();
  }
  return found;
}

/// One past the last of the threshold's ties, so that a row's index tells whether it is among them.
/// Expects   the arguments of radix_threshold, and its result for all rows competing
/// Order     ends with a barrier of the team (or, without ties, does nothing).
template <class Team, class KeyOf, class Counters>
KOKKOS_FUNCTION index_type end_of_ties(const Team& team, const index_type L,
                                       const key_threshold& threshold, const KeyOf& key_of,
                                       const Counters& bins) {
  if (threshold.ties == 0) return 0;
  keep_in_order(
      team, L, threshold.ties,
      [&](const index_type i) { return key_of(i) == threshold.key ? claim::open : claim::none; },
      [&](const index_type i, const bool keep, const index_type place) {
        if (keep && place == threshold.ties - 1) bins(0) = i + 1;
      });
  team.team_barrier();
  const index_type end = bins(0);
  team.team_barrier();
  return end;
}

}  // namespace lrmoe::detail
