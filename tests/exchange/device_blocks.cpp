#include <lrmoe/exchange/device_blocks.hpp>

#include "catch.hpp"
#include "fixture.hpp"

TEST_CASE("an index follows its blocks, empty ones among them", "[exchange]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (int round = 0; round < 40; ++round) {
    lrmoe::row_blocks host;
    std::vector<double> expected;
    for (auto blocks = draw.integer(0, 20); blocks > 0; --blocks) {
      const auto first = draw.integer(0, 1000);
      const auto count = draw.integer(0, 2) == 0 ? 0 : draw.integer(1, 50);
      host.add(first, count);
      for (std::int64_t i = 0; i < count; ++i) expected.push_back(static_cast<double>(first + i));
    }
    const fixture::array<lrmoe::index_type> to(host.to), from(host.from);
    const lrmoe::device_blocks<fixture::device> blocks{to.vector(), from.vector(), {}};
    // Longer than the blocks' rows: what lies behind them stays.
    const fixture::array<lrmoe::index_type> index(host.rows() + 3);
    lrmoe::fill_index(fixture::space_type{}, blocks, host.rows(), index.vector());
    Kokkos::fence("lrmoe_test::fill_index");
    expected.insert(expected.end(), 3, -1.0);
    CHECK(index.values() == expected);
    CHECK(index.guards_intact());
  }
}
