#include <lrmoe/placement/smartmoe.hpp>

#include "catch.hpp"
#include "requests.hpp"

using requests::counts_type;

TEST_CASE("experts are permuted hottest first onto the least loaded rank", "[placement]") {
  requests::problem of(2, 2, 4);
  of.current = lrmoe::placement(2, 2, 4, {0, 1, 2, 3});
  of.remember({6, 3, 2, 1});
  of.remember({4, 5, 1, 0});
  // Loads of both calls: 10, 8, 3, 1. Peak 18 at home, 11 with {0, 3} and {1, 2}. What stays keeps its slot.
  of.step = 10;
  CHECK(requests::run(lrmoe::smartmoe{}, of).slots() == counts_type{0, 3, 2, 1});
  // 18 is not twice 11.
  CHECK(requests::run(lrmoe::smartmoe{.acceptance = 2}, of).slots() == counts_type{0, 1, 2, 3});
  // The last call alone: 4, 5, 1, 0. 1 and 3 against 0 and 2.
  CHECK(requests::run(lrmoe::smartmoe{.window = 1}, of).slots() == counts_type{3, 1, 2, 0});
  of.step = 11;
  CHECK(requests::run(lrmoe::smartmoe{}, of).slots() == counts_type{0, 1, 2, 3});
}
