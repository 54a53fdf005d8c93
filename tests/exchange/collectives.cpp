#include <lrmoe/exchange/collectives.hpp>

#include "catch.hpp"
#include "random.hpp"

TEST_CASE("offsets of parts are the running sums of their counts in bytes", "[exchange]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  fixture::random draw(seed);
  std::vector<std::int32_t> counts(static_cast<std::size_t>(draw.integer(1, 20)));
  for (auto& count : counts)
    count = static_cast<std::int32_t>(draw.integer(0, (std::int64_t{1} << 31) - 1));
  const std::int64_t row_bytes = draw.integer(1, 1 << 14);
  std::vector<std::int64_t> offsets(counts.size() + 1, -1);
  lrmoe::offsets_from_counts(std::span<const std::int32_t>(counts), std::span(offsets), row_bytes);
  std::int64_t expected = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    CHECK(offsets[i] == expected);
    expected += counts[i] * row_bytes;
  }
  CHECK(offsets.back() == expected);
  offsets.pop_back();
  CHECK_THROWS_AS(lrmoe::offsets_from_counts(std::span<const std::int32_t>(counts),
                                             std::span(offsets), row_bytes),
                  lrmoe::argument_error);
}
