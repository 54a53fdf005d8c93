// Expectations over many draws: the mean gradient, and the squared error that a certificate states.
#include <lrmoe/estimator/certificate.hpp>
#include <lrmoe/estimator/exact.hpp>
#include <lrmoe/estimator/pps.hpp>
#include <lrmoe/estimator/top.hpp>
#include <lrmoe/estimator/uniform.hpp>

#include "catch.hpp"
#include "draws.hpp"

using namespace estimator_test;

namespace {

constexpr integer draws = 10000;

/// A small layer whose kept rows are drawn many times. A gradient is linear in the estimator
/// weights, so it is the sum of the gradients that each pair contributes alone.
struct study {
  oracle::extents shape{24, 3, 4, 3, 2, 0};
  problem in;
  std::vector<std::vector<double>>
      contribution;           // by row: dW_gate_up, dW_down, dx, dw in one vector
  std::vector<double> exact;  // their sum
  std::size_t down_begin = 0, down_end = 0;

  study(fixture::random& draw, double keep) {
    oracle::layer layer = fixture::random_layer(draw, shape, oracle::format::binary64);
    const auto at = oracle::forward(layer);
    const auto d_out = draw.normal(shape.T * shape.D, 1.0, oracle::format::binary64);
    const auto scores = oracle::lrm_scores(layer, at, d_out);
    for (const auto& pairs : oracle::pairs_by_expert(layer.experts, shape.E)) {
      std::vector<double> sizes;
      for (const integer p : pairs) {
        sizes.push_back(std::sqrt(scores[static_cast<std::size_t>(p)].value));
        std::vector<double> only(static_cast<std::size_t>(shape.P()), 0.0);
        only[static_cast<std::size_t>(p)] = 1.0;
        const auto gradients = oracle::backward(layer, at, d_out, only);
        std::vector<double> all = gradients.gate_up.values();
        down_begin = all.size();
        for (const double v : gradients.down.values()) all.push_back(v);
        down_end = all.size();
        for (const double v : gradients.dx.values()) all.push_back(v);
        for (const double v : gradients.d_weights.values()) all.push_back(v);
        exact.resize(all.size());
        for (std::size_t i = 0; i < all.size(); ++i) exact[i] += all[i];
        contribution.push_back(std::move(all));
      }
      in.add(sizes, static_cast<integer>(std::ceil(keep * static_cast<double>(pairs.size()))));
    }
  }

  std::vector<double> estimate(const std::vector<std::int32_t>& rows,
                               const std::vector<double>& weights) const {
    std::vector<double> sum(exact.size(), 0.0);
    for (std::size_t m = 0; m < rows.size(); ++m) {
      const auto& part = contribution[static_cast<std::size_t>(rows[m])];
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += weights[m] * part[i];
    }
    return sum;
  }

  double squared_error_of_down(const std::vector<double>& estimate) const {
    double sum = 0.0;
    for (std::size_t i = down_begin; i < down_end; ++i)
      sum += (estimate[i] - exact[i]) * (estimate[i] - exact[i]);
    return sum;
  }
};

/// Largest distance of a component's mean from the exact gradient, in standard errors.
template <class Estimator>
double worst_deviation(const study& s, const Estimator& estimator) {
  drawer draw(s.in);
  std::vector<double> sum(s.exact.size(), 0.0), squares(s.exact.size(), 0.0);
  for (integer step = 0; step < draws; ++step) {
    const drawn got = draw(estimator, {static_cast<std::uint64_t>(step), 0, 0});
    const auto estimate = s.estimate(got.rows, got.weights);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const double deviation = estimate[i] - s.exact[i];
      sum[i] += deviation;
      squares[i] += deviation * deviation;
    }
  }
  double worst = 0.0;
  const double n = static_cast<double>(draws);
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const double mean = sum[i] / n;
    const double variance = squares[i] / n - mean * mean;
    // Weights are floats: a component that never varies may be off by their rounding.
    const double rounding = std::ldexp(std::abs(s.exact[i]) + std::sqrt(squares[i] / n), -22);
    worst = std::max(worst, (std::abs(mean) - rounding) / (std::sqrt(variance / n) + 1e-300));
  }
  return worst;
}

std::vector<lrmoe::certificate> certificates(const problem& in, const drawer& draw) {
  const Kokkos::View<lrmoe::certificate*, device> of_expert("of_expert",
                                                            static_cast<std::size_t>(in.E()));
  const fixture::array<float> contributions(in.sizes);
  const fixture::space_type space;
  lrmoe::certify(space, draw.segments(), fixture::constant(contributions.vector()),
                 draw.selection(), lrmoe::vector_view<lrmoe::certificate, device>(of_expert));
  space.fence("estimator_test::certify");
  return {of_expert.data(), of_expert.data() + of_expert.size()};
}

double total_variance(const problem& in, const drawer& draw) {
  double sum = 0.0;
  for (const auto& c : certificates(in, draw)) sum += c.added_variance;
  return sum;
}

}  // namespace

TEST_CASE("the mean gradient of unbiased rules over 10,000 draws is the exact gradient",
          "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const study s(draw, GENERATE(0.25, 0.5));
  // Seven standard errors: a normal mean exceeds them with probability 2.6e-12 a component.
  constexpr double allowed = 7.0;
  CHECK(worst_deviation(s, lrmoe::pps{seed}) < allowed);
  CHECK(worst_deviation(s, lrmoe::uniform{seed, true}) < allowed);
  // The check has the power to reject biased rules.
  CHECK(worst_deviation(s, lrmoe::top{}) > allowed);
  CHECK(worst_deviation(s, lrmoe::uniform{seed, false}) > allowed);
}

