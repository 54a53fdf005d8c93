// The layer against the oracle: complete forward, exact and reduced backward.
#include <limits>

#include <lrmoe/layer.hpp>

#include "layer_harness.hpp"

using namespace layer_test;

namespace {

template <class Element_, class Router_>
struct variant {
  using element = Element_;
  using router = Router_;
};

template <class Element>
using sigmoid = lrmoe::sigmoid_top_k<lrmoe::accumulate_t<Element>, device>;

template <class Router>
std::vector<routing_kind> kinds() {
  if (std::is_same_v<Router, lrmoe::softmax_top_k>)
    return {routing_kind::softmax, routing_kind::softmax_renormalised};
  return {std::is_same_v<Router, lrmoe::given_routing> ? routing_kind::given
                                                       : routing_kind::sigmoid};
}

/// One step of a fresh layer, compared with the oracle. Returns the report.
template <class Router, class Element>
lrmoe::backward_report run_and_check(const problem& p, routing_kind kind,
                                     const policies_of<Router>& policies, std::uint64_t step,
                                     std::size_t misaligned_by = 0) {
  lrmoe::context<backend> context;
  layer_of<policies_of<Router>, Element> layer(context, shape_of(p.in.shape), policies, 3);
  const call<Element> views(p, misaligned_by);
  forward(layer, step, views);
  const auto report = backward(layer, views);
  check_step(p, views, coefficients(layer, p.in.shape.P()), kind);
  return report;
}

template <class Variant>
policies_of<typename Variant::router> exact_policies(routing_kind kind, integer E) {
  policies_of<typename Variant::router> policies;
  policies.router = router_for<typename Variant::router>(kind, E);
  policies.estimator = lrmoe::exact{};
  return policies;
}

std::string name_of(const oracle::extents& s) {
  return "T = " + std::to_string(s.T) + ", D = " + std::to_string(s.D) +
         ", F = " + std::to_string(s.F) + ", E = " + std::to_string(s.E) +
         ", K = " + std::to_string(s.K) + ", F_shared = " + std::to_string(s.F_shared);
}

}  // namespace

#define LRMOE_TEST_VARIANTS                                                       \
  (variant<float, lrmoe::softmax_top_k>), (variant<float, lrmoe::given_routing>), \
      (variant<float, sigmoid<float>>), (variant<double, lrmoe::softmax_top_k>),  \
      (variant<lrmoe::bfloat16, lrmoe::softmax_top_k>),                           \
      (variant<lrmoe::bfloat16, lrmoe::given_routing>)

TEMPLATE_TEST_CASE("with every pair kept the layer equals the oracle", "[layer]",
                   LRMOE_TEST_VARIANTS) {
  using Element = typename TestType::element;
  using Router = typename TestType::router;
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  // Ordinary; K = E with a shared expert; one expert; one expert a token; more experts than pairs.
  const auto shape =
      GENERATE(oracle::extents{33, 19, 13, 5, 2, 0}, oracle::extents{24, 8, 16, 4, 4, 7},
               oracle::extents{10, 5, 3, 1, 1, 0}, oracle::extents{50, 16, 8, 8, 1, 1},
               oracle::extents{3, 6, 4, 32, 2, 3}, oracle::extents{1, 1, 1, 1, 1, 1},
               oracle::extents{0, 6, 4, 3, 2, 5});
  const std::size_t misaligned_by = GENERATE(0u, 1u);
  INFO(name_of(shape) << ", misaligned by " << misaligned_by);
  for (const routing_kind kind : kinds<Router>()) {
    const problem p = random_problem(draw, shape, fixture::format_of<Element>(), kind);
    const auto report = run_and_check<Router, Element>(
        p, kind, exact_policies<TestType>(kind, shape.E), 0, misaligned_by);
    CHECK(report.pairs == shape.P());
    CHECK(report.pairs_kept == shape.P());
    CHECK(report.kept_fraction() == 1.0);
    CHECK(report.certified.added_variance == 0.0);
  }
}

