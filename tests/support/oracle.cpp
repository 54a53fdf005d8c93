// The oracle against finite differences, and the checker against planted faults.
#include "oracle.hpp"

#include <functional>

#include "catch.hpp"
#include "check.hpp"
#include "random.hpp"

namespace {

using oracle::integer;
using oracle::number;

double weighted_output(const oracle::layer& in, const std::vector<double>& d_out,
                       const std::vector<double>& c) {
  const oracle::forward_result at = oracle::forward(in);
  const auto [T, D, F, E, K, F_shared] = in.shape;
  double sum = 0.0;
  for (integer t = 0; t < T; ++t)
    for (integer d = 0; d < D; ++d) {
      double out = F_shared > 0 ? at.shared.y(t, d).value : 0.0;
      for (integer p = t * K; p < (t + 1) * K; ++p)
        if (in.experts[static_cast<std::size_t>(p)] != oracle::no_expert)
          out += c[static_cast<std::size_t>(p)] * in.weights[static_cast<std::size_t>(p)].value *
                 at.pairs.y(p, d).value;
      sum += out * d_out[static_cast<std::size_t>(t * D + d)];
    }
  return sum;
}

// Central differences: truncation is of order step^2 and rounding of order 2^-53 / step, relative
// to values of order one to ten.
constexpr double step = 1e-5;
constexpr double allowed = 1e-7;

void check_differences(const std::string& name, double& parameter, double gradient,
                       const std::function<double()>& loss) {
  const double before = parameter;
  parameter = before + step;
  const double above = loss();
  parameter = before - step;
  const double below = loss();
  parameter = before;
  INFO(name << ": oracle " << gradient << ", central difference " << (above - below) / (2 * step));
  CHECK(std::abs((above - below) / (2 * step) - gradient) <= allowed * (1.0 + std::abs(gradient)));
}

void check_all(const std::string& name, std::vector<double>& parameters,
               const oracle::tensor& gradient, const std::function<double()>& loss) {
  REQUIRE(parameters.size() == gradient.data.size());
  for (std::size_t i = 0; i < parameters.size(); ++i)
    check_differences(name + "[" + std::to_string(i) + "]", parameters[i], gradient.data[i].value,
                      loss);
}

std::vector<double> some_coefficients(fixture::random& draw, integer P) {
  std::vector<double> c;
  for (integer p = 0; p < P; ++p)
    c.push_back(p % 3 == 0 ? 0.0 : oracle::round_to(oracle::format::binary32, draw.uniform(1, 4)));
  return c;
}

}  // namespace

TEST_CASE("the oracle's expert gradients equal central differences", "[oracle]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const oracle::extents shape{5, 3, 4, 3, 2, 2};
  oracle::layer in = fixture::random_layer(draw, shape, oracle::format::binary64);
  in.experts[2] = in.experts[3] = oracle::no_expert;
  in.weights[5].value = -0.5;
  in.weights[7].value = 0.0;
  const auto d_out = draw.normal(shape.T * shape.D, 1.0, oracle::format::binary64);
  const auto c = some_coefficients(draw, shape.P());
  const auto gradients = oracle::backward(in, oracle::forward(in), d_out, c);
  const auto loss = [&] { return weighted_output(in, d_out, c); };
  check_all("x", in.x, gradients.dx, loss);
  check_all("gate_up", in.gate_up, gradients.gate_up, loss);
  check_all("down", in.down, gradients.down, loss);
  check_all("shared_gate_up", in.shared_gate_up, gradients.shared_gate_up, loss);
  check_all("shared_down", in.shared_down, gradients.shared_down, loss);
  for (integer p = 0; p < shape.P(); ++p)
    check_differences("weight " + std::to_string(p), in.weights[static_cast<std::size_t>(p)].value,
                      gradients.d_weights.data[static_cast<std::size_t>(p)].value, loss);
}