TEST_CASE("a certificate is its formula over every segment", "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  const problem in = edge_cases(random, 2.0);
  drawer draw(in);
  const auto check = [&](const drawn& got) {
    const auto certificate = certificates(in, draw);
    for (integer e = 0; e < in.E(); ++e) {
      const auto at = static_cast<std::size_t>(e);
      double total = 0.0, kept = 0.0, variance = 0.0, bias = 0.0;
      for (auto r = static_cast<std::size_t>(in.offsets[at]);
           r < static_cast<std::size_t>(in.offsets[at + 1]); ++r) {
        const double score = in.sizes[r] * in.sizes[r];
        total += score;
        if (got.inclusion[r] > 0.0)
          variance += (1.0 / got.inclusion[r] - 1.0) * score;
        else
          bias += in.sizes[r];
      }
      for (std::int32_t m = in.kept_offsets[at]; m < in.kept_offsets[at + 1]; ++m) {
        const auto r = static_cast<std::size_t>(got.rows[static_cast<std::size_t>(m)]);
        kept += in.sizes[r] * in.sizes[r];
      }
      CHECK(certificate[at].score_total == Approx(total));
      CHECK(certificate[at].score_kept == Approx(kept));
      CHECK(certificate[at].added_variance == Approx(variance));
      CHECK(certificate[at].bias_bound == Approx(bias));
      CHECK(certificate[at].nonfinite == 0);
    }
  };
  check(draw(lrmoe::pps{seed}, {}));
  check(draw(lrmoe::top{}, {}));
  check(draw(lrmoe::uniform{seed, true}, {}));
}

TEST_CASE("an exact selection adds no variance and no bias", "[estimator]") {
  problem in;
  in.add({1, 2, 3}, 3);
  in.add({}, 0);
  drawer draw(in);
  draw(lrmoe::exact{}, {});
  for (const auto& c : certificates(in, draw)) {
    CHECK(c.added_variance == 0.0);
    CHECK(c.bias_bound == 0.0);
    CHECK(c.score_kept == c.score_total);
  }
}

TEST_CASE("scores that are not finite are counted and left out of a certificate's sums",
          "[estimator]") {
  problem in;
  in.add({1, std::nan(""), 2, std::numeric_limits<double>::infinity()}, 2);
  drawer draw(in);
  draw(lrmoe::top{}, {});
  const auto c = certificates(in, draw)[0];
  CHECK(c.nonfinite == 2);
  CHECK(c.score_total == 5.0);
  CHECK(c.score_kept == 0.0);
  CHECK(c.bias_bound == 3.0);
}

TEST_CASE("the certificate is the expected squared error of dW_down under independent draws",
          "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  const study s(random, 0.5);
  drawer draw(s.in);
  const drawn got = draw(lrmoe::pps{seed}, {});
  const double stated = total_variance(s.in, draw);
  double sum = 0.0, squares = 0.0;
  for (integer i = 0; i < draws; ++i) {
    std::vector<std::int32_t> rows;
    std::vector<double> weights;
    for (std::size_t r = 0; r < got.inclusion.size(); ++r)
      if (random.uniform(0.0, 1.0) < got.inclusion[r]) {
        rows.push_back(static_cast<std::int32_t>(r));
        weights.push_back(1.0 / got.inclusion[r]);
      }
    const double error = s.squared_error_of_down(s.estimate(rows, weights));
    sum += error;
    squares += error * error;
  }
  const double n = static_cast<double>(draws), mean = sum / n;
  const double standard_error = std::sqrt((squares / n - mean * mean) / n);
  INFO("stated " << stated << ", measured " << mean << " +- " << standard_error);
  CHECK(std::abs(mean - stated) <= 7.0 * standard_error);
  // An estimate off by a tenth would be seen.
  CHECK(7.0 * standard_error < 0.1 * stated);
}

TEST_CASE("the squared error of systematic draws is near the certificate", "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  const study s(random, GENERATE(0.25, 0.5));
  drawer draw(s.in);
  double sum = 0.0;
  for (integer step = 0; step < draws; ++step) {
    const drawn got = draw(lrmoe::pps{seed}, {static_cast<std::uint64_t>(step), 0, 0});
    sum += s.squared_error_of_down(s.estimate(got.rows, got.weights));
  }
  const double measured = sum / static_cast<double>(draws);
  const double stated = total_variance(s.in, draw);
  INFO("stated " << stated << ", measured " << measured);
  // Inclusions of a systematic draw are correlated, so the certificate is an estimate here: within
  // a factor of two on rows in random order.
  CHECK(measured > 0.5 * stated);
  CHECK(measured < 2.0 * stated);
}

TEST_CASE("the bias of a biased rule is within the certificate's bound", "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  const study s(random, 0.5);
  drawer draw(s.in);
  const drawn got = draw(lrmoe::top{}, {});
  const double error = std::sqrt(s.squared_error_of_down(s.estimate(got.rows, got.weights)));
  double bound = 0.0;
  for (const auto& c : certificates(s.in, draw)) bound += c.bias_bound;
  CHECK(error > 0.0);
  CHECK(error <= bound * (1.0 + 1e-6));
}
