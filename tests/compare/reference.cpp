// The comparison against the plain oracle: what the oracle computes with every operation rounded must
// pass, with its planted faults it must not.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "catch.hpp"
#include "compare/evaluation.hpp"
#include "fixture.hpp"

using namespace bench::compare;

namespace {

oracle::extents extents_of(const compare_case& of) {
  return {of.T, of.shape.D, of.shape.F, of.shape.E, of.shape.K, of.shape.F_shared};
}

template <class T>
std::vector<double> doubles(const std::vector<T>& values) {
  std::vector<double> result;
  for (const T value : values) result.push_back(value_of(value));
  return result;
}

/// Results of a step as the oracle computes them, rounding as the formats do.
template <class Element>
layer_results<Element> emulated(const layer_inputs<Element>& in, const std::vector<double>& c,
                                oracle::mutation fault = oracle::mutation::none) {
  using real = lrmoe::accumulate_t<Element>;
  const auto shape = extents_of(in.of);
  oracle::layer layer;
  layer.rules = {fixture::format_of<Element>(), true};
  layer.shape = shape;
  layer.x = doubles(in.x);
  layer.gate_up = doubles(in.gate_up), layer.down = doubles(in.down);
  layer.shared_gate_up = doubles(in.shared_gate_up), layer.shared_down = doubles(in.shared_down);
  const bool given = in.of.router == router_kind::given;
  const bool sigmoid = in.of.router == router_kind::sigmoid;
  oracle::sigmoid_options options;
  options.groups = in.of.groups(), options.groups_kept = in.of.groups_kept();
  options.scaling = in.of.scaling;
  oracle::routing routed;
  if (given) {
    layer.experts = in.experts;
    for (const real w : in.weights) layer.weights.push_back({static_cast<double>(w), 0.0});
  } else {
    const auto logits = doubles(in.logits);
    routed =
        sigmoid ? oracle::sigmoid_top_k(layer.rules, logits, {}, shape.T, shape.E, shape.K, options)
                : oracle::softmax_top_k(layer.rules, logits, shape.T, shape.E, shape.K,
                                        in.of.router == router_kind::softmax);
    layer.experts = routed.experts;
    layer.weights = routed.weights;
  }
  const auto at = oracle::forward(layer);
  const auto found = oracle::backward(layer, at, doubles(in.d_out), c, fault);

  layer_results<Element> results;
  const auto elements = [](const oracle::tensor& from, auto& to) {
    using value_type = typename std::decay_t<decltype(to)>::value_type;
    for (const auto& one : from.data) to.push_back(element_of<value_type>(one.value));
  };
  const auto added = [&](const oracle::tensor& from, tensor_id before, std::vector<real>& to) {
    for (std::size_t i = 0; i < from.data.size(); ++i)
      to.push_back(static_cast<real>(from.data[i].value) +
                   in.before(before, static_cast<std::int64_t>(i)));
  };
  elements(at.out, results.out);
  elements(found.dx, results.dx);
  added(found.gate_up, tensor_id::before_gate_up, results.d_gate_up);
  added(found.down, tensor_id::before_down, results.d_down);
  added(found.shared_gate_up, tensor_id::before_shared_gate_up, results.d_shared_gate_up);
  added(found.shared_down, tensor_id::before_shared_down, results.d_shared_down);
  if (given)
    elements(found.d_weights, results.d_router);
  else if (sigmoid)
    elements(oracle::sigmoid_top_k_backward(layer.rules, routed, found.d_weights, options),
             results.d_router);
  else
    elements(oracle::softmax_top_k_backward(layer.rules, routed, found.d_weights,
                                            in.of.router == router_kind::softmax),
             results.d_router);
  results.experts = layer.experts;
  for (const auto& w : layer.weights) results.weights.push_back(static_cast<real>(w.value));
  for (const double factor : c) results.factors.push_back(static_cast<float>(factor));
  return results;
}

/// Every third pair dropped, the others with factors that float holds.
std::vector<double> some_factors(fixture::random& draw, std::int64_t P) {
  std::vector<double> c;
  for (std::int64_t p = 0; p < P; ++p)
    c.push_back(p % 3 == 1 ? 0.0 : static_cast<float>(draw.uniform(1.0, 4.0)));
  return c;
}

template <class Element>
std::string failures(const layer_inputs<Element>& in, const layer_results<Element>& results,
                     const std::string& injected = {}) {
  std::string failed;
  for (const auto& one : layer_reference<Element>(in, results, injected).run().tensors)
    if (!one.passed()) failed += one.name() + " ";
  return failed;
}

compare_case case_of(router_kind router, std::int64_t shared) {
  compare_case of{.T = 40,
                  .shape = {.D = 21, .F = 14, .E = 8, .K = 2, .F_shared = shared},
                  .shape_name = {},
                  .skew = "empty",
                  .router = router,
                  .estimator = estimator_kind::pps,
                  .keep = 0.5};
  return of;
}

}  // namespace