TEMPLATE_TEST_CASE("a reduced backward pass equals the oracle that is given the same kept set",
                   "[layer]", LRMOE_TEST_VARIANTS) {
  using Element = typename TestType::element;
  using Router = typename TestType::router;
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const auto shape =
      GENERATE(oracle::extents{40, 11, 7, 4, 2, 0}, oracle::extents{30, 9, 12, 8, 3, 5});
  INFO(name_of(shape));
  for (const routing_kind kind : kinds<Router>()) {
    const problem p = random_problem(draw, shape, fixture::format_of<Element>(), kind);
    policies_of<Router> policies;
    policies.router = router_for<Router>(kind, shape.E);
    const std::vector<any_estimator> estimators{
        lrmoe::pps{seed},
        lrmoe::top{},
        lrmoe::uniform{seed, true},
        lrmoe::uniform{seed, false},
        lrmoe::top_plus_sampled{seed},
        lrmoe::pps{.seed = seed, .order = lrmoe::pps_order::shuffled, .joint = true}};
    for (const auto& estimator : estimators)
      for (const double keep : {0.1, 0.5}) {
        policies.estimator = estimator;
        policies.quota.keep = keep;
        const auto report = run_and_check<Router, Element>(p, kind, policies, seed % 1000);
        integer kept = 0;
        for (const auto& pairs : oracle::pairs_by_expert(p.in.experts, shape.E))
          kept += static_cast<integer>(std::ceil(keep * static_cast<double>(pairs.size())));
        CHECK(report.pairs == shape.P());
        CHECK(report.pairs_kept == kept);
      }
  }
}

TEMPLATE_TEST_CASE("overwriting gradients is adding to zeros, whatever they held", "[layer]",
                   LRMOE_TEST_VARIANTS) {
  using Element = typename TestType::element;
  using Router = typename TestType::router;
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  // A shared expert or none; mostly experts without pairs; no tokens.
  const auto shape =
      GENERATE(oracle::extents{33, 19, 13, 5, 2, 0}, oracle::extents{24, 8, 16, 4, 4, 7},
               oracle::extents{3, 6, 4, 32, 2, 3}, oracle::extents{0, 6, 4, 3, 2, 5});
  const routing_kind kind = kinds<Router>().back();
  const problem p = from_zero(random_problem(draw, shape, fixture::format_of<Element>(), kind));
  policies_of<Router> all, reduced, again, two_draws;
  all.estimator = lrmoe::exact{};
  reduced.estimator = again.estimator = two_draws.estimator = lrmoe::pps{seed};
  reduced.quota.keep = again.quota.keep = 0.3;
  again.saved = lrmoe::saved_activations::recompute;
  two_draws.scope.dw_share = 0.3;
  for (policies_of<Router>* policies : {&all, &reduced, &again, &two_draws}) {
    policies->router = router_for<Router>(kind, shape.E);
    lrmoe::context<backend> context;
    layer_of<policies_of<Router>, Element> layer(context, shape_of(shape), *policies, 3);
    call<Element> adding(p);
    forward(layer, 1, adding);
    backward(layer, adding);
    call<Element> overwriting(p);
    overwriting.poison_gradients();
    forward(layer, 1, overwriting);
    backward(layer, overwriting, lrmoe::gradient_update::overwrite);
    CHECK(overwriting.gradient_values() == adding.gradient_values());
    CHECK(overwriting.dx.bits() == adding.dx.bits());
    if (policies != &two_draws) check_step(p, overwriting, coefficients(layer, shape.P()), kind);
    // A second micro-batch adds to what the first one wrote.
    for (const auto* views : {&adding, &overwriting}) {
      forward(layer, 2, *views);
      backward(layer, *views);
    }
    CHECK(overwriting.gradient_values() == adding.gradient_values());
  }
}

