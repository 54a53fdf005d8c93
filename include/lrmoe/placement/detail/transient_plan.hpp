// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <lrmoe/placement/detail/expert_loads.hpp>
#include <lrmoe/placement/detail/export_oracle.hpp>
#include <lrmoe/placement/detail/slot_table.hpp>
#include <lrmoe/placement/planner.hpp>

namespace lrmoe::detail {

/// Working storage of planners that export pairs from where experts live; one a thread.
struct transient_storage {
  export_oracle oracle;
  std::vector<anchored_load> items;
  std::vector<expert_export> exports, tried;

  static transient_storage& of_thread() {
    thread_local transient_storage storage;
    storage.items.clear();
    storage.exports.clear();
    storage.tried.clear();
    return storage;
  }
};

/// All pairs of every expert at its home rank; number of the item: the expert.
inline void anchor_at_home(const placement_request& request, std::vector<anchored_load>& items) {
  struct loads_tag {};
  const auto loads = scratch<loads_tag, std::int64_t>(static_cast<std::size_t>(request.E));
  sum_over_sources(request, loads);
  for (std::size_t e = 0; e < loads.size(); ++e)
    items.push_back(
        {static_cast<index_type>(e), request.home[e], static_cast<index_type>(loads[e])});
}

/// The plan that follows from items and exports. The slots hold the items' copies already; exports get
/// further ones. An export to a rank that holds the expert joins it.
inline void write_transient_plan(const placement_request& request, slot_table& slots,
                                 std::span<const anchored_load> items,
                                 std::span<const expert_export> exports, placement_plan& plan) {
  for (const expert_export& x : exports) {
    const index_type e = items[static_cast<std::size_t>(x.item)].expert;
    if (!slots.holds(x.to, e)) slots.put(x.to, e);
  }
  slots.write(request.E, plan.replicas);
  plan.loads.reserve(static_cast<std::size_t>(request.R * request.S));
  plan.loads.assign(static_cast<std::size_t>(plan.replicas.replicas()), 0);
  const auto load = [&](index_type e, index_type rank) -> index_type& {
    return plan.loads[static_cast<std::size_t>(plan.replicas.find(e, rank))];
  };
  for (const anchored_load& item : items) load(item.expert, item.rank) += item.pairs;
  for (const expert_export& x : exports) {
    const anchored_load& item = items[static_cast<std::size_t>(x.item)];
    load(item.expert, item.rank) -= x.pairs;
    load(item.expert, x.to) += x.pairs;
  }
}

/// Exports for the least peak that bisection from `least` upwards finds, to within least / 256; appended to
/// exports. Exports go to the most room, and where that fails to the least room
/// that suffices: neither order reaches every peak that the other does.
///   limit(rank, peak)   rank_limit, of at most peak pairs
/// Ensures   the peak found, at most max(least, the highest load); -1 when not even that is reached
/// Cost      O(log) runs of the oracle
template <class Limit>
std::int64_t least_peak(transient_storage& storage, std::int64_t least, const Limit& limit) {
  export_oracle& oracle = storage.oracle;
  auto &exports = storage.exports, &tried = storage.tried;
  const std::size_t before = exports.size();
  const auto reach = [&](std::int64_t peak) {
    const auto of_rank = [&](std::int64_t r) { return limit(r, peak); };
    for (const bool best_fit : {false, true}) {
      tried.clear();
      if (!oracle.run({0, 1, best_fit}, of_rank, tried)) continue;
      exports.resize(before);
      exports.insert(exports.end(), tried.begin(), tried.end());
      return true;
    }
    return false;
  };
  if (reach(least)) return least;
  std::int64_t low = least, high = oracle.highest();
  if (high <= low || !reach(high)) return -1;
  const std::int64_t close = std::max<std::int64_t>(1, least / 256);
  while (high - low > close) {
    const std::int64_t middle = low + (high - low) / 2;
    (reach(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace lrmoe::detail
