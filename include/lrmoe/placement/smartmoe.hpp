// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>

#include <lrmoe/placement/detail/expert_loads.hpp>
#include <lrmoe/placement/detail/slot_table.hpp>
#include <lrmoe/placement/planner.hpp>
#include <lrmoe/placement/token_split.hpp>

namespace lrmoe {

/// Permutes experts over ranks every few calls: one copy each, no rank more than ceil(E / R) of them. Hottest
/// first, by the counts of recent calls, each expert goes to the rank with a free place and the least load so
/// far (lowest rank; its old one where that is as good). Adopted where the old peak is more than
/// `acceptance` times the new one. A single expert above the mean cannot be helped.
/// Source    SmartMoE, USENIX ATC 2023: the online part, greedy as in its released training code
/// Deviates  Optimizer state moves with its expert. Equal loads: lowest expert first.
struct smartmoe {
  std::int64_t interval = 10;  ///< calls between two looks, at least 1
  std::int64_t window = 2;     ///< calls whose counts are added up, at least 1
  double acceptance = 1.0;     ///< at least 1; more avoids moves that gain little

  void validate() const {
    require(interval >= 1, "smartmoe: interval = ", interval, " calls must be at least 1");
    require(window >= 1, "smartmoe: window = ", window, " calls must be at least 1");
    require(acceptance >= 1.0 && std::isfinite(acceptance), "smartmoe: acceptance = ", acceptance,
            " must be a number of at least 1: a new placement should not be worse");
  }
  constexpr planner_attributes attributes() const {
    return {.name = "smartmoe",
            .window = window,
            .optimizer = optimizer_place::with_expert,
            .reduction = gradient_reduction::all_reduce};
  }

  void plan(const placement_request& request, placement_plan& to) const {
    request.validate();
    to.loads.clear();
    detail::slot_table slots(request.R, request.S);
    const std::int64_t places = (request.E + request.R - 1) / request.R;  // at most S
    const bool known = detail::has_current(request) && request.current->replicas() == request.E;
    const bool look = request.step % static_cast<std::uint64_t>(interval) == 0 &&
                      detail::known_calls(request, window) > 0;
    if (known && !look) {
      to.replicas.assign(request.R, request.S, request.E, request.current->expert_of_slot());
      return;
    }
    struct loads_tag {};
    struct order_tag {};
    struct rank_tag {};
    const auto R = static_cast<std::size_t>(request.R), E = static_cast<std::size_t>(request.E);
    const auto loads = detail::scratch<loads_tag, std::int64_t>(E);
    detail::sum_over_history(request, window, loads);
    const auto order = detail::scratch<order_tag, index_type>(E);
    detail::sort_descending<std::int64_t>(loads, order);
    const auto of_rank = detail::scratch<rank_tag, std::int64_t>(2 * R);
    const auto old_load = of_rank.first(R), new_load = of_rank.last(R);
    std::fill(of_rank.begin(), of_rank.end(), 0);
    const auto old_rank = [&](std::size_t e) {
      return known ? request.current->holders(static_cast<std::int64_t>(e))[0] : request.home[e];
    };
    for (std::size_t e = 0; e < E; ++e) old_load[static_cast<std::size_t>(old_rank(e))] += loads[e];
    const auto has_place = [&](std::size_t r) {
      return request.S - slots.free(static_cast<std::int64_t>(r)) < places;
    };
    if (look) {
      for (const index_type expert : order) {
        const auto e = static_cast<std::size_t>(expert);
        std::size_t best = R;
        for (std::size_t r = 0; r < R; ++r)
          if (has_place(r) && (best == R || new_load[r] < new_load[best])) best = r;
        const auto old = static_cast<std::size_t>(old_rank(e));
        if (has_place(old) && new_load[old] == new_load[best]) best = old;
        new_load[best] += loads[e];
        slots.put(static_cast<std::int64_t>(best), expert);
      }
      const auto peak = [](std::span<const std::int64_t> of) {
        return static_cast<double>(*std::max_element(of.begin(), of.end()));
      };
      const bool better = peak(old_load) > acceptance * peak(new_load);
      if (known && !better) {
        to.replicas.assign(request.R, request.S, request.E, request.current->expert_of_slot());
        return;
      }
      if (better) {
        if (known) slots.keep_positions(*request.current);
        slots.write(request.E, to.replicas);
        return;
      }
    }
    slots = detail::slot_table(request.R, request.S);
    slots.put_home(request.home);
    slots.write(request.E, to.replicas);
  }

  void split(const placement_request& request, const placement_plan& plan,
             std::span<index_type> split) const {
    split_evenly(plan.replicas, request.source_counts, split);
  }
};

}  // namespace lrmoe
