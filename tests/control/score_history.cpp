#include <limits>

#include <lrmoe/control/score_history.hpp>

#include "catch.hpp"
#include "fixture.hpp"

namespace {

using lrmoe::size_bins;
using counts_type = std::vector<lrmoe::index_type>;

constexpr auto bins = static_cast<std::size_t>(size_bins::count);

}  // namespace

TEST_CASE("a size falls into the bin whose quarter octave holds it", "[control]") {
  CHECK(size_bins::of(1.0F) == 48 * 4);
  CHECK(size_bins::of(1.2499999F) == 48 * 4);
  CHECK(size_bins::of(1.25F) == 48 * 4 + 1);
  CHECK(size_bins::of(1.5F) == 48 * 4 + 2);
  CHECK(size_bins::of(1.75F) == 48 * 4 + 3);
  CHECK(size_bins::of(2.0F) == 49 * 4);
  CHECK(size_bins::of(0x1p-48F) == 0);
  CHECK(size_bins::of(0x1.4p-48F) == 1);
  CHECK(size_bins::of(0x1.fp15F) == size_bins::count - 1);
}

TEST_CASE("sizes that no bin holds fall into the first or last one", "[control]") {
  using limits = std::numeric_limits<float>;
  for (const float low : {0.0F, -0.0F, -1.0F, limits::denorm_min(), limits::min(), 0x1p-49F}) {
    CHECK(size_bins::of(low) == 0);
  }
  for (const float high : {0x1p16F, limits::max(), limits::infinity(), limits::quiet_NaN()}) {
    CHECK(size_bins::of(high) == size_bins::count - 1);
  }
  CHECK(size_bins::of(-limits::infinity()) == 0);
}

TEST_CASE("the middle of a bin lies in it and is at most an eighth off", "[control]") {
  for (int bin = 0; bin < size_bins::count; ++bin) {
    const double middle = size_bins::middle(bin);
    CHECK(size_bins::of(static_cast<float>(middle)) == bin);
    CHECK(size_bins::middles()[static_cast<std::size_t>(bin)] == middle);
    const double low = std::exp2(-48 + bin / 4) * (1 + (bin % 4) / 4.0);
    CHECK(middle > low);
    CHECK(middle <= low * 1.125);
  }
}

TEST_CASE("shares are a moving average that starts with the first call", "[control]") {
  lrmoe::score_history history(0.75);
  CHECK(history.empty());
  counts_type now(2 * bins, 0);
  now[10] = 1;
  now[20] = 3;
  history.record_sizes(now);
  CHECK_FALSE(history.empty());
  CHECK(history.E() == 2);
  CHECK(history.knows(0));
  CHECK_FALSE(history.knows(1));
  CHECK(history.shares(0)[10] == 0.25F);
  CHECK(history.shares(0)[20] == 0.75F);
  CHECK(history.bins_in_use(0).begin == 10);
  CHECK(history.bins_in_use(0).end == 21);

  // Another number of pairs does not count for more; an expert without pairs keeps its shares.
  std::fill(now.begin(), now.end(), 0);
  now[10] = 1000;
  now[bins + 255] = 5;
  history.record_sizes(now);
  CHECK(history.shares(0)[10] == Approx(0.75 * 0.25 + 0.25));
  CHECK(history.shares(0)[20] == Approx(0.75 * 0.75));
  CHECK(history.shares(1)[255] == 1.0F);
  std::fill(now.begin(), now.end(), 0);
  now[0] = 1;
  history.record_sizes(now);
  CHECK(history.shares(1)[255] == 1.0F);
  CHECK(history.bins_in_use(1).begin == 255);
  CHECK(history.bins_in_use(1).end == 256);
}

