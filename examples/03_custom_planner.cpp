// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A placement planner of one's own, compared with two of the library. Explained in docs/placement.md.
#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <random>
#include <span>
#include <vector>

#include <lrmoe/placement/home_ranks.hpp>
#include <lrmoe/placement/memory_balanced.hpp>
#include <lrmoe/placement/static_ownership.hpp>
#include <lrmoe/placement/token_split.hpp>
#include <lrmoe/placement/validate_plan.hpp>

/// Twins: every rank lends its last slot to the hottest expert of its neighbour, the rank before it. Half of
/// that expert's pairs go to each of the two. One copy a rank, one message each: simple, and enough where
/// hot ranks have cold neighbours.
struct neighbour_twins {
  void validate() const {}

  // Exact: plans on the counts of the call. What is left unsaid is the default: optimizer state stays at
  // home, copies get weights from there and send gradients back.
  constexpr lrmoe::planner_attributes attributes() const {
    return {.name = "twins", .exact = true};
  }

  void plan(const lrmoe::placement_request& request, lrmoe::placement_plan& to) const {
    request.validate();
    const std::int64_t R = request.R, S = request.S, E = request.E;
    std::vector<std::int64_t> L(static_cast<std::size_t>(E), 0);
    for (std::size_t i = 0; i < request.source_counts.size(); ++i)
      L[i % L.size()] += request.source_counts[i];

    std::vector<lrmoe::index_type> slots(static_cast<std::size_t>(R * S), lrmoe::no_expert);
    std::vector<std::int64_t> used(static_cast<std::size_t>(R), 0);
    std::vector<lrmoe::index_type> hottest(used.size(), lrmoe::no_expert);
    for (lrmoe::index_type e = 0; e < E; ++e) {
      const auto rank = static_cast<std::size_t>(request.home[static_cast<std::size_t>(e)]);
      lrmoe::require(used[rank] < S - 1, "twins: rank ", rank, " needs a free slot beside its ",
                     used[rank] + 1, " experts: give every rank more than S = ", S);
      slots[rank * static_cast<std::size_t>(S) + static_cast<std::size_t>(used[rank]++)] = e;
      auto& hot = hottest[rank];
      if (hot == lrmoe::no_expert ||
          L[static_cast<std::size_t>(e)] > L[static_cast<std::size_t>(hot)])
        hot = e;  // the lowest of equal ones: ranks must not disagree
    }
    for (std::int64_t r = 0; r < R && R > 1; ++r)
      slots[static_cast<std::size_t>((r + 1) % R * S + S - 1)] =
          hottest[static_cast<std::size_t>(r)];
    to.replicas.assign(R, S, E, slots);
    to.loads.clear();  // the split alone says who runs what
  }

  void split(const lrmoe::placement_request& request, const lrmoe::placement_plan& plan,
             std::span<lrmoe::index_type> split) const {
    lrmoe::split_evenly(plan.replicas, request.source_counts, split);
  }
};

// What the compiler can check; the laws beside the concept are the author's part, and validate(plan)'s.
static_assert(lrmoe::planner<neighbour_twins>);

namespace {

constexpr int R = 8, S = 5, E = 32;

/// Every source sends the more pairs to an expert the lower its number, with noise.
std::vector<lrmoe::index_type> skewed_counts() {
  std::mt19937 engine(1);
  std::vector<lrmoe::index_type> counts;
  for (int i = 0; i < R * E; ++i) {
    const double popularity = 4000 / (8.0 + i % E * 5 % E);
    counts.push_back(
        static_cast<lrmoe::index_type>(popularity * (1 + 0.2 * (engine() % 1000) / 1000)));
  }
  return counts;
}

template <lrmoe::planner Planner>
void show(const Planner& planner, const lrmoe::placement_request& request) {
  planner.validate();
  lrmoe::placement_plan plan;
  planner.plan(request, plan);
  const auto H = static_cast<std::size_t>(plan.replicas.replicas());
  std::vector<lrmoe::index_type> split(static_cast<std::size_t>(request.R) * H);
  planner.split(request, plan, split);
  lrmoe::validate(request, planner.attributes(), plan);
  lrmoe::validate_split(request, plan, split);

  std::vector<std::int64_t> loads(static_cast<std::size_t>(request.R), 0);
  std::int64_t total = 0;
  for (std::size_t i = 0; i < split.size(); ++i) {
    loads[static_cast<std::size_t>(plan.replicas.ranks()[i % H])] += split[i];
    total += split[i];
  }
  const double mean = static_cast<double>(total) / static_cast<double>(request.R);
  const double peak = static_cast<double>(*std::max_element(loads.begin(), loads.end()));
  std::cout << std::setw(8) << planner.attributes().name << std::setw(8) << H - E << std::setw(11)
            << std::fixed << std::setprecision(3) << peak / mean << '\n';
}

}  // namespace

int main() {
  const auto counts = skewed_counts();
  const auto home = lrmoe::home_ranks(R, E);
  lrmoe::placement_request request{.R = R, .S = S, .E = E, .source_counts = counts, .home = home};
  std::cout << "planner  copies  peak/mean\n";
  show(lrmoe::static_ownership{}, request);
  show(neighbour_twins{}, request);
  show(lrmoe::memory_balanced{}, request);
}
