#include <limits>

#include <lrmoe/control/variance_forecast.hpp>

#include "catch.hpp"
#include "fixture.hpp"

namespace {

using lrmoe::size_bins;
using counts_type = std::vector<lrmoe::index_type>;

constexpr auto bins = static_cast<std::size_t>(size_bins::count);

/// Explicit pairs of experts, and the history that saw them.
struct pairs_of_experts {
  std::vector<std::vector<double>> sizes;  // one entry a pair, at the middle of its bin
  lrmoe::score_history history{0.0};
  counts_type counts;

  pairs_of_experts(fixture::random& draw, std::size_t E) {
    counts_type histogram(E * bins, 0);
    for (std::size_t e = 0; e < E; ++e) {
      const double scale = draw.uniform(-10, 5), width = draw.uniform(0.1, 4);
      std::vector<double> mine;
      for (auto p = draw.integer(0, 60); p > 0; --p) {
        const int bin =
            size_bins::of(static_cast<float>(std::exp2(scale + width * draw.uniform(-2, 2))));
        ++histogram[e * bins + static_cast<std::size_t>(bin)];
        mine.push_back(size_bins::middle(bin));
      }
      counts.push_back(static_cast<lrmoe::index_type>(mine.size()));
      sizes.push_back(mine);
    }
    history.record_sizes(histogram);
  }

  double score(std::size_t e) const {
    double sum = 0;
    for (const double a : sizes[e]) sum += a * a;
    return sum;
  }
  double kept(std::size_t e, double tau) const {
    double sum = 0;
    for (const double a : sizes[e]) sum += std::min(1.0, a / tau);
    return sum;
  }
  double variance(std::size_t e, double tau) const {
    double sum = 0;
    for (const double a : sizes[e]) {
      if (a < tau) sum += a * (tau - a);
    }
    return sum;
  }
};

}  // namespace

TEST_CASE("a forecast is the direct sum over explicit pairs", "[control]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  lrmoe::variance_forecast forecast;
  for (int round = 0; round < 30; ++round) {
    const pairs_of_experts given(draw, static_cast<std::size_t>(draw.integer(1, 6)));
    if (given.history.empty()) continue;
    forecast.update(given.history, given.counts);
    CHECK(forecast.E() == static_cast<std::int64_t>(given.counts.size()));
    double total = 0;
    for (std::size_t e = 0; e < given.counts.size(); ++e) {
      const auto expert = static_cast<std::int64_t>(e);
      CHECK(forecast.score(expert) == Approx(given.score(e)));
      total += given.score(e);
      for (int i = 0; i < 30; ++i) {
        const double tau = std::exp2(draw.uniform(-20, 16));
        INFO("expert " << e << " of " << given.counts[e] << " pairs, tau " << tau);
        CHECK(forecast.kept(expert, tau) == Approx(given.kept(e, tau)).epsilon(1e-6));
        const double scale = given.counts[e] * tau * tau + given.score(e);
        CHECK(forecast.added_variance_at(expert, tau) ==
              Approx(given.variance(e, tau)).epsilon(1e-5).margin(1e-9 * scale));
        // The same variance, asked for by the quota that this threshold keeps.
        const double quota = given.kept(e, tau);
        if (given.counts[e] > 0 && quota > 1e-3) {
          CHECK(forecast.added_variance(expert, quota) ==
                Approx(given.variance(e, tau)).epsilon(1e-4).margin(1e-6 * given.score(e)));
        }
      }
    }
    CHECK(forecast.score_total() == Approx(total));
  }
}

TEST_CASE("counts of this call scale what the history saw", "[control]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  pairs_of_experts given(draw, 5);
  if (given.history.empty()) return;
  auto tripled = given.counts;
  for (auto& n : tripled) n *= 3;
  lrmoe::variance_forecast once, thrice;
  once.update(given.history, given.counts);
  thrice.update(given.history, tripled);
  CHECK(thrice.score_total() == Approx(3 * once.score_total()));
  for (std::int64_t e = 0; e < 5; ++e) {
    for (const double tau : {0.01, 1.0, 100.0}) {
      CHECK(thrice.kept(e, tau) == Approx(3 * once.kept(e, tau)));
      CHECK(thrice.added_variance_at(e, tau) ==
            Approx(3 * once.added_variance_at(e, tau)).margin(1e-12));
    }
  }
}

