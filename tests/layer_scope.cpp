// What a layer saves for backward, and which gradients use how many of the kept pairs.
#include <lrmoe/layer.hpp>

#include "layer_harness.hpp"

using namespace layer_test;

namespace {

using given_policies = policies_of<lrmoe::given_routing>;
constexpr routing_kind given = routing_kind::given;

/// Factors of all pairs after a second draw among the kept ones.
std::vector<double> second_coefficients(const layer_of<given_policies, float>& layer,
                                        const lrmoe::selection<device>& second, integer count,
                                        const std::vector<double>& first) {
  std::vector<double> c(first.size(), 0.0);
  const auto at = [](const auto& values, auto i) { return values[static_cast<std::size_t>(i)]; };
  const auto positions = fixture::host_copy(second.rows);
  const auto factors = fixture::host_copy(second.factors);
  const auto rows = fixture::host_copy(layer.last_selection().rows);
  const auto pair_of_row = fixture::host_copy(layer.last_order().pair_of_row);
  for (integer i = 0; i < count; ++i) {
    const auto pair = static_cast<std::size_t>(at(pair_of_row, at(rows, at(positions, i))));
    c[pair] = first[pair] * static_cast<double>(at(factors, i));
  }
  return c;
}

double squared_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

std::vector<double> values_of(const std::vector<oracle::number>& numbers) {
  std::vector<double> values;
  for (const auto& n : numbers) values.push_back(n.value);
  return values;
}

}  // namespace

TEMPLATE_TEST_CASE("gradients equal the oracle's for the same kept set whatever forward saves",
                   "[layer]", float, double, lrmoe::bfloat16) {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const auto shape =
      GENERATE(oracle::extents{40, 11, 7, 4, 2, 0}, oracle::extents{30, 9, 12, 8, 3, 5});
  const problem p = random_problem(draw, shape, fixture::format_of<TestType>(), given);
  const std::vector<any_estimator> estimators{lrmoe::pps{seed}, lrmoe::top{}, lrmoe::exact{}};
  for (const auto saved : {lrmoe::saved_activations::save, lrmoe::saved_activations::recompute,
                           lrmoe::saved_activations::proxy})
    for (const auto& estimator : estimators) {
      INFO("saved " << static_cast<int>(saved));
      given_policies policies;
      policies.quota.keep = 0.4;
      policies.estimator = estimator;
      policies.saved = saved;
      lrmoe::context<backend> context;
      layer_of<given_policies, TestType> layer(context, shape_of(shape), policies, 3);
      const call<TestType> views(p);
      forward(layer, 1, views);
      context.scratch.fill_bytes(context.space, 0xff);
      const auto report = backward(layer, views);
      check_step(p, views, coefficients(layer, shape.P()), given);
      const double kept = static_cast<double>(report.pairs_kept);
      const double again = saved == lrmoe::saved_activations::recompute ? 4.0 : 0.0;
      CHECK(report.routed.flops == (12.0 + again) * kept * static_cast<double>(shape.D * shape.F));
    }
}

TEST_CASE("a proxy selects in forward by the scorer with a gradient norm of one", "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const oracle::extents shape{50, 6, 5, 3, 2, 0};
  problem p = random_problem(draw, shape, oracle::format::binary32, given);
  const auto at = oracle::forward(p.in);
  // Scores for gradients of norm one: e_0 for every token.
  std::vector<double> unit(p.d_out.size(), 0.0);
  for (std::size_t t = 0; t < 50; ++t) unit[6 * t] = 1.0;
  const auto scores = oracle::lrm_scores(p.in, at, unit);
  given_policies policies;
  policies.quota.keep = 0.3;
  policies.estimator = lrmoe::top{};
  policies.saved = lrmoe::saved_activations::proxy;
  lrmoe::context<backend> context;
  layer_of<given_policies, float> layer(context, shape_of(shape), policies);
  const call<float> views(p);
  forward(layer, 0, views);
  const auto report = backward(layer, views);
  const auto c = coefficients(layer, shape.P());
  for (const auto& pairs : oracle::pairs_by_expert(p.in.experts, shape.E)) {
    double least_kept = 1e300, most_dropped = 0.0;
    for (const integer pair : pairs) {
      const auto i = static_cast<std::size_t>(pair);
      if (c[i] != 0.0)
        least_kept = std::min(least_kept, scores[i].value);
      else
        most_dropped = std::max(most_dropped, scores[i].value);
    }
    CHECK(least_kept >= most_dropped * (1.0 - 1e-5));
  }
  // The certificate is about the true gradient all the same.
  double total = 0.0;
  for (const auto& score : oracle::lrm_scores(p.in, at, p.d_out)) total += score.value;
  CHECK(report.certified.score_total == Approx(total).epsilon(1e-4));
}