TEST_CASE("the oracle's router gradients equal central differences", "[oracle]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const oracle::arithmetic rules;
  const integer T = 4, E = 6, K = 3;
  // Gaps of at least 0.05 keep the chosen experts fixed under the differences.
  std::vector<double> logits;
  for (integer t = 0; t < T; ++t)
    for (const auto place : draw.routes(1, E, E))
      logits.push_back(0.4 * place - 1.0 + draw.uniform(0.0, 0.3));
  const auto direction = draw.normal(T * K, 1.0, oracle::format::binary64);
  oracle::tensor d_weights(T, K);
  for (std::size_t i = 0; i < direction.size(); ++i) d_weights.data[i] = {direction[i], 0.0};
  const auto loss_of = [&](const oracle::routing& r) {
    double sum = 0.0;
    for (std::size_t i = 0; i < direction.size(); ++i) sum += direction[i] * r.weights[i].value;
    return sum;
  };
  for (const bool renormalise : {false, true}) {
    INFO("softmax, renormalise = " << renormalise);
    const auto route = [&] { return oracle::softmax_top_k(rules, logits, T, E, K, renormalise); };
    const auto gradient = oracle::softmax_top_k_backward(rules, route(), d_weights, renormalise);
    check_all("logits", logits, gradient, [&] { return loss_of(route()); });
  }
  std::vector<double> bias;
  for (integer e = 0; e < E; ++e) bias.push_back(0.001 * static_cast<double>(e % 3));
  for (const bool renormalise : {false, true}) {
    INFO("sigmoid, renormalise = " << renormalise);
    const oracle::sigmoid_options options{3, 2, renormalise, 2.5};
    const auto route = [&] { return oracle::sigmoid_top_k(rules, logits, bias, T, E, K, options); };
    const auto gradient = oracle::sigmoid_top_k_backward(rules, route(), d_weights, options);
    check_all("logits", logits, gradient, [&] { return loss_of(route()); });
  }
}

TEST_CASE("the oracle's group limit keeps the groups with the two best biased scores", "[oracle]") {
  // Biased scores by group: (0.9, 0.1), (0.6, 0.6), (0.7, 0.2): the second group's pair sums to
  // most, then the first's; the third is excluded although it holds the second-best expert.
  const auto logit = [](double s) { return std::log(s / (1.0 - s)); };
  const std::vector<double> logits{logit(0.9), logit(0.1), logit(0.6),
                                   logit(0.6), logit(0.7), logit(0.2)};
  const oracle::arithmetic rules;
  const auto unlimited = oracle::sigmoid_top_k(rules, logits, {}, 1, 6, 3, {1, 1, false, 1.0});
  CHECK(unlimited.experts == std::vector<std::int32_t>{0, 4, 2});
  const auto limited = oracle::sigmoid_top_k(rules, logits, {}, 1, 6, 3, {3, 2, false, 1.0});
  CHECK(limited.experts == std::vector<std::int32_t>{0, 2, 3});
  // The bias moves the choice and not the weights.
  const auto biased =
      oracle::sigmoid_top_k(rules, logits, {0, 0, 0, 0, 0.5, 0.5}, 1, 6, 2, {3, 1, false, 1.0});
  CHECK(biased.experts == std::vector<std::int32_t>{4, 5});
  CHECK(biased.weights[0].value == Approx(0.7));
  CHECK(biased.weights[1].value == Approx(0.2));
}

TEST_CASE("the oracle's inclusion probabilities sum to the quota and share one threshold",
          "[oracle]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (const integer count : {1, 2, 7, 50}) {
    std::vector<double> scores;
    for (integer i = 0; i < count; ++i) scores.push_back(std::exp(draw.uniform(-6.0, 6.0)));
    for (const integer q : {integer{1}, (count + 1) / 2, count}) {
      const auto pi = oracle::inclusion_probabilities(scores, q);
      CHECK(std::accumulate(pi.begin(), pi.end(), 0.0) == Approx(static_cast<double>(q)));
      double tau = 0.0;
      for (std::size_t i = 0; i < pi.size(); ++i)
        if (pi[i] < 1.0) tau = std::sqrt(scores[i]) / pi[i];
      for (std::size_t i = 0; i < pi.size(); ++i) {
        CHECK(pi[i] > 0.0);
        if (tau > 0.0)
          CHECK(pi[i] == Approx(std::min(1.0, std::sqrt(scores[i]) / tau)));
        else
          CHECK(q == count);
      }
    }
  }
}

