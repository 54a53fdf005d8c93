// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/placement/detail/slot_table.hpp>
#include <lrmoe/placement/planner.hpp>
#include <lrmoe/placement/token_split.hpp>

namespace lrmoe {

/// Every expert on its home rank, always: plain expert parallelism, what the others are compared with.
/// Nothing moves but rows of pairs. Needs as many slots as the rank with most experts owns.
/// Source    GShard, arXiv 2006.16668
struct static_ownership {
  void validate() const {}
  constexpr planner_attributes attributes() const { return {.name = "static"}; }

  void plan(const placement_request& request, placement_plan& to) const {
    request.validate();
    detail::slot_table slots(request.R, request.S);
    slots.put_home(request.home);
    slots.write(request.E, to.replicas);
    to.loads.clear();
  }
  void split(const placement_request& request, const placement_plan& plan,
             std::span<index_type> split) const {
    split_own_rank_or_home(plan.replicas, request.home, request.source_counts, split);
  }
};

}  // namespace lrmoe
