// Requests to planners, with counts of many kinds, and plain-loop oracles of what plans do.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <lrmoe/placement/home_ranks.hpp>
#include <lrmoe/placement/planner.hpp>
#include <lrmoe/placement/validate_plan.hpp>

#include "fixture.hpp"

namespace requests {

using counts_type = std::vector<lrmoe::index_type>;

/// Owns what a placement_request refers to.
struct problem {
  std::int64_t R = 1, S = 1, E = 1;
  counts_type source_counts{};  // (R, E)
  counts_type home{};
  std::vector<std::int64_t> available_bytes{};
  lrmoe::placement_costs costs{};
  lrmoe::machine_rates machine{};
  std::uint64_t step = 0;
  lrmoe::load_history history{32};
  lrmoe::placement current{};

  problem(std::int64_t ranks, std::int64_t slots, std::int64_t experts)
      : R(ranks), S(slots), E(experts), home(lrmoe::home_ranks(ranks, experts)) {
    source_counts.assign(static_cast<std::size_t>(R * E), 0);
  }

  /// Refers to this object: keep it until the plan is made.
  lrmoe::placement_request request() const {
    return {.step = step,
            .R = R,
            .S = S,
            .E = E,
            .source_counts = source_counts,
            .history = &history,
            .home = home,
            .current = current.R() > 0 ? &current : nullptr,
            .available_bytes = available_bytes,
            .costs = costs,
            .machine = machine};
  }

  /// The last call's counts, all routed by rank 0.
  void remember(const counts_type& loads) {
    counts_type matrix(static_cast<std::size_t>(R * E), 0);
    std::copy(loads.begin(), loads.end(), matrix.begin());
    history.record(R, E, matrix);
  }
  /// All pairs routed by rank 0.
  void route(const counts_type& loads) {
    source_counts.assign(static_cast<std::size_t>(R * E), 0);
    std::copy(loads.begin(), loads.end(), source_counts.begin());
  }

  std::vector<std::int64_t> loads() const {
    std::vector<std::int64_t> result(static_cast<std::size_t>(E), 0);
    for (std::size_t i = 0; i < source_counts.size(); ++i)
      result[i % static_cast<std::size_t>(E)] += source_counts[i];
    return result;
  }
};

/// What a planner made of a request.
struct outcome {
  lrmoe::placement_plan plan;
  counts_type split;

  counts_type slots() const {
    const auto held = plan.replicas.expert_of_slot();
    return counts_type(held.begin(), held.end());
  }
  /// Pairs that every rank runs.
  std::vector<std::int64_t> rank_loads() const {
    const auto& where = plan.replicas;
    std::vector<std::int64_t> result(static_cast<std::size_t>(where.R()), 0);
    for (std::size_t i = 0; i < split.size(); ++i) {
      const auto h = i % static_cast<std::size_t>(where.replicas());
      result[static_cast<std::size_t>(where.ranks()[h])] += split[i];
    }
    return result;
  }
  std::int64_t peak() const {
    const auto loads = rank_loads();
    return *std::max_element(loads.begin(), loads.end());
  }
};

template <class Planner>
outcome run(const Planner& planner, const problem& of) {
  planner.validate();
  const auto request = of.request();
  outcome made;
  planner.plan(request, made.plan);
  // What is not written shows.
  made.split.assign(static_cast<std::size_t>(of.R * made.plan.replicas.replicas()), -77);
  planner.split(request, made.plan, made.split);
  lrmoe::validate(request, planner.attributes(), made.plan);
  lrmoe::validate_split(request, made.plan, made.split);
  return made;
}

/// Message of the argument_error that planning throws.
template <class Planner>
std::string refusal(const Planner& planner, const lrmoe::placement_request& request) {
  return fixture::refusal([&] {
    lrmoe::placement_plan plan;
    planner.plan(request, plan);
  });
}

inline const std::vector<std::string> patterns{"uniform", "zipf",       "one hot",
                                               "none",    "idle ranks", "few"};

/// n[s][e] of a pattern.
inline counts_type random_counts(fixture::random& draw, std::int64_t R, std::int64_t E,
                                 const std::string& pattern, std::int64_t pairs) {
  counts_type counts(static_cast<std::size_t>(R * E), 0);
  if (pattern == "none") return counts;
  std::vector<double> weights(static_cast<std::size_t>(E), 1.0);
  if (pattern == "zipf") {
    for (std::size_t e = 0; e < weights.size(); ++e)
      weights[e] = std::pow(static_cast<double>(e + 1), -draw.uniform(0.4, 1.6));
    for (std::size_t e = weights.size(); e > 1; --e)
      std::swap(
          weights[e - 1],
          weights[static_cast<std::size_t>(draw.integer(0, static_cast<std::int64_t>(e) - 1))]);
  }
  const auto hot = static_cast<std::size_t>(draw.integer(0, E - 1));
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::int64_t s = 0; s < R; ++s) {
    if (pattern == "idle ranks" && draw.integer(0, 1) == 0) continue;
    for (std::size_t e = 0; e < weights.size(); ++e) {
      auto& n = counts[static_cast<std::size_t>(s * E) + e];
      if (pattern == "one hot")
        n = static_cast<lrmoe::index_type>(e == hot ? pairs : 0);
      else if (pattern == "few")
        n = static_cast<lrmoe::index_type>(draw.integer(0, 2));
      else
        n = static_cast<lrmoe::index_type>(static_cast<double>(pairs) * weights[e] / sum *
                                           draw.uniform(0.6, 1.4));
    }
  }
  return counts;
}

/// Costs at which copies are worth their bytes now and then.
inline lrmoe::placement_costs some_costs() {
  return {.pair_s = 1e-7,
          .row_bytes = 4096,
          .weight_bytes = 1 << 20,
          .gradient_bytes = 1 << 21,
          .optimizer_bytes = 3 << 21,
          .pair_memory_bytes = 4096};
}

}  // namespace requests
