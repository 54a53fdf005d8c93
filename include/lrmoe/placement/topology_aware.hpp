// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include <lrmoe/placement/detail/transient_plan.hpp>
#include <lrmoe/placement/planner.hpp>
#include <lrmoe/placement/token_split.hpp>

namespace lrmoe {

/// Transient copies from exact counts that first spare the links between nodes, then level loads within nodes:
///   1 node v gets a copy of e when that saves more bytes between nodes than it costs,
///       4 row_bytes x pairs of v's ranks for e  >  weight_bytes + gradient_bytes,
///     greatest gain first (ties: lowest node, expert), on its least loaded rank that has filled less than
///     half of its free slots so (rounded up: step 2 needs some); from then on all pairs of v's ranks for e stay in v
///   2 in each node, exports to free slots bring the peak of the node down, as in ultraep
/// Pairs go to their own rank, their own node, then elsewhere. Nodes do not help each other: a node of hot
/// experts stays hot where its links are worth more. With one node only step 2 is left.
/// Source    The name occurs in publications (TopoEP) without an algorithm; this one is LRMoE's own.
struct topology_aware {
  void validate() const {}
  constexpr planner_attributes attributes() const {
    return {.name = "topology",
            .exact = true,
            .weights = copy_route::by_node,
            .gradients = copy_route::by_node};
  }

  void plan(const placement_request& request, placement_plan& to) const {
    request.validate();
    auto& storage = detail::transient_storage::of_thread();
    detail::anchor_at_home(request, storage.items);
    detail::slot_table slots(request.R, request.S);
    slots.put_home(request.home);
    if (request.nodes() > 1) copy_to_nodes(request, slots, storage.items);
    for (std::int64_t v = 0; v < request.nodes(); ++v) level_node(request, v, slots, storage);
    detail::write_transient_plan(request, slots, storage.items, storage.exports, to);
  }

  void split(const placement_request& request, const placement_plan& plan,
             std::span<index_type> split) const {
    split_by_loads(plan.replicas, request.machine.ranks_per_node, plan.loads, request.source_counts,
                   split);
  }

 private:
  struct node_copy {
    std::int64_t gain;
    index_type node, expert, pairs;
    bool operator<(const node_copy& other) const {
      if (gain != other.gain) return gain > other.gain;
      return node != other.node ? node < other.node : expert < other.expert;
    }
  };

  /// Adds an item for each copy and takes its pairs from the item at home.
  static void copy_to_nodes(const placement_request& request, detail::slot_table& slots,
                            std::vector<detail::anchored_load>& items) {
    struct load_tag {};
    struct pairs_tag {};
    struct free_tag {};
    thread_local std::vector<node_copy> wanted;
    wanted.clear();
    const std::int64_t row = 4 * request.costs.row_bytes;
    const std::int64_t copy = request.costs.weight_bytes + request.costs.gradient_bytes;
    const auto pairs =
        detail::scratch<pairs_tag, std::int64_t>(static_cast<std::size_t>(request.E));
    const auto load = detail::scratch<load_tag, std::int64_t>(static_cast<std::size_t>(request.R));
    std::fill(load.begin(), load.end(), 0);
    for (const auto& item : items) load[static_cast<std::size_t>(item.rank)] += item.pairs;
    for (std::int64_t v = 0; v < request.nodes(); ++v) {
      std::fill(pairs.begin(), pairs.end(), 0);
      const std::int64_t first = v * request.machine.ranks_per_node;
      const std::int64_t last = std::min(request.R, first + request.machine.ranks_per_node);
      for (std::int64_t s = first; s < last; ++s)
        for (std::size_t e = 0; e < pairs.size(); ++e)
          pairs[e] += request.source_counts[static_cast<std::size_t>(s) * pairs.size() + e];
      for (std::size_t e = 0; e < pairs.size(); ++e) {
        const std::int64_t gain = row * pairs[e] - copy;
        if (gain > 0 && request.node_of(request.home[e]) != v)
          wanted.push_back({gain, static_cast<index_type>(v), static_cast<index_type>(e),
                            static_cast<index_type>(pairs[e])});
      }
    }
    std::sort(wanted.begin(), wanted.end());
    const auto kept_free =
        detail::scratch<free_tag, std::int64_t>(static_cast<std::size_t>(request.R));
    for (std::int64_t r = 0; r < request.R; ++r)
      kept_free[static_cast<std::size_t>(r)] = slots.free(r) / 2;
    for (const node_copy& one : wanted) {
      const std::int64_t first = one.node * request.machine.ranks_per_node;
      const std::int64_t last = std::min(request.R, first + request.machine.ranks_per_node);
      std::int64_t best = -1;
      for (std::int64_t r = first; r < last; ++r)
        if (slots.free(r) > kept_free[static_cast<std::size_t>(r)] &&
            (best < 0 || load[static_cast<std::size_t>(r)] < load[static_cast<std::size_t>(best)]))
          best = r;
      if (best < 0) continue;
      slots.put(best, one.expert);
      auto& at_home = items[static_cast<std::size_t>(one.expert)];
      at_home.pairs -= one.pairs;
      load[static_cast<std::size_t>(at_home.rank)] -= one.pairs;
      load[static_cast<std::size_t>(best)] += one.pairs;
      items.push_back({one.expert, static_cast<index_type>(best), one.pairs});
    }
  }

  static void level_node(const placement_request& request, std::int64_t v,
                         const detail::slot_table& slots, detail::transient_storage& storage) {
    thread_local std::vector<detail::anchored_load> mine;
    thread_local std::vector<index_type> number;
    mine.clear();
    number.clear();
    for (std::size_t i = 0; i < storage.items.size(); ++i) {
      if (request.node_of(storage.items[i].rank) != v) continue;
      mine.push_back(storage.items[i]);
      number.push_back(static_cast<index_type>(i));
    }
    const std::int64_t first = v * request.machine.ranks_per_node;
    auto& oracle = storage.oracle;
    oracle.set(first, std::min(request.R, first + request.machine.ranks_per_node), mine);
    const std::size_t before = storage.exports.size();
    const std::int64_t mean = oracle.mean_rounded_up();
    detail::least_peak(storage, mean + mean / 100, [&](std::int64_t r, std::int64_t peak) {
      return detail::rank_limit{peak, slots.free(r)};
    });
    for (std::size_t i = before; i < storage.exports.size(); ++i)
      storage.exports[i].item = number[static_cast<std::size_t>(storage.exports[i].item)];
  }
};

}  // namespace lrmoe