TEST_CASE("variance falls with the quota, ever more slowly, to nothing", "[control]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  pairs_of_experts given(draw, 4);
  if (given.history.empty()) return;
  lrmoe::variance_forecast forecast;
  forecast.update(given.history, given.counts);
  for (std::size_t e = 0; e < 4; ++e) {
    const auto expert = static_cast<std::int64_t>(e);
    const auto L = given.counts[e];
    CHECK(forecast.added_variance(expert, L) == 0.0);
    CHECK(forecast.added_variance(expert, L + 5) == 0.0);
    if (L == 0) {
      CHECK(forecast.added_variance(expert, 0) == 0.0);
      CHECK(forecast.steps(expert).empty());
      continue;
    }
    CHECK(forecast.added_variance(expert, 0) == std::numeric_limits<double>::infinity());
    double last_gain = std::numeric_limits<double>::infinity();
    for (lrmoe::index_type q = 1; q < L; ++q) {
      const double gain =
          forecast.added_variance(expert, q) - forecast.added_variance(expert, q + 1);
      CHECK(gain > 0);
      CHECK(gain <= last_gain * (1 + 1e-6));
      last_gain = gain;
    }
  }
}

TEST_CASE("the common threshold spends the variance it is given", "[control]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (int round = 0; round < 20; ++round) {
    const pairs_of_experts given(draw, 6);
    if (given.history.empty()) continue;
    lrmoe::variance_forecast forecast;
    forecast.update(given.history, given.counts);
    const double wanted = std::exp2(draw.uniform(-12, 8)) * forecast.score_total();
    const double tau = forecast.common_threshold(wanted);
    double spent = 0;
    for (std::size_t e = 0; e < 6; ++e) spent += given.variance(e, tau);
    CHECK(spent == Approx(wanted).epsilon(1e-4));
  }
}

TEST_CASE("an expert without history counts with the mean shares of the known", "[control]") {
  lrmoe::score_history history(0.0);
  counts_type histogram(3 * bins, 0);
  histogram[100] = 4;         // expert 0: all of one size
  histogram[bins + 100] = 1;  // expert 1: half of it,
  histogram[bins + 108] = 1;  // and half four times as large
  history.record_sizes(histogram);
  lrmoe::variance_forecast forecast;
  forecast.update(history, counts_type{0, 0, 8});
  const double a = size_bins::middle(100);
  REQUIRE(forecast.steps(2).size() == 2);
  CHECK(forecast.score(2) == Approx(6 * a * a + 2 * 16 * a * a));
  CHECK(forecast.kept(2, 4 * a) == Approx(2 + 6.0 / 4));
}

TEST_CASE("the noise of quotas is their variance over all scores", "[control]") {
  lrmoe::score_history history(0.0);
  counts_type histogram(2 * bins, 0);
  histogram[50] = histogram[bins + 50] = 1;
  history.record_sizes(histogram);
  history.record_noise(1.0, 3.0);
  lrmoe::variance_forecast forecast;
  forecast.update(history, counts_type{10, 30});
  // Equal sizes: V = L^2 a^2 / q - L a^2.
  CHECK(forecast.noise_ratio(counts_type{5, 10}) == Approx((10.0 + 60.0) / 40.0));
  CHECK(forecast.noise_ratio(counts_type{10, 30}) == 0.0);
  CHECK(forecast.noise_ratio(counts_type{0, 30}) == std::numeric_limits<double>::infinity());
  CHECK(forecast.noise_correction() == Approx(3.0));
  forecast.update(history, counts_type{0, 0});
  CHECK(forecast.noise_ratio(counts_type{0, 0}) == 0.0);
  CHECK(forecast.score_total() == 0.0);
}

TEST_CASE("a history of nothing or of other experts is refused", "[control]") {
  lrmoe::variance_forecast forecast;
  lrmoe::score_history history;
  CHECK(fixture::names(fixture::refusal([&] { forecast.update(history, counts_type{1}); }),
                       {"0 experts", "counts 1"}));
  history.record_sizes(counts_type(2 * bins, 1));
  CHECK(fixture::names(fixture::refusal([&] { forecast.update(history, counts_type{1}); }),
                       {"2 experts", "counts 1"}));
}
