#include <lrmoe/placement/all_planners.hpp>
#include <lrmoe/placement/movement.hpp>

#include "catch.hpp"
#include "requests.hpp"

using lrmoe::moved_state;
using requests::counts_type;

namespace {

/// Three ranks of two nodes {0, 1} and {2}; W = 30, G = 60, O = 100 bytes; homes 0, 1, 2.
requests::problem three_ranks() {
  requests::problem of(3, 2, 3);
  of.costs = {.weight_bytes = 30, .gradient_bytes = 60, .optimizer_bytes = 100};
  of.machine.ranks_per_node = 2;
  return of;
}

lrmoe::movement counted(const requests::problem& of, const lrmoe::planner_attributes& attributes,
                        const lrmoe::placement& next) {
  lrmoe::movement result;
  result.count(of.request(), attributes, next);
  return result;
}

/// Expert 0 on all ranks.
const lrmoe::placement spread(3, 2, 3, {0, -1, 1, 0, 2, 0});

}  // namespace

TEST_CASE("copies get weights from home and send gradients there", "[placement]") {
  const auto of = three_ranks();
  auto attributes = lrmoe::memory_balanced{}.attributes();
  attributes.weight_sends = 2;
  const auto bytes = counted(of, attributes, spread);
  CHECK(bytes.of(moved_state::weights, 0).sent_inside == 60);
  CHECK(bytes.of(moved_state::weights, 0).sent_across == 60);
  CHECK(bytes.of(moved_state::weights, 2).received_across == 60);
  CHECK(bytes.of(moved_state::gradients, 0).received() == 120);
  CHECK(bytes.of(moved_state::gradients, 1).sent_inside == 60);
  CHECK(bytes.total(moved_state::optimizer) == 0);
  CHECK(bytes.total() == 240);
}

TEST_CASE("along a chain no rank sends or receives an expert twice", "[placement]") {
  const auto bytes = counted(three_ranks(), lrmoe::fastermoe_shadowing{}.attributes(), spread);
  for (int r = 0; r < 3; ++r) {
    CHECK(bytes.of(moved_state::weights, r).sent() == (r < 2 ? 30 : 0));
    CHECK(bytes.of(moved_state::weights, r).received() == (r > 0 ? 30 : 0));
    CHECK(bytes.of(moved_state::gradients, r).received() == (r < 2 ? 60 : 0));
  }
}

TEST_CASE("in two stages home sends to about the root of all copies", "[placement]") {
  requests::problem of(10, 1, 1);
  of.home = {4};
  of.costs.weight_bytes = 7;
  const lrmoe::placement everywhere(10, 1, 1, counts_type(10, 0));
  const auto bytes = counted(of, lrmoe::ultraep{}.attributes(), everywhere);
  CHECK(bytes.of(moved_state::weights, 4).sent() == 3 * 14);
  for (int r = 0; r < 10; ++r) {
    CHECK(bytes.of(moved_state::weights, r).received() == (r == 4 ? 0 : 14));
    CHECK(bytes.of(moved_state::weights, r).sent() <= 3 * 14);
  }
  CHECK(bytes.total(moved_state::weights) == 9 * 14);
}

TEST_CASE("by node, links between nodes carry an expert once for each node", "[placement]") {
  requests::problem of(7, 1, 1);
  of.home = {2};
  of.machine.ranks_per_node = 3;
  of.costs = {.weight_bytes = 5, .gradient_bytes = 7};
  const lrmoe::placement everywhere(7, 1, 1, counts_type(7, 0));
  // Nodes {0, 1, 2}, {3, 4, 5}, {6}: 2 sends to 0, 1, 3 and 6; 3 passes on to 4 and 5.
  const auto bytes = counted(of, lrmoe::topology_aware{}.attributes(), everywhere);
  CHECK(bytes.of(moved_state::weights, 2).sent_inside == 10);
  CHECK(bytes.of(moved_state::weights, 2).sent_across == 10);
  CHECK(bytes.of(moved_state::weights, 3).sent_inside == 10);
  CHECK(bytes.of(moved_state::gradients, 3).received_inside == 14);
  CHECK(bytes.of(moved_state::gradients, 2).received_across == 14);
  CHECK(bytes.total(moved_state::weights) == 30);
  CHECK(bytes.total(moved_state::gradients) == 42);
}

