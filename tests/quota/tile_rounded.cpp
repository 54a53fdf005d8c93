#include <lrmoe/quota/tile_rounded.hpp>
#include <lrmoe/quota/with_floor.hpp>

#include "catch.hpp"
#include "requests.hpp"

using requests::counts_type;
using requests::on_one_rank;

TEST_CASE("quotas are rounded up to whole tiles where the count allows", "[quota]") {
  CHECK(
      on_one_rank({0, 5, 16, 17, 64, 65, 128, 1000}).assigned(lrmoe::tile_rounded<>{{0.25}, 16}) ==
      counts_type{0, 5, 16, 16, 16, 32, 32, 256});
  CHECK(on_one_rank({0, 5, 2147483647}).assigned(lrmoe::tile_rounded<>{{1.0}, 2147483647}) ==
        counts_type{0, 5, 2147483647});
}

TEST_CASE("a floor inside rounded tiles is rounded as well", "[quota]") {
  using rounded = lrmoe::tile_rounded<lrmoe::with_floor<>>;
  CHECK(on_one_rank({0, 3, 9, 100}).assigned(rounded{{{0.01}, 5}, 4}) == counts_type{0, 3, 8, 8});
}

TEST_CASE("rounded quotas are whole tiles or all pairs, and the least such", "[quota]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (int round = 0; round < 100; ++round) {
    auto problem = requests::random_problem(draw, 1, draw.integer(1, 20), 300);
    const lrmoe::fixed_fraction inner{draw.uniform(1e-3, 1.0)};
    const auto tile = static_cast<lrmoe::index_type>(draw.integer(1, 140));
    const auto before = problem.assigned(inner);
    const auto quotas = problem.assigned(lrmoe::tile_rounded<>{inner, tile});
    for (std::size_t e = 0; e < quotas.size(); ++e) {
      CHECK((quotas[e] % tile == 0 || quotas[e] == problem.counts[e]));
      CHECK(quotas[e] >= before[e]);
      CHECK(quotas[e] - before[e] < tile);
    }
  }
}

TEST_CASE("a tile below 1 and a bad inner policy are refused by name", "[quota]") {
  const auto refused = [](const auto& policy) {
    return fixture::refusal([&] { policy.validate(); });
  };
  CHECK(fixture::names(refused(lrmoe::tile_rounded<>{{0.5}, 0}), {"tile = 0"}));
  CHECK(fixture::names(refused(lrmoe::tile_rounded<>{{0.0}, 1}), {"keep = 0"}));
}
