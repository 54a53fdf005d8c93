#include <algorithm>
#include <vector>

#include <lrmoe/optimizer/home_state.hpp>
#include <lrmoe/optimizer/sharded_state.hpp>

#include "catch.hpp"
#include "random.hpp"

namespace {

using std::int64_t;

template <class Owner>
std::vector<int64_t> checked_sizes(const Owner& owner, int64_t e,
                                   const lrmoe::ownership_extents& extents) {
  std::vector<int64_t> sizes;
  int64_t end = 0;
  for (int64_t r = 0; r < extents.R; ++r) {
    const lrmoe::parameter_range part = owner.range(e, r, extents);
    // Empty ranges lie anywhere in order.
    CHECK(part.begin == end);
    CHECK(part.end >= part.begin);
    sizes.push_back(part.size());
    end = part.end;
  }
  CHECK(end == extents.parameters);
  return sizes;
}

lrmoe::ownership_extents random_extents(fixture::random& draw) {
  return {draw.integer(1, 70), draw.integer(1, 40), 3 * draw.integer(1, 30) * draw.integer(1, 30)};
}

}  // namespace

TEST_CASE("every parameter's state has one owner", "[optimizer]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  fixture::random draw(seed);
  for (int round = 0; round < 30; ++round) {
    const auto extents = random_extents(draw);
    for (int64_t e = 0; e < extents.E; ++e) {
      checked_sizes(lrmoe::home_state(), e, extents);
      checked_sizes(lrmoe::sharded_state(), e, extents);
    }
  }
}

TEST_CASE("sharded state is even to within one parameter", "[optimizer]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  fixture::random draw(seed);
  for (int round = 0; round < 30; ++round) {
    auto extents = random_extents(draw);
    if (round % 3 == 0) extents.parameters = draw.integer(int64_t{1} << 40, int64_t{1} << 62);
    const auto sizes = checked_sizes(lrmoe::sharded_state(), 0, extents);
    const auto [least, most] = std::minmax_element(sizes.begin(), sizes.end());
    CHECK(*most - *least <= 1);
  }
}

TEST_CASE("homes are whole experts, as many on each rank to within one", "[optimizer]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  fixture::random draw(seed);
  for (int round = 0; round < 30; ++round) {
    const auto extents = random_extents(draw);
    std::vector<int64_t> experts(static_cast<std::size_t>(extents.R), 0);
    for (int64_t e = 0; e < extents.E; ++e)
      for (int64_t r = 0; r < extents.R; ++r) {
        const int64_t size = lrmoe::home_state().range(e, r, extents).size();
        CHECK((size == 0 || size == extents.parameters));
        if (size > 0) {
          CHECK(lrmoe::home_state().home(e, extents) == r);
          ++experts[static_cast<std::size_t>(r)];
        }
      }
    const auto [least, most] = std::minmax_element(experts.begin(), experts.end());
    CHECK(*most - *least <= 1);
  }
}