TEST_CASE("dX and dW may each use a share of the kept pairs, and products shrink with it",
          "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const oracle::extents shape{60, 11, 7, 4, 2, 5};
  const problem p = random_problem(draw, shape, oracle::format::binary32, given);
  const auto at = oracle::forward(p.in);
  struct shares {
    double keep, dx, dw;
  };
  for (const shares s : {shares{0.5, 1.0, 0.5}, shares{1.0, 1.0, 0.25}, shares{1.0, 0.3, 1.0},
                         shares{0.6, 0.5, 0.4}}) {
    INFO("keep " << s.keep << " dx " << s.dx << " dw " << s.dw);
    given_policies policies;
    policies.quota.keep = s.keep;
    policies.estimator = lrmoe::pps{seed};
    policies.scope.dx_share = s.dx;
    policies.scope.dw_share = s.dw;
    lrmoe::context<backend> context;
    layer_of<given_policies, float> layer(context, shape_of(shape), policies);
    const call<float> views(p);
    forward(layer, 7, views);
    context.scratch.fill_bytes(context.space, 0xff);
    const auto report = backward(layer, views);

    const auto first = coefficients(layer, shape.P());
    const auto& selector = layer.last_selector();
    const auto of_dx = s.dx < 1.0 ? second_coefficients(layer, selector.selected_for_dx(),
                                                        selector.kept_dx(), first)
                                  : first;
    const auto of_dw = s.dw < 1.0 ? second_coefficients(layer, selector.selected_for_dw(),
                                                        selector.kept_dw(), first)
                                  : first;
    const auto rules = p.in.rules;
    const auto by_first = oracle::backward(p.in, at, p.d_out, first);
    const auto by_dx = oracle::backward(p.in, at, p.d_out, of_dx);
    const auto by_dw = oracle::backward(p.in, at, p.d_out, of_dw);
    check::check_close("d_given", views.d_given.values(), by_first.d_weights);
    check::check_close("dx", views.dx.values(), by_dx.dx);
    check::check_close("d_gate_up", views.d_gate_up.values(),
                       oracle::accumulated(rules, by_dw.gate_up, p.gate_up_before));
    check::check_close("d_down", views.d_down.values(),
                       oracle::accumulated(rules, by_dw.down, p.down_before));

    integer kept = 0, kept_dx = 0, kept_dw = 0;
    const auto share_of = [](double share, integer n) {
      return static_cast<integer>(std::ceil(share * static_cast<double>(n) * (1 - 1e-12)));
    };
    for (const auto& pairs : oracle::pairs_by_expert(p.in.experts, shape.E)) {
      const integer q = share_of(s.keep, static_cast<integer>(pairs.size()));
      kept += q;
      kept_dx += share_of(s.dx, q);
      kept_dw += share_of(s.dw, q);
    }
    CHECK(report.pairs_kept == kept);
    CHECK(selector.kept_dx() == kept_dx);
    CHECK(selector.kept_dw() == kept_dw);
    // 2 D F of every kept pair, 4 D F for dX, 6 D F for dW.
    CHECK(report.routed.flops ==
          static_cast<double>((2 * kept + 4 * kept_dx + 6 * kept_dw) * shape.D * shape.F));
  }
}

