#include <lrmoe/placement/ultraep.hpp>

#include "catch.hpp"
#include "requests.hpp"

using requests::counts_type;

TEST_CASE("copies carry what exceeds the peak, and pairs stay where they can", "[placement]") {
  requests::problem of(2, 2, 2);
  of.source_counts = {70, 10, 30, 10};
  // Loads 100 and 20, mean 60, peak 61: 39 of expert 0 go to rank 1, which has 30 of its own.
  const auto made = requests::run(lrmoe::ultraep{}, of);
  CHECK(made.slots() == counts_type{0, lrmoe::no_expert, 1, 0});
  CHECK(made.plan.loads == counts_type{61, 39, 20});
  CHECK(made.split == counts_type{61, 9, 10, 0, 30, 10});
}

TEST_CASE("the search needs exports of some size", "[placement]") {
  requests::problem of(2, 2, 2);
  of.route({100, 20});
  // Exactly the mean, in one export of 40 pairs.
  CHECK(requests::run(lrmoe::ultraep{.fast = false, .least_export = 40}, of).plan.loads ==
        counts_type{60, 40, 20});
  // 41 are not asked for at any peak above, and the mean needs 40.
  CHECK(requests::run(lrmoe::ultraep{.fast = false, .least_export = 41}, of).plan.loads ==
        counts_type{100, 20});
}

TEST_CASE("ranks of different domains do not help each other", "[placement]") {
  requests::problem of(4, 2, 4);
  of.route({100, 20, 6, 2});
  const auto made = requests::run(lrmoe::ultraep{.domain = 2}, of);
  CHECK(made.rank_loads() == std::vector<std::int64_t>{61, 59, 5, 3});
  CHECK(made.plan.replicas.find(0, 2) == -1);
  CHECK(made.plan.replicas.find(2, 3) >= 0);
}

TEST_CASE("one pair of an expert stays at home", "[placement]") {
  requests::problem of(2, 3, 3);
  of.home = {0, 0, 1};
  of.route({1, 1, 0});
  CHECK(requests::run(lrmoe::ultraep{}, of).plan.replicas.replicas() == 3);
}
