// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <limits>

#include <lrmoe/placement/detail/expert_loads.hpp>
#include <lrmoe/placement/detail/slot_table.hpp>
#include <lrmoe/placement/planner.hpp>
#include <lrmoe/placement/token_split.hpp>

namespace lrmoe {

/// Shadows: the hottest experts are copied to all ranks for one call, where their pairs then stay at their
/// sources. Of the shadow sets {the k hottest} the one that a cost model finds cheapest,
///   cost(k) = pair_s x peak load + 4 row_bytes / bandwidth x most rows that a rank receives
///           + k (weight_bytes + gradient_bytes) / bandwidth,
/// trying k = 1, 2, ... while cost(k) < cost(0). Never shadows the coldest expert. Without costs nothing is
/// shadowed.
/// Source    FasterMoE, PPoPP 2022, and its released policies.
/// Deviates  The released variants differ. Loads are counted by rank, shadows' pairs included (first
///           prototype); local pairs are no traffic, and a worse k does not end the scan (the variant
///           released with SmartMoE). A shadow costs a broadcast and a reduction. Slots limit k: every
///           other rank needs a free one. One bandwidth: across nodes where there are several.
struct fastermoe_shadowing {
  std::int64_t most = std::numeric_limits<std::int64_t>::max();  ///< shadows of one call

  void validate() const {
    require(most >= 0, "fastermoe_shadowing: most = ", most, " shadows must not be negative");
  }
  constexpr planner_attributes attributes() const {
    return {.name = "fastermoe",
            .exact = true,
            .weights = copy_route::chain,
            .gradients = copy_route::chain};
  }

  void plan(const placement_request& request, placement_plan& to) const {
    request.validate();
    struct loads_tag {};
    struct order_tag {};
    struct rank_tag {};
    const auto R = static_cast<std::size_t>(request.R), E = static_cast<std::size_t>(request.E);
    const auto loads = detail::scratch<loads_tag, std::int64_t>(E);
    detail::sum_over_sources(request, loads);
    const auto order = detail::scratch<order_tag, index_type>(E);
    detail::sort_descending<std::int64_t>(loads, order);
    const auto n = [&](std::size_t s, std::size_t e) { return request.source_counts[s * E + e]; };

    const auto of_rank = detail::scratch<rank_tag, std::int64_t>(2 * R);
    const auto run = of_rank.first(R), received = of_rank.last(R);
    std::fill(of_rank.begin(), of_rank.end(), 0);
    for (std::size_t e = 0; e < E; ++e) {
      const auto home = static_cast<std::size_t>(request.home[e]);
      run[home] += loads[e];
      received[home] += loads[e] - n(home, e);
    }
    const link_rate& link = request.nodes() > 1 ? request.machine.across : request.machine.inside;
    const auto& costs = request.costs;
    const double row_s = 4.0 * static_cast<double>(costs.row_bytes) / link.bytes_per_s;
    const double shadow_s =
        static_cast<double>(costs.weight_bytes + costs.gradient_bytes) / link.bytes_per_s;
    const auto cost = [&](std::size_t k) {
      return costs.pair_s * static_cast<double>(*std::max_element(run.begin(), run.end())) +
             row_s * static_cast<double>(*std::max_element(received.begin(), received.end())) +
             static_cast<double>(k) * shadow_s;
    };

    detail::slot_table slots(request.R, request.S);
    slots.put_home(request.home);
    const auto room = [&](std::size_t k) {  // for shadows of order[0 .. k)
      for (std::size_t r = 0; r < R; ++r) {
        std::int64_t others = 0;
        for (std::size_t i = 0; i < k; ++i)
          others += request.home[static_cast<std::size_t>(order[i])] != static_cast<index_type>(r);
        if (others > slots.free(static_cast<std::int64_t>(r))) return false;
      }
      return true;
    };
    const double none = cost(0);
    double best = none;
    std::size_t best_k = 0;
    for (std::size_t k = 1; k < E && static_cast<std::int64_t>(k) <= most && room(k); ++k) {
      const auto e = static_cast<std::size_t>(order[k - 1]);
      const auto home = static_cast<std::size_t>(request.home[e]);
      run[home] -= loads[e];
      received[home] -= loads[e] - n(home, e);
      for (std::size_t s = 0; s < R; ++s) run[s] += n(s, e);
      const double now = cost(k);
      if (now >= none) break;
      if (now < best) best = now, best_k = k;
    }
    for (std::size_t r = 0; r < R; ++r)
      for (std::size_t i = 0; i < best_k; ++i)
        if (request.home[static_cast<std::size_t>(order[i])] != static_cast<index_type>(r))
          slots.put(static_cast<std::int64_t>(r), order[i]);
    slots.write(request.E, to.replicas);
    to.loads.clear();
  }

  void split(const placement_request& request, const placement_plan& plan,
             std::span<index_type> split) const {
    split_own_rank_or_home(plan.replicas, request.home, request.source_counts, split);
  }
};

}  // namespace lrmoe
