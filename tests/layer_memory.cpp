// Predicted memory is measured memory, and a budget is kept before anything is allocated.
#include <cctype>
#include <functional>

#include <lrmoe/layer.hpp>

#include "layer_harness.hpp"

using namespace layer_test;

namespace {

using softmax_policies = policies_of<lrmoe::softmax_top_k>;
using lrmoe::memory_category;
using lrmoe::router_gradient;
using lrmoe::saved_activations;

/// A problem of which only sizes matter; some tokens are padding.
problem sized_problem(fixture::random& draw, const oracle::extents& shape, oracle::format format,
                      bool padded) {
  problem p = random_problem(draw, shape, format, routing_kind::softmax_renormalised);
  if (padded) {
    p.padding.assign(static_cast<std::size_t>(shape.T), 0);
    for (std::size_t t = 0; t < p.padding.size(); t += 5) p.padding[t] = 1;
  }
  return p;
}

softmax_policies policies_with(const any_estimator& estimator, double keep, saved_activations saved,
                               const lrmoe::gradient_scope& scope) {
  softmax_policies policies;
  policies.router.renormalise = true;
  policies.estimator = estimator;
  policies.quota.keep = keep;
  policies.saved = saved;
  policies.scope = scope;
  return policies;
}

std::vector<lrmoe::gradient_scope> scopes() {
  return {{},
          {.dw_share = 0.5},
          {.dx_share = 0.4, .dw_share = 0.5},
          {.dx_share = 0.5, .router = router_gradient::exact},
          {.router = router_gradient::sketch, .sketch_size = 33}};
}

/// What a fresh context's ledger shows after one step beside what the model says of it.
template <class Element>
void check_prediction(const problem& p, const softmax_policies& policies, bool keep_for_backward) {
  lrmoe::context<backend> context;
  layer_of<softmax_policies, Element> layer(context, shape_of(p.in.shape), policies);
  const call<Element> views(p);
  layer.forward(0, views.x_view(), views.template router_input<lrmoe::softmax_top_k>(),
                views.weights(), views.out_view(), keep_for_backward);
  lrmoe::layer_call call{.T = p.in.shape.T, .backward = keep_for_backward};
  call.pairs = layer.last_plan().pairs();
  if (keep_for_backward) {
    backward(layer, views);
    const auto& selector = layer.last_selector();
    call.kept = selector.kept();
    call.kept_dx = selector.kept_dx();
    call.kept_dw = selector.kept_dw();
  }
  const bool all = policies.estimator.keeps_all();
  call.scores = !all;
  call.variance = !all && policies.estimator.unbiased();
  call.saved =
      all && policies.saved == saved_activations::proxy ? saved_activations::save : policies.saved;
  call.router = all ? router_gradient::kept : policies.scope.router;
  call.sketch_size = policies.scope.sketch_size;
  const auto predicted = lrmoe::layer_memory<Element, backend>(context.space, layer.shape(), call);
  for (std::size_t i = 0; i < lrmoe::num_memory_categories; ++i) {
    const auto category = static_cast<memory_category>(i);
    INFO(lrmoe::name_of(category));
    CHECK(predicted[category] == context.memory.peak_bytes(category));
  }
  CHECK(predicted.total() == context.memory.peak_bytes());
}

std::string memory_refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const lrmoe::memory_error& failure) {
    return failure.what();
  }
  return {};
}

/// The number in front of a text.
std::int64_t number_before(const std::string& message, const std::string& text) {
  const auto end = message.find(text);
  REQUIRE(end != std::string::npos);
  auto begin = end;
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(message[begin - 1]))) --begin;
  REQUIRE(begin < end);
  return std::stoll(message.substr(begin, end - begin));
}

}  // namespace

TEMPLATE_TEST_CASE("the memory model predicts the ledger's peak to the byte", "[layer]", float,
                   lrmoe::bfloat16) {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const auto format = fixture::format_of<TestType>();
  const auto shape =
      GENERATE(oracle::extents{130, 11, 7, 4, 2, 0}, oracle::extents{40, 9, 5, 8, 3, 64},
               oracle::extents{0, 4, 3, 2, 1, 5}, oracle::extents{600, 3, 2, 9, 4, 1});
  const bool padded = GENERATE(false, true);
  const problem p = sized_problem(draw, shape, format, padded);
  for (const auto saved :
       {saved_activations::save, saved_activations::recompute, saved_activations::proxy}) {
    INFO("saved " << static_cast<int>(saved));
    for (const auto& scope : scopes()) {
      INFO("dx " << scope.dx_share << " dw " << scope.dw_share << " router "
                 << static_cast<int>(scope.router));
      const double keep = draw.uniform(0.05, 1.0);
      for (const any_estimator& estimator : std::vector<any_estimator>{lrmoe::pps{1}, lrmoe::top{}})
        check_prediction<TestType>(p, policies_with(estimator, keep, saved, scope), true);
    }
    check_prediction<TestType>(p, policies_with(lrmoe::exact{}, 1.0, saved, {}), true);
    check_prediction<TestType>(p, policies_with(lrmoe::pps{1}, 0.5, saved, {}), false);
  }
}