TEST_CASE("two draws leave gradients unbiased, and their certificate counts both", "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const oracle::extents shape{64, 4, 3, 2, 2, 0};
  const problem p = random_problem(draw, shape, oracle::format::binary32, given);
  const auto at = oracle::forward(p.in);
  const auto exact = oracle::backward(p.in, at, p.d_out, std::vector<double>(128, 1.0));
  given_policies policies;
  policies.quota.keep = 0.6;
  policies.estimator = lrmoe::pps{.seed = seed, .order = lrmoe::pps_order::shuffled};
  policies.scope.dx_share = 0.5;
  policies.scope.dw_share = 0.5;
  lrmoe::context<backend> context(fixture::space_of_threads(1));
  layer_of<given_policies, float> layer(context, shape_of(shape), policies);
  call<float> views(p);
  constexpr int draws = 4000;
  std::vector<double> want = values_of(exact.dx.data), down = values_of(exact.down.data),
                      gate_up = values_of(exact.gate_up.data);
  struct moments {
    std::vector<double> sum, squares;
    double error = 0.0, stated = 0.0;
    void add(const std::vector<double>& got, const std::vector<double>& truth, double variance) {
      sum.resize(truth.size());
      squares.resize(truth.size());
      for (std::size_t i = 0; i < truth.size(); ++i) {
        const double d = got[i] - truth[i];
        sum[i] += d;
        squares[i] += d * d;
      }
      error += squared_distance(got, truth);
      stated += variance;
    }
    double worst() const {
      double result = 0.0;
      for (std::size_t i = 0; i < sum.size(); ++i) {
        const double mean = sum[i] / draws, variance = squares[i] / draws - mean * mean;
        result = std::max(result, std::abs(mean) / (std::sqrt(variance / draws) + 1e-6));
      }
      return result;
    }
  } of_dx, of_down, of_gate_up;
  for (int step = 0; step < draws; ++step) {
    views.d_down.fill(0.0F);
    views.d_gate_up.fill(0.0F);
    forward(layer, static_cast<std::uint64_t>(step), views);
    const auto report = backward(layer, views);
    of_dx.add(views.dx.values(), want, report.variance.dx);
    of_down.add(views.d_down.values(), down, report.certified.added_variance);
    of_gate_up.add(views.d_gate_up.values(), gate_up, report.variance.gate_up);
  }
  // Seven standard errors: a normal mean exceeds them with probability 2.6e-12 a component.
  CHECK(of_dx.worst() < 7.0);
  CHECK(of_down.worst() < 7.0);
  CHECK(of_gate_up.worst() < 7.0);
  // Stated errors are those of independent draws; shuffled systematic draws come near.
  for (const auto* m : {&of_down, &of_gate_up, &of_dx}) {
    INFO("measured " << m->error / draws << ", stated " << m->stated / draws);
    CHECK(m->stated > 0.8 * m->error);
    CHECK(m->stated < 1.25 * m->error);
  }
}

TEST_CASE("the exact router gradient is that of all pairs, for one more product a dropped pair",
          "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const oracle::extents shape{60, 11, 7, 4, 2, 0};
  const problem p = random_problem(draw, shape, oracle::format::binary32, given);
  const auto at = oracle::forward(p.in);
  const auto all = oracle::backward(p.in, at, p.d_out, std::vector<double>(120, 1.0));
  for (const auto saved : {lrmoe::saved_activations::save, lrmoe::saved_activations::recompute,
                           lrmoe::saved_activations::proxy})
    for (const any_estimator& estimator :
         std::vector<any_estimator>{lrmoe::pps{seed}, lrmoe::top{}}) {
      INFO("saved " << static_cast<int>(saved));
      given_policies policies;
      policies.quota.keep = 0.25;
      policies.estimator = estimator;
      policies.saved = saved;
      policies.scope.router = lrmoe::router_gradient::exact;
      lrmoe::context<backend> context;
      layer_of<given_policies, float> layer(context, shape_of(shape), policies);
      const call<float> views(p);
      forward(layer, 0, views);
      context.scratch.fill_bytes(context.space, 0xff);
      const auto report = backward(layer, views);
      // A kept pair's dw is multiplied by its factor and divided by it again.
      const auto got = views.d_given.values();
      for (std::size_t i = 0; i < got.size(); ++i) {
        INFO("pair " << i);
        const auto& want = all.d_weights.data[i];
        CHECK(std::abs(got[i] - want.value) <= want.error + std::ldexp(std::abs(want.value), -22));
      }
      const double kept = static_cast<double>(report.pairs_kept), dropped = 120.0 - kept;
      const double again = saved == lrmoe::saved_activations::save        ? 0.0
                           : saved == lrmoe::saved_activations::recompute ? 4.0 * 120.0
                                                                          : 4.0 * dropped;
      CHECK(report.routed.flops == (12.0 * kept + 2.0 * dropped + again) * 77.0);
    }
}

