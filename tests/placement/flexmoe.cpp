#include <lrmoe/placement/flexmoe.hpp>

#include "catch.hpp"
#include "requests.hpp"

using requests::counts_type;

TEST_CASE("a slot of the coldest expert goes to the hottest where that pays", "[placement]") {
  requests::problem of(3, 1, 2);
  of.costs = {.pair_s = 1, .gradient_bytes = 100};
  // The third slot starts with expert 0.
  CHECK(requests::run(lrmoe::flexmoe{}, of).slots() == counts_type{0, 1, 0});
  of.remember({2, 10});
  // 1, 10, 1 on the ranks: 2.5 times the mean. With expert 1 on ranks 0 and 1: 5, 5, 2, which is still above
  // 1.2 times the mean, but no expert has a slot to spare.
  of.machine.across = {1000, 0};
  CHECK(requests::run(lrmoe::flexmoe{}, of).slots() == counts_type{1, 1, 0});
  // The sum of two gradients at 20 bytes/s takes the 5 s that it saves.
  of.machine.across = {20, 0};
  CHECK(requests::run(lrmoe::flexmoe{}, of).slots() == counts_type{0, 1, 0});
  // Imbalance within the threshold.
  of.machine.across = {1000, 0};
  CHECK(requests::run(lrmoe::flexmoe{.threshold = 2.5}, of).slots() == counts_type{0, 1, 0});
}

TEST_CASE("a migration brings copies together where that costs less", "[placement]") {
  requests::problem of(3, 2, 3);
  of.current = lrmoe::placement(3, 2, 3, {0, 1, 1, 2, 1, 2});
  of.costs = {.pair_s = 1, .gradient_bytes = 1};
  of.machine.across = {10, 0};
  of.remember({20, 9, 2});
  // Shares 20, 3, 1: loads 23, 4, 4. The coldest, 2, gives its slot on rank 1 to 0: 13, 13, 5.
  CHECK(requests::run(lrmoe::flexmoe{.steps = 1, .migrate = false}, of).slots() ==
        counts_type{0, 1, 1, 0, 1, 2});
  // Expert 1 is on all ranks. On two, with the same peak, it has less to reduce: rank 0 takes rank 2's 2.
  CHECK(requests::run(lrmoe::flexmoe{.steps = 1}, of).slots() == counts_type{0, 2, 1, 0, 1, 1});
}