TEST_CASE("rows of several tiles, blocks and parts equal the oracle", "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  // More than 512 rows an expert, more than 64 columns, gradients of more than 128 rows.
  const oracle::extents shape{650, 135, 9, 2, 2, 0};
  const problem p =
      random_problem(draw, shape, oracle::format::binary32, routing_kind::softmax_renormalised);
  policies_of<lrmoe::softmax_top_k> policies;
  policies.router.renormalise = true;
  policies.estimator = lrmoe::exact{};
  run_and_check<lrmoe::softmax_top_k, float>(p, routing_kind::softmax_renormalised, policies, 0);
  policies.estimator = lrmoe::pps{seed};
  policies.quota.keep = 0.9;
  run_and_check<lrmoe::softmax_top_k, float>(p, routing_kind::softmax_renormalised, policies, 0);
}

TEST_CASE("all three routers work in double precision", "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const oracle::extents shape{20, 6, 5, 8, 3, 2};
  const auto run = [&](auto router, routing_kind kind) {
    using Router = decltype(router);
    const problem p = random_problem(draw, shape, oracle::format::binary64, kind);
    policies_of<Router> policies;
    policies.router = router_for<Router>(kind, shape.E);
    policies.estimator = lrmoe::pps{seed};
    run_and_check<Router, double>(p, kind, policies, 1);
  };
  run(lrmoe::given_routing{}, routing_kind::given);
  run(sigmoid<double>{}, routing_kind::sigmoid);
  run(lrmoe::softmax_top_k{}, routing_kind::softmax_renormalised);
}

TEST_CASE("the comparison with the oracle notices a kept set that differs by one pair", "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const oracle::extents shape{24, 7, 5, 3, 2, 0};
  const problem p = random_problem(draw, shape, oracle::format::binary32, routing_kind::given);
  policies_of<lrmoe::given_routing> policies;
  policies.estimator = lrmoe::pps{seed};
  lrmoe::context<backend> context;
  layer_of<policies_of<lrmoe::given_routing>, float> layer(context, shape_of(shape), policies);
  const call<float> views(p);
  forward(layer, 0, views);
  backward(layer, views);
  auto c = coefficients(layer, shape.P());
  const auto dropped = std::find(c.begin(), c.end(), 0.0);
  REQUIRE(dropped != c.end());
  *dropped = 1.0;
  const auto at = oracle::forward(p.in);
  const auto wrong = oracle::backward(p.in, at, p.d_out, c);
  CHECK_FALSE(check::compare("dx", views.dx.values(), wrong.dx).passed);
  CHECK_FALSE(check::compare("d_down", views.d_down.values(),
                             oracle::accumulated(p.in.rules, wrong.down, p.down_before))
                  .passed);
}

TEST_CASE("padding tokens carry no load and get zero gradients, whatever is in their rows",
          "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const oracle::extents shape{12, 6, 5, 4, 2, 0};
  const bool reduced = GENERATE(false, true);
  const bool all_padding = GENERATE(false, true);
  const routing_kind kind = routing_kind::softmax_renormalised;
  problem p = random_problem(draw, shape, oracle::format::binary32, kind);
  p.padding.assign(12, all_padding ? 1 : 0);
  for (const std::size_t t : {0u, 1u, 7u, 11u}) p.padding[t] = 1;
  route(p, kind);
  policies_of<lrmoe::softmax_top_k> policies;
  policies.router.renormalise = true;
  policies.estimator = lrmoe::exact{};
  if (reduced) policies.estimator = lrmoe::pps{seed};
  lrmoe::context<backend> context;
  layer_of<policies_of<lrmoe::softmax_top_k>, float> layer(context, shape_of(shape), policies);
  // The views hold NaN in the padding tokens' rows, the oracle the values that it never uses.
  problem poisoned = p;
  for (integer t = 0; t < shape.T; ++t)
    if (p.padding[static_cast<std::size_t>(t)] != 0) {
      std::fill_n(poisoned.in.x.begin() + t * shape.D, shape.D, std::nan(""));
      std::fill_n(poisoned.d_out.begin() + t * shape.D, shape.D, std::nan(""));
      std::fill_n(poisoned.logits.begin() + t * shape.E, shape.E, std::nan(""));
    }
  const call<float> views(poisoned);
  forward(layer, 0, views);
  const auto report = backward(layer, views);
  check_step(p, views, coefficients(layer, shape.P()), kind);
  CHECK(report.pairs == (all_padding ? 0 : 16));
  const auto out = views.out.values(), dx = views.dx.values();
  for (integer t = 0; t < shape.T; ++t) {
    if (p.padding[static_cast<std::size_t>(t)] == 0) continue;
    for (integer i = t * shape.D; i < (t + 1) * shape.D; ++i) {
      CHECK(out[static_cast<std::size_t>(i)] == 0.0);
      CHECK(dx[static_cast<std::size_t>(i)] == 0.0);
    }
  }
}