TEST_CASE("new copies take optimizer state along where it lives with them", "[placement]") {
  auto of = three_ranks();
  const auto attributes = lrmoe::flexmoe{}.attributes();
  CHECK(counted(of, attributes, spread).total(moved_state::weights) == 0);
  of.current = lrmoe::placement(3, 2, 3, {0, -1, 1, -1, 2, 0});
  const auto bytes = counted(of, attributes, spread);
  // Rank 1 gets expert 0 from its node's rank 0. Its three holders all-reduce 60 bytes.
  CHECK(bytes.of(moved_state::weights, 0).sent_inside == 30);
  CHECK(bytes.of(moved_state::optimizer, 0).sent_inside == 100);
  CHECK(bytes.total(moved_state::optimizer) == 100);
  for (int r = 0; r < 3; ++r) {
    CHECK(bytes.of(moved_state::gradients, r).sent() == 2 * 2 * 60 / 3);
    CHECK(bytes.of(moved_state::gradients, r).received() == 2 * 2 * 60 / 3);
  }
}

TEST_CASE("with a sharded optimizer bytes do not depend on what a slot holds", "[placement]") {
  const auto of = three_ranks();
  const auto attributes = lrmoe::laer{}.attributes();
  const lrmoe::placement one(3, 2, 3, {0, 1, 1, 2, 2, 0}), other(3, 2, 3, {0, 1, 0, 1, 0, 2});
  for (const auto& next : {one, other}) {
    const auto bytes = counted(of, attributes, next);
    for (int r = 0; r < 3; ++r) {
      // Two experts, two thirds of each from elsewhere, twice.
      CHECK(bytes.of(moved_state::weights, r).received() == 80);
      CHECK(bytes.of(moved_state::gradients, r).sent() == 80);
    }
    CHECK(bytes.total(moved_state::optimizer) == 0);
  }
}

TEST_CASE("owners fetch their part of gradients that copies have reduced", "[placement]") {
  const auto of = three_ranks();
  const lrmoe::placement single(3, 2, 3, {0, -1, 1, -1, 2, -1});
  const auto bytes = counted(of, lrmoe::symi{}.attributes(), single);
  // Nothing to reduce; each holder sends a third to both others.
  for (int r = 0; r < 3; ++r) {
    CHECK(bytes.of(moved_state::gradients, r).sent() == 40);
    CHECK(bytes.of(moved_state::gradients, r).received() == 40);
    CHECK(bytes.of(moved_state::weights, r).received() == 20);
  }
}

TEST_CASE("what is sent is received, and every copy gets all of its weights", "[placement]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (const auto& planner : lrmoe::all_planners()) {
    INFO(planner.attributes().name);
    for (int round = 0; round < 20; ++round) {
      const std::int64_t R = draw.integer(1, 9), E = draw.integer(1, 20);
      requests::problem of(R, (E + R - 1) / R + draw.integer(0, 2), E);
      of.costs = {.pair_s = 1,
                  .row_bytes = 1,
                  .weight_bytes = draw.integer(1, 100),
                  .gradient_bytes = draw.integer(1, 100),
                  .optimizer_bytes = draw.integer(1, 100)};
      of.machine.ranks_per_node = draw.integer(1, 3);
      of.history.record(R, E, requests::random_counts(draw, R, E, "zipf", 300));
      of.step = 1;
      of.current = requests::run(lrmoe::static_ownership{}, of).plan.replicas;
      of.source_counts = requests::random_counts(draw, R, E, "zipf", 300);
      const auto next = requests::run(planner, of).plan.replicas;
      const auto attributes = planner.attributes();
      const auto bytes = counted(of, attributes, next);
      for (const auto what :
           {moved_state::weights, moved_state::gradients, moved_state::optimizer}) {
        std::int64_t sent = 0, received = 0;
        for (std::int64_t r = 0; r < R; ++r) {
          sent += bytes.of(what, r).sent();
          received += bytes.of(what, r).received();
        }
        CHECK(sent == received);
        CHECK(sent == bytes.total(what));
      }
      std::int64_t copies = 0;  // that are not where their expert is at home or was before
      for (std::int64_t h = 0; h < next.replicas(); ++h) {
        const auto e = next.experts()[static_cast<std::size_t>(h)];
        copies += next.ranks()[static_cast<std::size_t>(h)] != of.home[static_cast<std::size_t>(e)];
      }
      if (attributes.optimizer != lrmoe::optimizer_place::sharded) {
        CHECK(bytes.total(moved_state::weights) ==
              copies * of.costs.weight_bytes * attributes.weight_sends);
      }
    }
  }
}
