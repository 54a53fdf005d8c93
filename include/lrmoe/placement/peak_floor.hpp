// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <lrmoe/types.hpp>

namespace lrmoe {

/// No placement with one copy of each expert has a lower peak: max(ceil(sum L / R), max L).
///   loads (E)   L[e]
inline std::int64_t permutation_floor(std::int64_t R, std::span<const std::int64_t> loads) {
  std::int64_t total = 0, most = 0;
  for (const std::int64_t L : loads) total += L, most = std::max(most, L);
  return std::max(most, (total + R - 1) / R);
}

/// No placement with as many holders of each expert has a lower peak:
///   max(ceil(sum L / R), max over e of ceil(L[e] / holders[e]))
///   loads, holders (E)
inline std::int64_t replication_floor(std::int64_t R, std::span<const std::int64_t> loads,
                                      std::span<const std::int64_t> holders) {
  std::int64_t total = 0, most = 0;
  for (std::size_t e = 0; e < loads.size(); ++e) {
    total += loads[e];
    most = std::max(most, (loads[e] + holders[e] - 1) / holders[e]);
  }
  return std::max(most, (total + R - 1) / R);
}

/// A peak that no placement can go below which keeps a copy of each expert at home and puts at most
/// free_slots[r] others on rank r. It is the least peak tau for which
///   the ranks' excess over tau, in sum, fits into the room of ranks that have a free slot, and
///   the exports that this excess needs at least, each at most tau pairs of one expert, have slots
/// Both are needed and neither suffices, so the best placement may lie above.
///   loads, home (E); free_slots (R)
/// Cost      O(E log E log max load); allocates
inline std::int64_t transient_floor(std::int64_t R, std::span<const std::int64_t> loads,
                                    std::span<const index_type> home,
                                    std::span<const std::int64_t> free_slots) {
  const auto ranks = static_cast<std::size_t>(R);
  std::vector<std::int64_t> load(ranks, 0);
  std::vector<std::vector<std::int64_t>> experts(ranks);
  std::int64_t total = 0, slots = 0;
  for (std::size_t e = 0; e < loads.size(); ++e) {
    load[static_cast<std::size_t>(home[e])] += loads[e];
    experts[static_cast<std::size_t>(home[e])].push_back(loads[e]);
    total += loads[e];
  }
  for (const std::int64_t n : free_slots) slots += n;
  const auto exports = [](const std::vector<std::int64_t>& of_rank, std::int64_t need,
                          std::int64_t tau) {
    std::int64_t whole = 0;
    std::vector<std::int64_t> rests;
    for (const std::int64_t L : of_rank) {
      whole += L / tau;
      rests.push_back(L % tau);
    }
    std::int64_t count = std::min(whole, (need + tau - 1) / tau);
    need -= count * tau;
    std::sort(rests.begin(), rests.end(), std::greater<>());
    for (std::size_t i = 0; need > 0 && i < rests.size(); ++i) need -= rests[i], ++count;
    return count;
  };
  const auto possible = [&](std::int64_t tau) {
    std::int64_t excess = 0, room = 0, needed = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      if (load[r] > tau) {
        excess += load[r] - tau;
        const std::int64_t mine = exports(experts[r], load[r] - tau, tau);
        if (mine > slots - free_slots[r]) return false;
        needed += mine;
      } else if (free_slots[r] > 0) {
        room += tau - load[r];
      }
    }
    return excess <= room && needed <= slots;
  };
  std::int64_t low = std::max<std::int64_t>(1, (total + R - 1) / R) - 1;
  std::int64_t high = std::max(low + 1, *std::max_element(load.begin(), load.end()));
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (possible(middle) ? high : low) = middle;
  }
  return total == 0 ? 0 : high;
}

}  // namespace lrmoe
