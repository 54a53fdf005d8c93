#include <lrmoe/placement/home_ranks.hpp>

#include "catch.hpp"
#include "requests.hpp"

TEST_CASE("homes are contiguous blocks of at most E / R experts, rounded up", "[placement]") {
  using requests::counts_type;
  CHECK(lrmoe::home_ranks(2, 4) == counts_type{0, 0, 1, 1});
  CHECK(lrmoe::home_ranks(3, 5) == counts_type{0, 0, 1, 1, 2});
  CHECK(lrmoe::home_ranks(3, 2) == counts_type{0, 1});
  for (std::int64_t R = 1; R <= 20; ++R) {
    for (std::int64_t E = 1; E <= 40; ++E) {
      const auto home = lrmoe::home_ranks(R, E);
      REQUIRE(home.size() == static_cast<std::size_t>(E));
      CHECK(std::is_sorted(home.begin(), home.end()));
      CHECK(home.front() >= 0);
      CHECK(home.back() < R);
      for (lrmoe::index_type r = 0; r < R; ++r)
        CHECK(std::count(home.begin(), home.end(), r) <= (E + R - 1) / R);
    }
  }
}

TEST_CASE("homes of no rank or expert are refused", "[placement]") {
  CHECK(fixture::names(fixture::refusal([] { (void)lrmoe::home_ranks(0, 3); }), {"R = 0"}));
  CHECK(fixture::names(fixture::refusal([] { (void)lrmoe::home_ranks(2, 0); }), {"E = 0"}));
}