TEST_CASE("recomputed and proxied activations take less memory than saved ones", "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const problem p = sized_problem(draw, {512, 16, 64, 4, 4, 0}, oracle::format::binary32, false);
  const auto saved_bytes = [&](saved_activations saved) {
    lrmoe::context<backend> context;
    layer_of<softmax_policies, float> layer(context, shape_of(p.in.shape),
                                            policies_with(lrmoe::pps{1}, 0.25, saved, {}));
    const call<float> views(p);
    forward(layer, 0, views);
    return static_cast<double>(backward(layer, views).saved_activation_bytes);
  };
  const double save = saved_bytes(saved_activations::save);
  CHECK(save == 2048.0 * (2 * 64 + 1) * 4);
  CHECK(saved_bytes(saved_activations::proxy) <= 0.3 * save);
  CHECK(saved_bytes(saved_activations::recompute) <= 0.4 * save);
}

TEST_CASE("a call that does not fit its budget is refused before it allocates, with what would fit",
          "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const oracle::extents shape{400, 12, 24, 4, 2, 0};
  const problem p = sized_problem(draw, shape, oracle::format::binary32, false);
  const auto policies = policies_with(lrmoe::pps{1}, 0.5, saved_activations::save, {});
  const call<float> views(p), untouched(p);

  lrmoe::context<backend> free_context;
  layer_of<softmax_policies, float> free_layer(free_context, shape_of(shape), policies);
  forward(free_layer, 0, views);
  backward(free_layer, views);
  const std::int64_t needed = free_context.memory.peak_bytes();

  // Exactly what is needed suffices, beside what the caller has booked.
  lrmoe::context<backend> context;
  context.memory.add(memory_category::expert_weights, 1000);
  context.memory.set_budget_bytes(needed + 1000);
  {
    layer_of<softmax_policies, float> layer(context, shape_of(shape), policies);
    forward(layer, 0, views);
    backward(layer, views);
    forward(layer, 1, views);
    backward(layer, views);
    CHECK(context.memory.peak_bytes() == needed + 1000);
  }

  // One byte less does not. What the message says would fit, does.
  const auto refused_with = [&](std::int64_t budget, const softmax_policies& choices,
                                const call<float>& inputs) {
    lrmoe::context<backend> small;
    small.memory.add(memory_category::expert_weights, 1000);
    small.memory.set_budget_bytes(budget);
    layer_of<softmax_policies, float> layer(small, shape_of(shape), choices);
    return memory_refusal([&] {
      forward(layer, 0, inputs);
      backward(layer, inputs);
    });
  };
  const call<float> fresh(p);
  const std::string message = refused_with(needed + 999, policies, fresh);
  INFO(message);
  CHECK(fixture::names(message, {std::to_string(needed) + " bytes", "token buffers",
                                 "saved activations", "workspace", "expert weights 1000",
                                 std::to_string(needed - 1) + " of a budget of"}));
  CHECK(fresh.out.untouched());
  CHECK(number_before(message, " pairs kept; ") < free_layer.last_plan().pairs_kept());
  CHECK(number_before(message, " tokens; ") < 400);
  CHECK(number_before(message, " tokens; ") > 380);
  CHECK(message.find("a budget of " + std::to_string(needed + 1000) + " bytes") !=
        std::string::npos);
  auto recompute = policies;
  recompute.saved = saved_activations::recompute;
  // Operations that copy rows may need more workspace to compute g and u again than is saved.
  const bool recomputing_fits = message.find("saved_activations::recompute") != std::string::npos;
  CHECK((recomputing_fits || !backend::expert_operations::gathers));
  CHECK(refused_with(needed + 999, recompute, fresh).empty() == recomputing_fits);
  auto fewer = policies;
  fewer.quota.keep = static_cast<double>(number_before(message, " pairs kept; ") - shape.E) / 800.0;
  CHECK(refused_with(needed + 999, fewer, fresh).empty());

  // Without room for forward the call is refused at once, before routing.
  lrmoe::context<backend> tiny;
  tiny.memory.set_budget_bytes(100);
  layer_of<softmax_policies, float> layer(tiny, shape_of(shape), policies);
  const std::string early = memory_refusal([&] { forward(layer, 0, fresh); });
  INFO(early);
  CHECK(fixture::names(early, {"400 tokens", "100 of a budget of 100 bytes"}));
  CHECK(tiny.memory.allocations() == 0);
}