TEST_CASE("the checker accepts honest rounding and rejects every planted fault", "[oracle]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const auto format =
      GENERATE(oracle::format::binary64, oracle::format::binary32, oracle::format::bfloat16);
  INFO("format " << static_cast<int>(format));
  const oracle::extents shape{24, 17, 11, 4, 2, 5};
  oracle::layer in = fixture::random_layer(draw, shape, format);
  const auto d_out = draw.normal(shape.T * shape.D, 1.0, format);
  const auto c = some_coefficients(draw, shape.P());
  const auto exact = oracle::backward(in, oracle::forward(in), d_out, c);

  oracle::layer rounded = in;
  rounded.rules.emulate = true;
  const auto at = oracle::forward(rounded);
  check::check_close("out", at.out.values(), oracle::forward(in).out);
  const auto honest = check::compare(oracle::backward(rounded, at, d_out, c), exact);
  INFO(honest.message);
  CHECK(honest.passed);

  using oracle::mutation;
  for (const mutation fault :
       {mutation::silu_derivative_missing, mutation::silu_derivative_is_sigmoid,
        mutation::coefficient_missing, mutation::coefficient_applied_twice,
        mutation::coefficient_not_in_weights, mutation::weight_not_applied,
        mutation::weight_applied_twice, mutation::dropped_pair_kept, mutation::kept_pair_dropped,
        mutation::gate_and_up_swapped, mutation::input_gradient_without_up,
        mutation::token_of_next_pair, mutation::shared_gradient_missing}) {
    INFO("fault " << static_cast<int>(fault));
    CHECK_FALSE(check::compare(oracle::backward(rounded, at, d_out, c, fault), exact).passed);
  }
}

TEST_CASE("the checker rejects a router gradient without the renormalisation's term", "[oracle]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  oracle::arithmetic rules, rounded;
  rules.storage = rounded.storage = oracle::format::binary32;
  rounded.emulate = true;
  const integer T = 6, E = 8, K = 3;
  const auto logits = draw.normal(T * E, 2.0, oracle::format::binary32);
  oracle::tensor d_weights(T, K);
  for (number& value : d_weights.data)
    value.value = oracle::round_to(oracle::format::binary32, draw.uniform(-1.0, 1.0));
  const auto exact_routing = oracle::softmax_top_k(rules, logits, T, E, K, true);
  const auto routing = oracle::softmax_top_k(rounded, logits, T, E, K, true);
  const auto exact = oracle::softmax_top_k_backward(rules, exact_routing, d_weights, true);
  CHECK(check::compare("d_logits",
                       oracle::softmax_top_k_backward(rounded, routing, d_weights, true).values(),
                       exact)
            .passed);
  CHECK_FALSE(
      check::compare("d_logits",
                     oracle::softmax_top_k_backward(rounded, routing, d_weights, false).values(),
                     exact)
          .passed);
}

TEST_CASE("the checker rejects NaN, a wrong size and a scale that is off by a thousandth",
          "[oracle]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const oracle::extents shape{16, 12, 8, 3, 2, 0};
  const oracle::layer in = fixture::random_layer(draw, shape, oracle::format::binary32);
  const auto d_out = draw.normal(shape.T * shape.D, 1.0, oracle::format::binary32);
  const std::vector<double> c(static_cast<std::size_t>(shape.P()), 1.0);
  const auto exact = oracle::backward(in, oracle::forward(in), d_out, c);
  std::vector<double> got = exact.down.values();
  CHECK(check::compare("down", got, exact.down).passed);
  for (double& value : got) value *= 1.001;
  CHECK_FALSE(check::compare("down", got, exact.down).passed);
  got = exact.down.values();
  got[3] = std::nan("");
  CHECK_FALSE(check::compare("down", got, exact.down).passed);
  got.pop_back();
  CHECK_FALSE(check::compare("down", got, exact.down).passed);
}
