// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>

#include <lrmoe/placement/detail/expert_loads.hpp>
#include <lrmoe/placement/detail/replica_counts.hpp>
#include <lrmoe/placement/detail/slot_table.hpp>
#include <lrmoe/placement/planner.hpp>
#include <lrmoe/placement/token_split.hpp>

namespace lrmoe {

/// Every rank stores one R-th of each expert and rebuilds any S whole ones before use, so bytes do not depend on
/// which: a new layout in every call, from the sum of the last calls' counts.
///   candidates   copies in proportion to load: slots one by one to the highest L[e] / c[e], from one per node
///                on in steps of one per node; and, where E divides R S, the same number for all
///   placement    copies by descending L[e] / c[e], each to the least loaded rank with a free slot in the nodes
///                with the fewest copies of it
///   choice       the lower of  4 row_bytes sum over pairs of 1 / bandwidth(s, r) + pair_s x peak load
/// Pairs go evenly over the copies in their node, else over all.
/// Source    LAER-MoE, arXiv 2602.11686, and its released code
/// Deviates  No random candidates (the released run uses none). Whole numbers; ties: lowest id. The score
///           splits pairs as the run does. Nodes of any size.
struct laer {
  std::int64_t window = 5;  ///< calls whose counts are added up, at least 1

  void validate() const {
    require(window >= 1, "laer: window = ", window, " calls must be at least 1");
  }
  constexpr planner_attributes attributes() const {
    return {.name = "laer",
            .window = window,
            .optimizer = optimizer_place::sharded,
            .reduction = gradient_reduction::shard_owners,
            .weight_sends = 2};
  }

  void plan(const placement_request& request, placement_plan& to) const {
    request.validate();
    to.loads.clear();
    struct matrix_tag {};
    struct loads_tag {};
    struct count_tag {};
    const auto E = static_cast<std::size_t>(request.E);
    const auto loads = detail::scratch<loads_tag, std::int64_t>(E);
    const auto counts =
        detail::scratch<matrix_tag, std::int64_t>(static_cast<std::size_t>(request.R) * E);
    const auto copies = detail::scratch<count_tag, std::int64_t>(E);
    detail::sum_over_history(request, window, loads);
    detail::sum_matrices(request, window, counts);
    const std::int64_t slots = request.R * request.S;

    count_in_proportion(request, loads, copies);
    place(request, loads, copies, to.replicas);
    if (slots % request.E != 0) return;
    const double cost = cost_of(request, counts, to.replicas);
    std::fill(copies.begin(), copies.end(), slots / request.E);
    thread_local placement even;
    place(request, loads, copies, even);
    if (cost_of(request, counts, even) < cost)
      to.replicas.assign(request.R, request.S, request.E, even.expert_of_slot());
  }

  void split(const placement_request& request, const placement_plan& plan,
             std::span<index_type> split) const {
    split_in_node(plan.replicas, request.machine.ranks_per_node, request.source_counts, split);
  }

 private:
  static void count_in_proportion(const placement_request& request,
                                  std::span<const std::int64_t> loads,
                                  std::span<std::int64_t> copies) {
    const std::int64_t slots = request.R * request.S, nodes = request.nodes();
    const std::int64_t first = nodes * request.E <= slots ? nodes : 1;
    std::fill(copies.begin(), copies.end(), first);
    detail::replicate_hottest(loads, slots - first * request.E, copies,
                              [&](std::size_t e, std::int64_t left) -> std::int64_t {
                                if (copies[e] < nodes) return 1;
                                return nodes <= left ? nodes : 0;
                              });
  }