TEST_CASE("the sketch of dropped pairs' router gradients is unbiased, of the stated variance",
          "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const oracle::extents shape{12, 16, 5, 3, 2, 0};
  const problem p = random_problem(draw, shape, oracle::format::binary32, given);
  const auto at = oracle::forward(p.in);
  const auto all = oracle::backward(p.in, at, p.d_out, std::vector<double>(24, 1.0));
  const int k = GENERATE(1, 8, 40);
  given_policies policies;
  policies.quota.keep = 0.25;
  policies.estimator = lrmoe::pps{seed};
  policies.scope.router = lrmoe::router_gradient::sketch;
  policies.scope.sketch_size = k;
  policies.scope.sketch_seed = seed + 1;
  lrmoe::context<backend> context(fixture::space_of_threads(1));
  layer_of<given_policies, float> layer(context, shape_of(shape), policies);
  const call<float> views(p);
  constexpr int draws = 10000;
  std::vector<double> sum(24, 0.0), squares(24, 0.0), times_dropped(24, 0.0);
  for (int step = 0; step < draws; ++step) {
    forward(layer, static_cast<std::uint64_t>(step), views);
    backward(layer, views);
    const auto c = coefficients(layer, 24);
    const auto got = views.d_given.values();
    for (std::size_t i = 0; i < 24; ++i) {
      const double d = got[i] - all.d_weights.data[i].value;
      if (c[i] != 0.0) {
        REQUIRE(std::abs(d) <= all.d_weights.data[i].error +
                                   std::ldexp(std::abs(all.d_weights.data[i].value), -22));
        continue;
      }
      times_dropped[i] += 1.0;
      sum[i] += d;
      squares[i] += d * d;
    }
  }
  for (std::size_t i = 0; i < 24; ++i) {
    if (times_dropped[i] < 1000.0) continue;
    const double n = times_dropped[i], mean = sum[i] / n, variance = squares[i] / n - mean * mean;
    INFO("pair " << i << ", k " << k);
    CHECK(std::abs(mean) <= 7.0 * std::sqrt(variance / n) + 1e-5);
    // Signs: variance (||dO||^2 ||y||^2 + <dO, y>^2 - 2 sum_d dO_d^2 y_d^2) / k.
    const std::size_t t = i / 2;
    double gradients = 0.0, outputs = 0.0, same = 0.0;
    for (std::size_t d = 0; d < 16; ++d) {
      const double a = p.d_out[16 * t + d];
      const double y = at.pairs.y(static_cast<integer>(i), static_cast<integer>(d)).value;
      gradients += a * a;
      outputs += y * y;
      same += a * a * y * y;
    }
    const double inner = all.d_weights.data[i].value;
    const double stated = (gradients * outputs + inner * inner - 2.0 * same) / k;
    CHECK(variance > 0.8 * stated);
    CHECK(variance < 1.25 * stated);
  }
}

TEST_CASE("scopes that do not fit are refused by value, limit and remedy", "[layer]") {
  given_policies policies;
  policies.estimator = lrmoe::pps{1};
  const lrmoe::layer_shape shape{6, 5, 4, 2, 0};
  const auto refused = [&](std::initializer_list<std::string> parts) {
    return fixture::names(fixture::refusal([&] { policies.validate(shape); }), parts);
  };
  for (const double share : {0.0, -1.0, 1.5, std::nan("")}) {
    policies.scope = {.dx_share = share};
    CHECK(refused({"dx_share = ", "(0, 1]"}));
    policies.scope = {.dw_share = share};
    CHECK(refused({"dw_share = ", "(0, 1]"}));
  }
  for (const int k : {0, -1, 1025}) {
    policies.scope = {.router = lrmoe::router_gradient::sketch, .sketch_size = k};
    CHECK(refused({"sketch_size = " + std::to_string(k), "[1, 1024]"}));
  }
  policies.scope = {.dw_share = 0.5};
  policies.estimator = lrmoe::exact{};
  CHECK(refused({"dw_share = 0.5", "sampling estimator"}));
}