TEST_CASE("single pairs may be padding when routing is given, whatever their weights", "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const oracle::extents shape{9, 6, 5, 3, 2, 4};
  problem p = random_problem(draw, shape, oracle::format::binary32, routing_kind::given);
  for (const std::size_t pair : {1u, 4u, 6u, 7u}) {
    p.in.experts[pair] = oracle::no_expert;
    p.in.weights[pair].value = std::nan("");
  }
  policies_of<lrmoe::given_routing> policies;
  policies.estimator = lrmoe::pps{seed};
  const auto report =
      run_and_check<lrmoe::given_routing, float>(p, routing_kind::given, policies, 2);
  CHECK(report.pairs == 14);
}

TEST_CASE("gates of zero and negative gates have exact gradients", "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const oracle::extents shape{20, 6, 5, 4, 2, 0};
  problem p = random_problem(draw, shape, oracle::format::binary32, routing_kind::given);
  for (std::size_t pair = 0; pair < 40; ++pair) {
    if (pair % 3 == 0) p.in.weights[pair].value = 0.0;
    if (pair % 3 == 1) p.in.weights[pair].value *= -1.0;
  }
  policies_of<lrmoe::given_routing> policies;
  const bool all_zero = GENERATE(false, true);
  if (all_zero)
    for (auto& w : p.in.weights) w.value = 0.0;
  const std::vector<any_estimator> estimators{lrmoe::exact{}, lrmoe::pps{seed}, lrmoe::top{}};
  for (const auto& estimator : estimators) {
    policies.estimator = estimator;
    run_and_check<lrmoe::given_routing, float>(p, routing_kind::given, policies, 2);
  }
}

TEST_CASE("renormalised weights of one expert a token are one and give the router no gradient",
          "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const oracle::extents shape{15, 6, 5, 4, 1, 0};
  const routing_kind kind = routing_kind::softmax_renormalised;
  const problem p = random_problem(draw, shape, oracle::format::binary32, kind);
  policies_of<lrmoe::softmax_top_k> policies;
  policies.router.renormalise = true;
  policies.estimator = lrmoe::pps{seed};
  lrmoe::context<backend> context;
  layer_of<policies_of<lrmoe::softmax_top_k>, float> layer(context, shape_of(shape), policies);
  const call<float> views(p);
  forward(layer, 0, views);
  backward(layer, views);
  check_step(p, views, coefficients(layer, shape.P()), kind);
  CHECK(views.d_logits.values() == std::vector<double>(60, 0.0));
}

TEST_CASE("tied logits and logits of minus infinity train like any others", "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const oracle::extents shape{16, 6, 5, 4, 3, 0};
  const double none = -std::numeric_limits<double>::infinity();
  for (const routing_kind kind : {routing_kind::softmax, routing_kind::softmax_renormalised}) {
    problem p = random_problem(draw, shape, oracle::format::binary32, kind);
    for (std::size_t t = 0; t < 16; ++t)
      for (std::size_t e = 0; e < 4; ++e)
        p.logits[4 * t + e] = t % 2 == 0 ? 0.5 : (e < 2 ? none : 0.25 * static_cast<double>(e));
    route(p, kind);
    policies_of<lrmoe::softmax_top_k> policies;
    policies.router.renormalise = kind == routing_kind::softmax_renormalised;
    policies.estimator = lrmoe::pps{seed};
    run_and_check<lrmoe::softmax_top_k, float>(p, kind, policies, 0);
  }
}