  static void place(const placement_request& request, std::span<const std::int64_t> loads,
                    std::span<const std::int64_t> copies, placement& to) {
    struct order_tag {};
    struct each_tag {};
    struct rank_tag {};
    struct node_tag {};
    const auto each = detail::scratch<each_tag, std::int64_t>(loads.size());
    for (std::size_t e = 0; e < each.size(); ++e) each[e] = detail::slot_load(loads[e], copies[e]);
    const auto order = detail::scratch<order_tag, index_type>(loads.size());
    detail::sort_descending<std::int64_t>(each, order);
    const auto load = detail::scratch<rank_tag, std::int64_t>(static_cast<std::size_t>(request.R));
    std::fill(load.begin(), load.end(), 0);
    const auto in_node =
        detail::scratch<node_tag, std::int64_t>(static_cast<std::size_t>(request.nodes()));
    detail::slot_table slots(request.R, request.S);
    for (const index_type expert : order) {
      const auto e = static_cast<std::size_t>(expert);
      std::fill(in_node.begin(), in_node.end(), 0);
      for (std::int64_t copy = 0; copy < copies[e]; ++copy) {
        const std::int64_t fewest = *std::min_element(in_node.begin(), in_node.end());
        std::int64_t best = -1, anywhere = -1;
        const auto lighter = [&](std::int64_t r, std::int64_t than) {
          return than < 0 ||
                 load[static_cast<std::size_t>(r)] < load[static_cast<std::size_t>(than)];
        };
        for (std::int64_t r = 0; r < request.R; ++r) {
          if (slots.free(r) == 0) continue;
          if (lighter(r, anywhere)) anywhere = r;
          const auto v = static_cast<std::size_t>(request.node_of(r));
          if (in_node[v] == fewest && lighter(r, best)) best = r;
        }
        if (best < 0) best = anywhere;
        slots.put(best, expert);
        load[static_cast<std::size_t>(best)] += each[e];
        ++in_node[static_cast<std::size_t>(request.node_of(best))];
      }
    }
    slots.write(request.E, to);
  }

  /// Of the history's calls together, with shares instead of whole pairs.
  static double cost_of(const placement_request& request, std::span<const std::int64_t> counts,
                        const placement& where) {
    struct load_tag {};
    const auto load = detail::scratch<load_tag, double>(static_cast<std::size_t>(request.R));
    std::fill(load.begin(), load.end(), 0.0);
    double inside = 0, across = 0;
    for (std::int64_t e = 0; e < request.E; ++e) {
      const auto holders = where.holders(e);
      const auto copies = where.copies().subspan(
          static_cast<std::size_t>(where.offsets()[static_cast<std::size_t>(e)]), holders.size());
      for (std::int64_t v = 0; v < request.nodes(); ++v) {
        const std::int64_t first = v * request.machine.ranks_per_node;
        const std::int64_t last = std::min(request.R, first + request.machine.ranks_per_node);
        std::int64_t in_node = 0, all = 0;
        for (std::size_t i = 0; i < holders.size(); ++i) {
          all += copies[i];
          if (request.node_of(holders[i]) == v) in_node += copies[i];
        }
        double node_pairs = 0;
        for (std::int64_t s = first; s < last; ++s)
          node_pairs += static_cast<double>(counts[static_cast<std::size_t>(s * request.E + e)]);
        for (std::size_t i = 0; i < holders.size(); ++i) {
          const bool here = request.node_of(holders[i]) == v;
          if (in_node > 0 && !here) continue;
          const double share =
              static_cast<double>(copies[i]) / static_cast<double>(in_node > 0 ? in_node : all);
          load[static_cast<std::size_t>(holders[i])] += share * node_pairs;
          const double own = here
                                 ? static_cast<double>(
                                       counts[static_cast<std::size_t>(holders[i] * request.E + e)])
                                 : 0.0;
          (here ? inside : across) += share * (node_pairs - own);
        }
      }
    }
    return 4.0 * static_cast<double>(request.costs.row_bytes) *
               (inside / request.machine.inside.bytes_per_s +
                across / request.machine.across.bytes_per_s) +
           request.costs.pair_s * *std::max_element(load.begin(), load.end());
  }
};

}  // namespace lrmoe
