#include <functional>

#include <lrmoe/placement/memory_balanced.hpp>
#include <lrmoe/placement/peak_floor.hpp>
#include <lrmoe/placement/ultraep.hpp>

#include "catch.hpp"
#include "requests.hpp"

using requests::counts_type;

namespace {

requests::problem three_ranks_one_hot() {
  requests::problem of(3, 2, 3);
  of.route({90, 6, 24});
  return of;
}

/// Least peak of splitting experts over the ranks that hold them: by Hall's theorem the largest, over sets of
/// ranks, of the pairs that only these can run over their number.
std::int64_t least_peak(std::int64_t R, const std::vector<std::int64_t>& loads,
                        const std::vector<unsigned>& holders) {
  std::int64_t peak = 0;
  for (unsigned set = 1; set < 1U << R; ++set) {
    std::int64_t pairs = 0;
    for (std::size_t e = 0; e < loads.size(); ++e)
      if ((holders[e] & ~set) == 0) pairs += loads[e];
    const auto ranks = static_cast<std::int64_t>(__builtin_popcount(set));
    peak = std::max(peak, (pairs + ranks - 1) / ranks);
  }
  return peak;
}

/// Least peak over all ways to fill the free slots, one or two a rank.
std::int64_t best_peak(const requests::problem& of, const std::vector<std::int64_t>& free) {
  std::vector<unsigned> holders;
  for (const auto rank : of.home) holders.push_back(1U << rank);
  const auto loads = of.loads();
  std::int64_t best = least_peak(of.R, loads, holders);
  const std::function<void(std::int64_t, std::int64_t)> fill = [&](std::int64_t rank,
                                                                   std::int64_t left) {
    if (rank == of.R) {
      best = std::min(best, least_peak(of.R, loads, holders));
      return;
    }
    if (left == 0) {
      fill(rank + 1, rank + 1 < of.R ? free[static_cast<std::size_t>(rank) + 1] : 0);
      return;
    }
    for (auto& held : holders) {
      const unsigned before = held;
      held |= 1U << rank;
      fill(rank, left - 1);
      held = before;
    }
  };
  fill(0, free[0]);
  return best;
}

}  // namespace

TEST_CASE("the default planner reaches the mean load where slots allow", "[placement]") {
  const auto made = requests::run(lrmoe::memory_balanced{}, three_ranks_one_hot());
  CHECK(made.slots() == counts_type{0, lrmoe::no_expert, 1, 0, 2, 0});
  CHECK(made.plan.loads == counts_type{40, 34, 16, 6, 24});
  // A peak of 60 needs one copy: 30 pairs to rank 1.
  CHECK(requests::run(lrmoe::memory_balanced{.slack = 0.5}, three_ranks_one_hot()).plan.loads ==
        counts_type{60, 30, 6, 24});
}

TEST_CASE("memory bounds pairs and copies of every rank", "[placement]") {
  auto of = three_ranks_one_hot();
  of.costs = {.weight_bytes = 4, .gradient_bytes = 6, .pair_memory_bytes = 1};
  // Rank 1 holds 6 pairs, and a copy of 10 bytes and 4 more pairs; at 55, rank 2 takes 31 of expert 0.
  of.available_bytes = {1000, 20, 1000};
  CHECK(requests::run(lrmoe::memory_balanced{}, of).plan.loads == counts_type{55, 4, 31, 6, 24});
  // Rank 0 has memory for 30 pairs: the others run 60 of its 90, 45 each.
  of.available_bytes = {30, 1000, 1000};
  const auto made = requests::run(lrmoe::memory_balanced{}, of);
  CHECK(made.rank_loads() == std::vector<std::int64_t>{30, 45, 45});
  // It cannot be helped, but is relieved.
  of.available_bytes = {30, 25, 1000};
  const auto crowded = requests::run(lrmoe::memory_balanced{}, of).rank_loads();
  CHECK(crowded[0] < 90);
  CHECK(crowded[1] <= 15);
}

TEST_CASE("a copy is made where its bytes take less time than the pairs it spares", "[placement]") {
  auto of = three_ranks_one_hot();
  of.costs = {.pair_s = 1, .weight_bytes = 10, .gradient_bytes = 10};
  // Two copies leave rank 0: 40 s for the links.
  of.machine.across = {1, 0};
  of.machine.ranks_per_node = 1;
  const auto dear = requests::run(lrmoe::memory_balanced{}, of);
  CHECK(dear.plan.replicas.replicas() == 4);
  CHECK(dear.peak() + 20 < 40 + 40);
  of.machine.across = {0.1, 0};
  CHECK(requests::run(lrmoe::memory_balanced{}, of).plan.replicas.replicas() == 3);
  of.machine.across = {100, 0};
  CHECK(requests::run(lrmoe::memory_balanced{}, of).peak() == 40);
}

TEST_CASE("the peak lies between the best of all placements and little more", "[placement]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  int cases = 0, optimal = 0;
  double worst = 1, sum = 0;
  for (int round = 0; round < 400; ++round) {
    const std::int64_t R = draw.integer(2, 4), E = draw.integer(1, 6);
    requests::problem of(R, (E + R - 1) / R + draw.integer(0, R == 4 ? 1 : 2), E);
    of.source_counts = requests::random_counts(draw, R, E, "zipf", draw.integer(5, 200));
    std::vector<std::int64_t> free(static_cast<std::size_t>(R), of.S);
    for (const auto rank : of.home) --free[static_cast<std::size_t>(rank)];
    const std::int64_t best = best_peak(of, free);
    const std::int64_t peak = requests::run(lrmoe::memory_balanced{}, of).peak();
    CHECK(peak >= best);
    CHECK(lrmoe::transient_floor(R, of.loads(), of.home, free) <= best);
    if (best == 0) continue;
    const double ratio = static_cast<double>(peak) / static_cast<double>(best);
    ++cases;
    optimal += peak == best ? 1 : 0;
    sum += ratio;
    worst = std::max(worst, ratio);
  }
  CAPTURE(cases, optimal, worst, sum / cases);
  CHECK(optimal > cases / 2);
  CHECK(sum / cases < 1.05);
  CHECK(worst < 1.7);
}

TEST_CASE("the default planner's peak is no higher than that of ultraep's search", "[placement]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (int round = 0; round < 60; ++round) {
    requests::problem of(32, draw.integer(3, 5), 64);
    of.source_counts = requests::random_counts(draw, 32, 64, "zipf", draw.integer(100, 20000));
    const auto mine = requests::run(lrmoe::memory_balanced{}, of);
    const auto theirs = requests::run(lrmoe::ultraep{.fast = false, .least_export = 1}, of);
    const auto highest = [](const requests::outcome& made) {
      std::vector<std::int64_t> loads(32, 0);
      for (std::size_t h = 0; h < made.plan.loads.size(); ++h)
        loads[static_cast<std::size_t>(made.plan.replicas.ranks()[h])] += made.plan.loads[h];
      return static_cast<double>(*std::max_element(loads.begin(), loads.end()));
    };
    CHECK(highest(mine) <= highest(theirs) * 1.02);
  }
}