namespace {

/// A user's quota: experts with odd ids keep nothing.
struct even_experts_only {
  void validate() const {}
  static constexpr bool uses_history() { return false; }
  void assign(const lrmoe::quota_request& request, std::span<index_type> quotas) const {
    for (std::size_t e = 0; e < quotas.size(); ++e)
      quotas[e] = e % 2 == 0 ? (request.counts[e] + 1) / 2 : 0;
  }
};

}  // namespace

TEST_CASE("an expert with tokens and a quota of zero gets no gradient and costs nothing",
          "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const oracle::extents shape{30, 6, 5, 5, 2, 0};
  const problem p = random_problem(draw, shape, oracle::format::binary32, routing_kind::given);
  using policies =
      lrmoe::policies<lrmoe::given_routing, even_experts_only, lrmoe::lrm_score, any_estimator>;
  const std::vector<any_estimator> estimators{lrmoe::pps{seed}, lrmoe::top{},
                                              lrmoe::uniform{seed, true}};
  for (const auto& estimator : estimators) {
    lrmoe::context<backend> context;
    layer_of<policies, float> layer(context, shape_of(shape), {.estimator = estimator});
    const call<float> views(p);
    forward(layer, 0, views);
    const auto report = backward(layer, views);
    const auto c = coefficients(layer, shape.P());
    check_step(p, views, c, routing_kind::given);
    integer kept = 0;
    for (std::size_t pair = 0; pair < 60; ++pair) {
      if (p.in.experts[pair] % 2 == 1) CHECK(c[pair] == 0.0);
      kept += c[pair] != 0.0 ? 1 : 0;
    }
    CHECK(report.pairs_kept == kept);
    CHECK(report.routed.flops == 12.0 * static_cast<double>(kept * shape.D * shape.F));
    // What cannot be reached is bias, also under an unbiased rule.
    CHECK(report.certified.bias_bound > 0.0);
    const problem fresh = from_zero(p);
    call<float> overwritten(fresh);
    overwritten.poison_gradients();
    forward(layer, 0, overwritten);
    backward(layer, overwritten, lrmoe::gradient_update::overwrite);
    check_step(fresh, overwritten, c, routing_kind::given);
    const auto down = overwritten.d_down.values();
    for (integer i = 0; i < shape.F * shape.D; ++i)
      REQUIRE(down[static_cast<std::size_t>(shape.F * shape.D + i)] == 0.0);
  }
}