TEST_CASE("what falls out of use is forgotten", "[control]") {
  lrmoe::score_history history(0.5);
  counts_type now(bins, 0);
  now[10] = 1;
  history.record_sizes(now);
  now[10] = 0;
  now[200] = 7;
  for (int call = 0; call < 100; ++call) history.record_sizes(now);
  CHECK(history.shares(0)[10] == 0.0F);
  CHECK(history.shares(0)[200] == Approx(1.0));
  CHECK(history.bins_in_use(0).begin == 200);
}

TEST_CASE("a history without any decay remembers the last call alone", "[control]") {
  lrmoe::score_history history(0.0);
  counts_type now(bins, 0);
  now[3] = 4;
  history.record_sizes(now);
  now[3] = 0;
  now[4] = 4;
  history.record_sizes(now);
  CHECK(history.shares(0)[3] == 0.0F);
  CHECK(history.shares(0)[4] == 1.0F);
}

TEST_CASE("another number of experts starts anew, and no pairs leave nothing known", "[control]") {
  lrmoe::score_history history;
  history.record_sizes(counts_type(bins, 0));
  CHECK(history.empty());
  history.record_sizes(counts_type(bins, 1));
  CHECK_FALSE(history.empty());
  history.record_sizes(counts_type(3 * bins, 0));
  CHECK(history.empty());
  CHECK(history.E() == 3);
}

TEST_CASE("shares follow the average on random calls and sum to 1", "[control]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const double decay = draw.uniform(0.0, 0.99);
  lrmoe::score_history history(decay);
  std::vector<double> expected(bins, 0.0);
  for (int call = 0; call < 40; ++call) {
    counts_type now(bins, 0);
    double pairs = 0;
    for (auto& n : now) {
      n = static_cast<lrmoe::index_type>(draw.integer(0, 1) * draw.integer(0, 100));
      pairs += n;
    }
    history.record_sizes(now);
    double sum = 0;
    for (std::size_t b = 0; b < bins; ++b) {
      const double past = call == 0 ? 0.0 : decay;
      expected[b] = past * expected[b] + (1 - past) * now[b] / pairs;
      CHECK(history.shares(0)[b] == Approx(expected[b]).epsilon(1e-5).margin(1e-10));
      sum += history.shares(0)[b];
    }
    CHECK(sum == Approx(1.0).epsilon(1e-5));
  }
}

TEST_CASE("noise that forecasts missed is a geometric moving average", "[control]") {
  lrmoe::score_history history(0.75);
  CHECK(history.noise_correction() == 1.0);
  history.record_noise(0.1, 0.2);
  CHECK(history.noise_correction() == Approx(std::pow(2.0, 0.25)));
  history.record_noise(0.4, 0.1);
  CHECK(history.noise_correction() == Approx(std::pow(2.0, 0.25 * 0.75) * std::pow(0.25, 0.25)));
  // One odd call counts for a factor of 16 at most.
  lrmoe::score_history odd(0.0);
  odd.record_noise(1e-6, 1.0);
  CHECK(odd.noise_correction() == Approx(16.0));
  odd.record_noise(1.0, 1e-9);
  CHECK(odd.noise_correction() == Approx(1.0 / 16.0));
}

TEST_CASE("calls without noise or with none that is finite change nothing", "[control]") {
  lrmoe::score_history history(0.0);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double planned : {0.0, -1.0, std::nan(""), infinity}) history.record_noise(planned, 1);
  for (const double got : {0.0, -1.0, std::nan(""), infinity}) history.record_noise(1, got);
  CHECK(history.noise_correction() == 1.0);
}

TEST_CASE("decays out of range and histograms of no whole experts are refused", "[control]") {
  for (const double decay : {-0.1, 1.0, 2.0, std::nan("")}) {
    CHECK(fixture::names(fixture::refusal([&] { lrmoe::score_history{decay}; }),
                         {"decay = ", "[0, 1)"}));
  }
  lrmoe::score_history history;
  CHECK(fixture::names(fixture::refusal([&] { history.record_sizes(counts_type(bins + 1, 0)); }),
                       {"257", "256"}));
}
