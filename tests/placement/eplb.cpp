#include <lrmoe/placement/eplb.hpp>

#include "catch.hpp"
#include "requests.hpp"

using requests::counts_type;

TEST_CASE("copies go to the highest load per copy and are packed longest first", "[placement]") {
  requests::problem of(2, 2, 3);
  of.remember({9, 4, 2});
  of.step = 1;
  // One slot over: expert 0 has two copies of 4.5. Packed: 4.5 | 4.5, then 4 with the first, 2 with the other.
  CHECK(requests::run(lrmoe::eplb{}, of).slots() == counts_type{0, 1, 0, 2});
}

TEST_CASE("groups are packed onto nodes first", "[placement]") {
  requests::problem of(4, 2, 4);
  of.machine.ranks_per_node = 2;
  of.remember({1, 5, 2, 4});
  of.step = 1;
  // Node 0: loads 1 and 5, so 1 and 3 copies (1, 5/3 each). Node 1: 2 and 4; 4/1 is highest, then 2/1 and 4/2
  // are equal and the lower goes first.
  CHECK(requests::run(lrmoe::eplb{.groups = 2}, of).slots() == counts_type{1, 1, 0, 1, 2, 3, 2, 3});
}

TEST_CASE("between plans the placement stays", "[placement]") {
  requests::problem of(2, 2, 3);
  of.current = lrmoe::placement(2, 2, 3, {0, 1, 2, 1});
  of.remember({9, 4, 2});
  for (const std::uint64_t step : {0, 2, 15, 16, 18}) {
    of.step = step;
    CHECK(requests::run(lrmoe::eplb{}, of).slots() == counts_type{0, 1, 2, 1});
  }
  of.step = 17;
  CHECK(requests::run(lrmoe::eplb{}, of).plan.replicas.holders(0).size() == 2);
}