TEST_CASE("scorers and quotas choose the pairs that their formulas name", "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const oracle::extents shape{60, 6, 5, 3, 2, 0};
  const problem p = random_problem(draw, shape, oracle::format::binary32, routing_kind::given);
  const auto at = oracle::forward(p.in);
  const auto lrm = oracle::lrm_scores(p.in, at, p.d_out);
  const auto check = [&](lrmoe::scorer_kind scorer, const std::vector<double>& size) {
    using tiled_policies = lrmoe::policies<lrmoe::given_routing, lrmoe::tile_rounded<>,
                                           lrmoe::any_scorer, any_estimator>;
    tiled_policies policies;
    policies.scorer.kind = scorer;
    policies.estimator = lrmoe::top{};
    policies.quota = {.inner = {.keep = 0.3}, .tile = 4};
    lrmoe::context<backend> context;
    layer_of<tiled_policies, float> layer(context, shape_of(shape), policies);
    const call<float> views(p);
    forward(layer, 0, views);
    const auto report = backward(layer, views);
    const auto c = coefficients(layer, shape.P());
    for (const auto& pairs : oracle::pairs_by_expert(p.in.experts, shape.E)) {
      double least_kept = 1e300, most_dropped = 0.0;
      integer kept = 0;
      for (const integer pair : pairs) {
        const auto i = static_cast<std::size_t>(pair);
        if (c[i] != 0.0) {
          ++kept;
          least_kept = std::min(least_kept, size[i]);
        } else {
          most_dropped = std::max(most_dropped, size[i]);
        }
      }
      const auto share = std::ceil(0.3 * static_cast<double>(pairs.size()));
      CHECK(kept == std::min(static_cast<integer>(std::ceil(share / 4)) * 4,
                             static_cast<integer>(pairs.size())));
      CHECK(least_kept >= most_dropped * (1.0 - 1e-5));
    }
    double total = 0.0;
    for (const auto& score : lrm) total += score.value;
    CHECK(report.certified.score_total == Approx(total).epsilon(1e-5));
  };
  std::vector<double> lrm_size, weight_size, gradient_size;
  for (integer pair = 0; pair < shape.P(); ++pair) {
    const auto i = static_cast<std::size_t>(pair);
    lrm_size.push_back(std::sqrt(lrm[i].value));
    weight_size.push_back(std::abs(p.in.weights[i].value));
    double square = 0.0;
    for (integer d = 0; d < shape.D; ++d) {
      const double v = p.d_out[static_cast<std::size_t>((pair / shape.K) * shape.D + d)];
      square += v * v;
    }
    gradient_size.push_back(std::sqrt(square));
  }
  check(lrmoe::scorer_kind::lrm, lrm_size);
  check(lrmoe::scorer_kind::routing_weight, weight_size);
  check(lrmoe::scorer_kind::gradient_norm, gradient_size);
}

TEST_CASE("small bfloat16 gradients are not lost in a large accumulated one", "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const oracle::extents shape{16, 6, 5, 2, 1, 0};
  problem p = random_problem(draw, shape, oracle::format::bfloat16, routing_kind::given);
  for (double& value : p.d_out) value = oracle::round_to(oracle::format::bfloat16, value * 1e-3);
  // bfloat16 would round 256 + 0.01 back to 256, a hundred times.
  std::fill(p.down_before.begin(), p.down_before.end(), 256.0);
  policies_of<lrmoe::given_routing> policies;
  policies.estimator = lrmoe::exact{};
  lrmoe::context<backend> context;
  layer_of<policies_of<lrmoe::given_routing>, lrmoe::bfloat16> layer(context, shape_of(shape),
                                                                     policies);
  const call<lrmoe::bfloat16> views(p);
  constexpr integer steps = 100;
  for (integer step = 0; step < steps; ++step) {
    forward(layer, static_cast<std::uint64_t>(step), views);
    backward(layer, views);
  }
  auto exact = oracle::backward(p.in, oracle::forward(p.in), p.d_out, std::vector<double>(16, 1.0));
  double largest = 0.0;
  for (auto& g : exact.down.data) {
    g.value *= steps;
    largest = std::max(largest, std::abs(g.value));
    // A hundred sums near 256 in float, each off by half a unit in the last place.
    g.error = g.error * steps + steps * 257.0 * std::ldexp(1.0, -24);
  }
  CHECK(largest > 0.05);
  check::check_close("d_down", views.d_down.values(),
                     oracle::accumulated(p.in.rules, exact.down, p.down_before));
}

TEST_CASE("scores that are not finite are counted and their pairs kept", "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const oracle::extents shape{20, 6, 5, 3, 2, 0};
  problem p = random_problem(draw, shape, oracle::format::binary32, routing_kind::given);
  p.d_out[7 * 6 + 2] = std::numeric_limits<double>::infinity();
  policies_of<lrmoe::given_routing> policies;
  policies.estimator = lrmoe::top{};
  lrmoe::context<backend> context;
  layer_of<policies_of<lrmoe::given_routing>, float> layer(context, shape_of(shape), policies);
  const call<float> views(p);
  forward(layer, 0, views);
  const auto report = backward(layer, views);
  CHECK(report.certified.nonfinite == 2);
  CHECK(std::isfinite(report.certified.score_total));
  const auto c = coefficients(layer, shape.P());
  CHECK(c[14] == 1.0);
  CHECK(c[15] == 1.0);
}
