#include <lrmoe/placement/home_placement.hpp>

#include "catch.hpp"
#include "fixture.hpp"

TEST_CASE("a home placement fills each rank's first slots with its own experts in order",
          "[placement]") {
  const auto placed = lrmoe::home_placement(2, 3, 4);
  const auto slots = placed.expert_of_slot();
  CHECK(std::vector<lrmoe::index_type>(slots.begin(), slots.end()) ==
        std::vector<lrmoe::index_type>{0, 1, -1, 2, 3, -1});
  for (std::int64_t R = 1; R <= 9; ++R) {
    for (std::int64_t E = 1; E <= 20; ++E) {
      const std::int64_t S = (E + R - 1) / R + E % 3;
      const auto at = lrmoe::home_placement(R, S, E);
      const auto home = lrmoe::home_ranks(R, E);
      REQUIRE((at.R() == R && at.S() == S && at.E() == E && at.replicas() == E));
      std::vector<lrmoe::index_type> next(static_cast<std::size_t>(R), 0);
      for (std::size_t e = 0; e < home.size(); ++e) {
        CHECK(at.ranks()[e] == home[e]);
        CHECK(at.slots()[e] == next[static_cast<std::size_t>(home[e])]++);
        CHECK(at.copies()[e] == 1);
      }
    }
  }
}

TEST_CASE("homes that do not fit the slots are refused with the rank and the remedy",
          "[placement]") {
  CHECK(fixture::names(fixture::refusal([] { (void)lrmoe::home_placement(2, 1, 4); }),
                       {"rank 0", "S = 1", "give every rank more"}));
}
