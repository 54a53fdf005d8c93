// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>

#include <lrmoe/placement/detail/expert_loads.hpp>
#include <lrmoe/placement/detail/slot_table.hpp>
#include <lrmoe/placement/planner.hpp>
#include <lrmoe/placement/token_split.hpp>

namespace lrmoe {

/// Slots in proportion to the popularity of the last call, anew in each: optimizer state is cut over all ranks
/// and never moves, and since it must send weights to all slots anyway, which expert a slot gets is free.
///   goal[e] = R S L[e] / sum L,  c[e] = max(1, floor(goal[e]))
/// Then slots are taken from the experts that are most above their goal, or given to those most below, until
/// all R S are used, and dealt out in the order of experts. Pairs go evenly over an expert's slots.
/// Source    SYMI, arXiv 2504.19925, appendix A.3
/// Deviates  No pair is dropped. Goals in whole numbers, times sum L; ties: lowest expert. Without a call
///           with pairs, all experts count as equal. Copies on one rank share their weights.
struct symi {
  void validate() const {}
  constexpr planner_attributes attributes() const {
    return {.name = "symi",
            .window = 1,
            .optimizer = optimizer_place::sharded,
            .reduction = gradient_reduction::all_reduce};
  }

  void plan(const placement_request& request, placement_plan& to) const {
    request.validate();
    struct loads_tag {};
    struct above_tag {};
    struct slots_tag {};
    const auto E = static_cast<std::size_t>(request.E);
    const std::int64_t all_slots = request.R * request.S;
    const auto loads = detail::scratch<loads_tag, std::int64_t>(E);
    detail::sum_over_history(request, 1, loads);
    std::int64_t total = 0;
    for (const std::int64_t L : loads) total += L;
    const auto count = detail::scratch<slots_tag, std::int64_t>(E);
    const auto above = detail::scratch<above_tag, std::int64_t>(E);  // (c - goal) total
    std::int64_t used = 0;
    for (std::size_t e = 0; e < E; ++e) {
      count[e] = std::max<std::int64_t>(1, loads[e] * all_slots / total);
      above[e] = count[e] * total - loads[e] * all_slots;
      used += count[e];
    }
    while (used > all_slots) {
      const auto e =
          static_cast<std::size_t>(std::max_element(above.begin(), above.end()) - above.begin());
      if (count[e] > 1) --count[e], --used;
      above[e] -= total;  // also where the last slot stays, so that the next expert has its turn
    }
    while (used < all_slots) {
      const auto e =
          static_cast<std::size_t>(std::min_element(above.begin(), above.end()) - above.begin());
      ++count[e], ++used;
      above[e] += total;
    }
    detail::slot_table slots(request.R, request.S);
    std::int64_t slot = 0;
    for (std::size_t e = 0; e < E; ++e)
      for (std::int64_t i = 0; i < count[e]; ++i, ++slot)
        slots.put(slot / request.S, static_cast<std::int64_t>(e));
    slots.write(request.E, to.replicas);
    to.loads.clear();
  }

  void split(const placement_request& request, const placement_plan& plan,
             std::span<index_type> split) const {
    split_evenly(plan.replicas, request.source_counts, split);
  }
};

}  // namespace lrmoe
