#include <lrmoe/placement/memory_balanced.hpp>
#include <lrmoe/placement/step_time.hpp>

#include "catch.hpp"
#include "requests.hpp"

TEST_CASE("a step costs its slowest rank's pairs, rows and copies", "[placement]") {
  requests::problem of(2, 2, 2);
  of.costs = {.pair_s = 2, .row_bytes = 10, .weight_bytes = 100, .gradient_bytes = 200};
  of.machine.inside = {10, 0.5};
  of.machine.ranks_per_node = 2;
  of.source_counts = {70, 0, 20, 10};
  lrmoe::placement_plan plan{.replicas = lrmoe::placement(2, 2, 2, {0, -1, 1, 0}),
                             .loads = {60, 30, 10}};
  const std::vector<lrmoe::index_type> split{60, 10, 0, 0, 20, 10};
  lrmoe::step_time time;
  time.predict(of.request(), lrmoe::memory_balanced{}.attributes(), plan, split);
  CHECK(time.peak_load() == 60);
  CHECK(time.row_bytes() == 4 * 10 * 10);
  // Rank 0: 120 s of pairs, 4 exchanges of 100 bytes, 100 of weights, 200 of gradients.
  CHECK(time.step_s() == Approx(120 + 4 * 10.5 + 10.5 + 20.5));
  // In two nodes at a tenth of the rate.
  of.machine.ranks_per_node = 1;
  of.machine.across = {1, 0};
  time.predict(of.request(), lrmoe::memory_balanced{}.attributes(), plan, split);
  CHECK(time.step_s() == Approx(120 + 4 * 100 + 100 + 200));
}
