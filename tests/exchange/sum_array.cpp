#include <cmath>

#include <lrmoe/exchange/collectives.hpp>
#include <lrmoe/exchange/logical.hpp>
#include <lrmoe/exchange/sum_array.hpp>
#include <lrmoe/openmp/backend.hpp>

#include "catch.hpp"
#include "fixture.hpp"

namespace {

using lrmoe::logical::communicator;
using backend = lrmoe::with_ranks<lrmoe::openmp::backend<>, communicator>;

/// Of very different sizes, so that another order of addition gives other bits.
std::vector<double> values_of(std::uint64_t seed, int rank, std::int64_t n) {
  fixture::random draw(seed + static_cast<std::uint64_t>(rank));
  std::vector<double> values;
  for (std::int64_t i = 0; i < n; ++i)
    values.push_back(
        static_cast<float>(draw.uniform(-1.0, 1.0) * std::pow(2.0, draw.uniform(-30.0, 30.0))));
  return values;
}

template <class T>
void check_sum(int R, std::int64_t n, std::uint64_t seed) {
  INFO("R = " << R << ", n = " << n);
  std::vector<T> expected(static_cast<std::size_t>(n), T{0});
  for (int r = 0; r < R; ++r) {
    const auto values = values_of(seed, r, n);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto value = static_cast<T>(values[i]);
      expected[i] = r == 0 ? value : static_cast<T>(expected[i] + value);
    }
  }
  std::int64_t sent = 0;
  lrmoe::logical::world world(R);
  world.run([&](communicator& joined) {
    const int rank = joined.rank();
    lrmoe::context<backend> on(std::move(joined));
    for (int again = 0; again < 2; ++again) {
      on.scratch.fill_bytes(on.space, 0xff);
      const fixture::array<T> values(values_of(seed, rank, n), 1);
      const std::int64_t before = on.ranks.bytes_sent();
      lrmoe::sum_array(on, values.vector());
      on.space.fence("lrmoe_test::sum_array");
      sent += on.ranks.bytes_sent() - before;
      CHECK(values.bits() == fixture::byte_string(expected.data(), expected.size()));
      CHECK(values.guards_intact());
    }
    joined = std::move(on.ranks);
  });
  CHECK(sent == 2 * 2 * n * (R - 1) * static_cast<std::int64_t>(sizeof(T)));
}

}  // namespace

TEST_CASE("every rank gets the plain sum in rank order, to the bit", "[exchange]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (const int R : {1, 2, 3, 8}) {
    // None, fewer than ranks, as many, one more, and any number.
    for (const std::int64_t n : {0, 1, R - 1, R, R + 1, 1000}) check_sum<float>(R, n, seed);
    check_sum<float>(R, draw.integer(1, 20'000), seed);
    check_sum<double>(R, draw.integer(1, 300), seed);
  }
}

TEST_CASE("a single rank has its sums already", "[exchange]") {
  lrmoe::context<lrmoe::openmp::backend<>> on;
  const fixture::array<float> values({1.5, -2.0, 1e30});
  lrmoe::sum_array(on, values.vector());
  CHECK(values.values() == std::vector<double>{1.5, -2.0, double{1e30f}});
  CHECK(on.memory.live_bytes() == 0);
}
