// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <numeric>

#include <lrmoe/placement/detail/expert_loads.hpp>
#include <lrmoe/placement/detail/replica_counts.hpp>
#include <lrmoe/placement/detail/slot_table.hpp>
#include <lrmoe/placement/planner.hpp>
#include <lrmoe/placement/token_split.hpp>

namespace lrmoe {

/// A fixed number of copies from estimated loads, packed by longest processing time:
///   1 groups of experts are packed onto nodes, an equal number on each
///   2 in each node, its slots beyond one per expert go one by one to the highest L[e] / c[e]
///   3 copies, each with L[e] / c[e], are packed onto the node's ranks, S on each
/// A packer takes items by descending load and puts each into the least loaded bin with room (lowest bin).
/// Where groups cannot be dealt evenly to nodes, all ranks are one node. Pairs go evenly over copies.
/// Source    EPLB, the released code of DeepSeek
/// Deviates  The release leaves open when to plan and how to estimate: here every `interval` calls, from the
///           sum of the last `window`. Nothing is said of training: gradients are all-reduced among
///           holders, and a copy takes optimizer state along. Copies on one rank share their weights.
struct eplb {
  std::int64_t groups = 1;     ///< groups of experts that are chosen together, dividing E
  std::int64_t interval = 16;  ///< calls between two plans, at least 1
  std::int64_t window = 16;    ///< calls whose counts are added up, at least 1

  void validate() const {
    require(groups >= 1, "eplb: groups = ", groups, " must be at least 1");
    require(interval >= 1, "eplb: interval = ", interval, " calls must be at least 1");
    require(window >= 1, "eplb: window = ", window, " calls must be at least 1");
  }
  constexpr planner_attributes attributes() const {
    return {.name = "eplb",
            .window = window,
            .optimizer = optimizer_place::with_expert,
            .reduction = gradient_reduction::all_reduce};
  }

  void plan(const placement_request& request, placement_plan& to) const {
    request.validate();
    require(request.E % groups == 0, "eplb: E = ", request.E, " experts do not form ", groups,
            " equal groups: set groups to a divisor");
    to.loads.clear();
    const bool known = detail::known_calls(request, window) > 0;
    // The first call has no counts to plan on; the second has.
    const auto turn = static_cast<std::uint64_t>(interval);
    const bool look = request.step % turn == 1 % turn;
    if (detail::has_current(request) && !(known && look)) {
      to.replicas.assign(request.R, request.S, request.E, request.current->expert_of_slot());
      return;
    }
    struct loads_tag {};
    const auto loads =
        detail::scratch<loads_tag, std::int64_t>(static_cast<std::size_t>(request.E));
    detail::sum_over_history(request, window, loads);
    std::int64_t nodes = request.nodes(), of_nodes = groups;
    if (request.R % request.machine.ranks_per_node != 0 || groups % nodes != 0)
      nodes = of_nodes = 1;
    place(request, loads, nodes, of_nodes, to);
  }

  void split(const placement_request& request, const placement_plan& plan,
             std::span<index_type> split) const {
    split_evenly(plan.replicas, request.source_counts, split);
  }

 private:
  /// bin (items): equal numbers in each.
  static void pack(std::span<const std::int64_t> weights, std::int64_t bins,
                   std::span<index_type> bin) {
    struct order_tag {};
    struct bin_tag {};
    const auto room = static_cast<std::int64_t>(weights.size()) / bins;
    if (room == 1) {
      std::iota(bin.begin(), bin.end(), 0);
      return;
    }
    const auto order = detail::scratch<order_tag, index_type>(weights.size());
    detail::sort_descending<std::int64_t>(weights, order);
    const auto n = static_cast<std::size_t>(bins);
    const auto of_bin = detail::scratch<bin_tag, std::int64_t>(2 * n);
    const auto load = of_bin.first(n), used = of_bin.last(n);
    std::fill(of_bin.begin(), of_bin.end(), 0);
    for (const index_type item : order) {
      std::size_t best = n;
      for (std::size_t b = 0; b < n; ++b)
        if (used[b] < room && (best == n || load[b] < load[best])) best = b;
      load[best] += weights[static_cast<std::size_t>(item)];
      ++used[best];
      bin[static_cast<std::size_t>(item)] = static_cast<index_type>(best);
    }
  }

  static void place(const placement_request& request, std::span<const std::int64_t> loads,
                    std::int64_t nodes, std::int64_t groups, placement_plan& to) {
    struct group_tag {};
    struct node_tag {};
    struct mine_tag {};
    struct mine_loads_tag {};
    struct count_tag {};
    struct copy_tag {};
    struct weight_tag {};
    struct rank_tag {};
    const std::int64_t group_size = request.E / groups, ranks = request.R / nodes;
    const std::int64_t slots_of_node = ranks * request.S;
    const auto of_group =
        detail::scratch<group_tag, std::int64_t>(static_cast<std::size_t>(groups));
    std::fill(of_group.begin(), of_group.end(), 0);
    for (std::size_t e = 0; e < loads.size(); ++e)
      of_group[e / static_cast<std::size_t>(group_size)] += loads[e];
    const auto node = detail::scratch<node_tag, index_type>(static_cast<std::size_t>(groups));
    pack(of_group, nodes, node);
    const auto experts = static_cast<std::size_t>(request.E / nodes);
    const auto mine = detail::scratch<mine_tag, std::int64_t>(experts);
    const auto mine_loads = detail::scratch<mine_loads_tag, std::int64_t>(experts);
    const auto count = detail::scratch<count_tag, std::int64_t>(experts);
    const auto copies = static_cast<std::size_t>(slots_of_node);
    const auto copy = detail::scratch<copy_tag, std::int64_t>(copies);
    const auto weight = detail::scratch<weight_tag, std::int64_t>(copies);
    const auto rank = detail::scratch<rank_tag, index_type>(copies);
    detail::slot_table slots(request.R, request.S);
    for (std::int64_t v = 0; v < nodes; ++v) {
      std::size_t i = 0;
      for (std::int64_t e = 0; e < request.E; ++e)
        if (node[static_cast<std::size_t>(e / group_size)] == v) mine[i++] = e;
      for (i = 0; i < experts; ++i) mine_loads[i] = loads[static_cast<std::size_t>(mine[i])];
      std::fill(count.begin(), count.end(), 1);
      detail::replicate_hottest(mine_loads, slots_of_node - static_cast<std::int64_t>(experts),
                                count, [](std::size_t, std::int64_t) { return 1; });
      std::size_t c = 0;
      for (i = 0; i < experts; ++i)
        for (std::int64_t k = 0; k < count[i]; ++k, ++c) {
          copy[c] = mine[i];
          weight[c] = detail::slot_load(mine_loads[i], count[i]);
        }
      pack(weight, ranks, rank);
      for (c = 0; c < copies; ++c) slots.put(v * ranks + rank[c], copy[c]);
    }
    if (detail::has_current(request)) slots.keep_positions(*request.current);
    slots.write(request.E, to.replicas);
  }
};

}  // namespace lrmoe
