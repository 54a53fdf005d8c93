#include <limits>

#include <lrmoe/control/size_histogram.hpp>

#include "catch.hpp"
#include "fixture.hpp"

namespace {

using limits = std::numeric_limits<float>;
using counts_type = std::vector<lrmoe::index_type>;

counts_type counted(const counts_type& offsets, const std::vector<float>& sizes) {
  const auto E = static_cast<oracle::integer>(offsets.size()) - 1;
  const fixture::array<lrmoe::index_type> at(offsets), histogram(E * lrmoe::size_bins::count);
  const fixture::array<float> given(std::vector<double>(sizes.begin(), sizes.end()));
  const fixture::space_type space;
  lrmoe::size_histogram(space, fixture::constant(at.vector()), fixture::constant(given.vector()),
                        histogram.matrix(E, lrmoe::size_bins::count));
  space.fence("lrmoe_test::size_histogram");
  CHECK(histogram.guards_intact());
  CHECK(given.guards_intact());
  return histogram.elements();
}

/// Bin by comparison with the bins' lower ends.
std::size_t bin_of(float size) {
  if (std::isnan(size)) return 255;
  std::size_t bin = 0;
  while (bin < 255) {
    const auto next = static_cast<int>(bin + 1);
    if (size < std::ldexp(1 + (next % 4) / 4.0, -48 + next / 4)) break;
    ++bin;
  }
  return bin;
}

}  // namespace

TEST_CASE("a histogram counts every expert's pairs by size", "[control]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const float special[] = {0.0F,           -0.0F,         limits::denorm_min(), limits::min(),
                           0x1p-48F,       0x1p-49F,      0x1.fffffep-49F,      0x1p16F,
                           0x1.fffffep15F, limits::max(), limits::infinity(),   limits::quiet_NaN(),
                           1.0F,           1.25F,         0x1.3ffffep0F};
  for (int round = 0; round < 20; ++round) {
    counts_type offsets{0};
    std::vector<float> sizes;
    for (auto e = draw.integer(1, 9); e > 0; --e) {
      for (auto n = draw.integer(0, 1) * draw.integer(0, 400); n > 0; --n) {
        sizes.push_back(draw.integer(0, 3) == 0
                            ? special[draw.integer(0, 14)]
                            : static_cast<float>(std::exp2(draw.uniform(-60, 20))));
      }
      offsets.push_back(static_cast<lrmoe::index_type>(sizes.size()));
    }
    counts_type expected((offsets.size() - 1) * lrmoe::size_bins::count, 0);
    for (std::size_t e = 0; e + 1 < offsets.size(); ++e) {
      for (auto r = offsets[e]; r < offsets[e + 1]; ++r) {
        ++expected[e * lrmoe::size_bins::count + bin_of(sizes[static_cast<std::size_t>(r)])];
      }
    }
    CHECK(counted(offsets, sizes) == expected);
  }
}

TEST_CASE("experts without pairs have empty histograms, whatever lay there before", "[control]") {
  CHECK(counted({0, 0, 0}, {}) == counts_type(2 * lrmoe::size_bins::count, 0));
}
