// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <span>

#include <lrmoe/placement/planner.hpp>

namespace lrmoe {

/// Checks a plan against the planners' laws.
/// Throws    argument_error naming the law that is broken: extents, a home rank without its expert where the
///           optimizer is at home, loads that are negative or not the expert's pairs
/// Cost      O(R E + H)
inline void validate(const placement_request& request, const planner_attributes& attributes,
                     const placement_plan& plan) {
  const placement& where = plan.replicas;
  require(where.R() == request.R && where.S() == request.S && where.E() == request.E, "plan of ",
          attributes.name, ": placement of R = ", where.R(), ", S = ", where.S(),
          ", E = ", where.E(), " for a request of R = ", request.R, ", S = ", request.S,
          ", E = ", request.E);
  if (attributes.optimizer == optimizer_place::at_home) {
    for (std::int64_t e = 0; e < request.E; ++e) {
      const index_type home = request.home[static_cast<std::size_t>(e)];
      require(where.find(e, home) >= 0, "plan of ", attributes.name, ": home rank ", home,
              " holds optimizer state, but no copy, of expert ", e);
    }
  }
  if (plan.loads.empty()) return;
  require(plan.loads.size() == static_cast<std::size_t>(where.replicas()), "plan of ",
          attributes.name, ": ", plan.loads.size(), " loads for H = ", where.replicas(),
          " replicas");
  for (std::int64_t e = 0; e < request.E; ++e) {
    std::int64_t pairs = 0, planned = 0;
    for (std::int64_t s = 0; s < request.R; ++s)
      pairs += request.source_counts[static_cast<std::size_t>(s * request.E + e)];
    for (index_type h = where.offsets()[static_cast<std::size_t>(e)];
         h < where.offsets()[static_cast<std::size_t>(e) + 1]; ++h) {
      const index_type load = plan.loads[static_cast<std::size_t>(h)];
      require(load >= 0, "plan of ", attributes.name, ": replica ", h, " of expert ", e,
              " has the load ", load);
      planned += load;
    }
    require(planned == pairs, "plan of ", attributes.name, ": replicas of expert ", e, " run ",
            planned, " pairs, but sources have ", pairs);
  }
}

/// Checks a split (R, H) against the planners' laws.
/// Throws    argument_error naming the source and expert whose pairs are not conserved, or the replica that
///           misses its load by a pair a source or more
/// Cost      O(R (E + H))
inline void validate_split(const placement_request& request, const placement_plan& plan,
                           std::span<const index_type> split) {
  const placement& where = plan.replicas;
  const std::int64_t H = where.replicas();
  require(split.size() == static_cast<std::size_t>(request.R * H), "split: ", split.size(),
          " numbers for R = ", request.R, " and H = ", H, ": pass (R, H)");
  for (std::int64_t s = 0; s < request.R; ++s) {
    for (std::int64_t e = 0; e < request.E; ++e) {
      std::int64_t shared = 0;
      for (index_type h = where.offsets()[static_cast<std::size_t>(e)];
           h < where.offsets()[static_cast<std::size_t>(e) + 1]; ++h) {
        const index_type x = split[static_cast<std::size_t>(s * H + h)];
        require(x >= 0, "split: source ", s, " gives ", x, " pairs to replica ", h);
        shared += x;
      }
      const index_type n = request.source_counts[static_cast<std::size_t>(s * request.E + e)];
      require(shared == n, "split: source ", s, " has ", n, " pairs of expert ", e, ", but ",
              shared, " are given to its replicas");
    }
  }
  for (std::size_t h = 0; h < plan.loads.size(); ++h) {
    std::int64_t run = 0;
    for (std::int64_t s = 0; s < request.R; ++s) run += split[static_cast<std::size_t>(s * H) + h];
    require(run - plan.loads[h] < request.R && plan.loads[h] - run < request.R, "split: replica ",
            h, " runs ", run, " pairs, but its load is ", plan.loads[h]);
  }
}

}  // namespace lrmoe