TEMPLATE_TEST_CASE("results rounded in every operation pass the comparison", "[compare]", float,
                   double, lrmoe::bfloat16) {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const auto router = GENERATE(router_kind::softmax, router_kind::softmax_raw, router_kind::sigmoid,
                               router_kind::given);
  const std::int64_t shared = GENERATE(0, 9);
  const auto in = random_inputs<TestType>(case_of(router, shared), seed);
  const auto c = some_factors(draw, in.of.P());
  const auto results = emulated(in, c);
  CHECK(failures(in, results) == "");
  // Rounding is also within what it is likely to do.
  for (const auto& one : layer_reference<TestType>(in, results, {}, true).run().tensors) {
    INFO(one.name() << " has ratio " << one.ratio());
    CHECK(one.passed());
  }
}

TEST_CASE("for long sums likely errors are far smaller than possible ones", "[compare]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  compare_case of{.T = 6, .shape = {.D = 300, .F = 200, .E = 2, .K = 1}, .shape_name = {}};
  of.router = router_kind::given;
  const auto in = random_inputs<float>(of, seed);
  auto results = emulated(in, some_factors(draw, of.P()));
  for (float* value : {&results.out[7], &results.dx[7]}) *value += 1.0F;
  const auto possible = layer_reference<float>(in, results).run();
  const auto likely = layer_reference<float>(in, results, {}, true).run();
  for (std::size_t i = 0; i < 2; ++i) {
    INFO(possible.tensors[i].name());
    CHECK(likely.tensors[i].worst().error == possible.tensors[i].worst().error);
    CHECK(likely.tensors[i].ratio() > 4.0 * possible.tensors[i].ratio());
  }
}

TEMPLATE_TEST_CASE("every fault that the oracle plants fails the comparison", "[compare]", float,
                   double, lrmoe::bfloat16) {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  auto in = random_inputs<TestType>(case_of(router_kind::given, 9), seed);
  // No pair may count too little to be missed.
  for (auto& w : in.weights) w += w < 0 ? -1 : 1;
  const auto c = some_factors(draw, in.of.P());
  using m = oracle::mutation;
  for (const auto fault :
       {m::silu_derivative_missing, m::silu_derivative_is_sigmoid, m::coefficient_missing,
        m::coefficient_applied_twice, m::coefficient_not_in_weights, m::weight_not_applied,
        m::weight_applied_twice, m::dropped_pair_kept, m::kept_pair_dropped, m::gate_and_up_swapped,
        m::input_gradient_without_up, m::token_of_next_pair, m::shared_gradient_missing}) {
    INFO("fault " << static_cast<int>(fault));
    CHECK(failures(in, emulated(in, c, fault)) != "");
  }
}

TEST_CASE("an element off by four times its allowance fails its tensor and no other", "[compare]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const auto router = GENERATE(router_kind::softmax, router_kind::given);
  const auto in = random_inputs<float>(case_of(router, 9), seed);
  const auto results = emulated(in, some_factors(draw, in.of.P()));
  for (const std::string name : {"out", "dx", "d_gate_up", "d_down", "d_shared_gate_up",
                                 "d_shared_down", "d_logits", "d_given"}) {
    const bool other_router = name == (router == router_kind::given ? "d_logits" : "d_given");
    CHECK(failures(in, results, name) == (other_router ? "" : name + " "));
  }
}

TEST_CASE("NaN and infinity never pass", "[compare]") {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    tensor_comparison tensor("t");
    tensor.add_rows(0, 3, 2, [&](std::int64_t r, std::int64_t c) {
      return element_check{r == 1 && c == 1 ? bad : 1.0, 1.0, {1e-3, 0.0, 0.0}};
    });
    CHECK_FALSE(tensor.passed());
    CHECK(tensor.wrong() == 1);
    CHECK(tensor.worst().row == 1);
    CHECK(tensor.worst().column == 1);
  }
}

TEST_CASE("an element that must be exact fails when its last bit differs", "[compare]") {
  const auto compared = [](double got) {
    tensor_comparison tensor("t");
    tensor.add_rows(0, 1, 1, [&](std::int64_t, std::int64_t) {
      return element_check{got, 1.0, {}};
    });
    return tensor.passed();
  };
  CHECK(compared(1.0));
  CHECK_FALSE(compared(std::nextafter(1.0, 2.0)));
}

TEST_CASE("a token sent to an expert that it did not choose is not explained by rounding",
          "[compare]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const auto router = GENERATE(router_kind::softmax, router_kind::sigmoid, router_kind::given);
  const auto in = random_inputs<float>(case_of(router, 0), seed);
  auto results = emulated(in, some_factors(draw, in.of.P()));
  const auto found = [&] { return layer_reference<float>(in, results).run().routing; };
  CHECK(found().unexplained.empty());
  REQUIRE(inject("routing", in.of, results));
  CHECK(found().unexplained == std::vector<std::int64_t>{0});
}
