#include <lrmoe/placement/topology_aware.hpp>

#include "catch.hpp"
#include "requests.hpp"

using requests::counts_type;

TEST_CASE("a node gets a copy where that spares its link, and levels itself", "[placement]") {
  requests::problem of(4, 1, 2);
  of.machine.ranks_per_node = 2;
  of.costs = {.row_bytes = 1, .weight_bytes = 10, .gradient_bytes = 10};
  REQUIRE(of.home == counts_type{0, 2});
  // Node 1 has 8 pairs of expert 0: 32 bytes against 20 of a copy. Node 0 has 3 of expert 1: 12 bytes.
  of.source_counts = {6, 2, 4, 1, 4, 3, 4, 3};
  const auto made = requests::run(lrmoe::topology_aware{}, of);
  CHECK(made.slots() == counts_type{0, 0, 1, 0});
  // Node 0 shares its 10 pairs of expert 0; in node 1 neither rank can help, with 9 and 8.
  CHECK(made.plan.loads == counts_type{5, 5, 8, 9});
  CHECK(made.split == counts_type{5, 1, 0, 2, 0, 4, 0, 1, 0, 0, 4, 3, 0, 0, 4, 3});
}

TEST_CASE("copies that cost more than they spare are not made", "[placement]") {
  requests::problem of(4, 1, 2);
  of.machine.ranks_per_node = 2;
  of.costs = {.row_bytes = 1, .weight_bytes = 16, .gradient_bytes = 16};
  of.source_counts = {0, 0, 0, 0, 4, 0, 4, 0};
  CHECK(requests::run(lrmoe::topology_aware{}, of).slots() ==
        counts_type{0, 0, 1, lrmoe::no_expert});
}

TEST_CASE("copies for nodes leave slots for levelling", "[placement]") {
  // Node 1 wants both experts of node 0; each of its ranks has two free slots and gives one.
  requests::problem of(4, 2, 2);
  of.home = {0, 0};
  of.machine.ranks_per_node = 2;
  of.costs = {.row_bytes = 1, .weight_bytes = 1, .gradient_bytes = 1};
  of.source_counts = {0, 0, 0, 0, 50, 20, 0, 0};
  const auto made = requests::run(lrmoe::topology_aware{}, of);
  CHECK(made.rank_loads() == std::vector<std::int64_t>{0, 0, 35, 35});
}
