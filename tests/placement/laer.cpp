#include <lrmoe/placement/laer.hpp>

#include "catch.hpp"
#include "requests.hpp"

using requests::counts_type;

TEST_CASE("each node gets a copy of each expert, and pairs stay in their node", "[placement]") {
  requests::problem of(4, 2, 4);
  of.machine.ranks_per_node = 2;
  of.remember({8, 4, 2, 2});
  of.source_counts[4] = 5;   // of rank 1, expert 0
  of.source_counts[12] = 3;  // of rank 3, expert 0
  const auto made = requests::run(lrmoe::laer{}, of);
  CHECK(made.slots() == counts_type{0, 3, 1, 2, 0, 3, 1, 2});
  CHECK(made.rank_loads() == std::vector<std::int64_t>{5, 0, 3, 0});
}

TEST_CASE("the cheaper of proportional and equal copies is taken", "[placement]") {
  requests::problem of(2, 2, 2);
  of.machine.ranks_per_node = 2;
  of.remember({9, 1});
  of.costs.pair_s = 1;
  // Proportional: expert 0 gets three of the slots, 3 pairs each: {0, 0} and {0, 1}, peak 6 to 4. Equal:
  // 4.5 + 0.5 on each rank.
  CHECK(requests::run(lrmoe::laer{}, of).slots() == counts_type{0, 1, 0, 1});
  of.remember({9, 0});
  // The sum of calls, 18 and 1, decides alike; the last call alone cannot gain from equal copies' 4.5.
  CHECK(requests::run(lrmoe::laer{}, of).slots() == counts_type{0, 1, 0, 1});
}
