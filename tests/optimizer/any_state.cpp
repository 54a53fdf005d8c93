#include <lrmoe/optimizer/any_state.hpp>

#include "catch.hpp"
#include "random.hpp"

TEST_CASE("a state owner chosen when the program runs owns what its model owns", "[optimizer]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  fixture::random draw(seed);
  const lrmoe::any_state unchosen, home = lrmoe::home_state(), sharded = lrmoe::sharded_state();
  bool differ = false;
  for (int round = 0; round < 30; ++round) {
    const lrmoe::ownership_extents extents{draw.integer(1, 9), draw.integer(1, 9),
                                           draw.integer(1, 1000)};
    const auto equal = [](const lrmoe::parameter_range& a, const lrmoe::parameter_range& b) {
      return a.begin == b.begin && a.end == b.end;
    };
    for (std::int64_t e = 0; e < extents.E; ++e)
      for (std::int64_t r = 0; r < extents.R; ++r) {
        const auto of_home = lrmoe::home_state().range(e, r, extents);
        CHECK(equal(unchosen.range(e, r, extents), of_home));
        CHECK(equal(home.range(e, r, extents), of_home));
        CHECK(equal(sharded.range(e, r, extents), lrmoe::sharded_state().range(e, r, extents)));
        differ = differ || !equal(of_home, sharded.range(e, r, extents));
      }
  }
  CHECK(differ);
}
