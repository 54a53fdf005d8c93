// The load-balancing loss and the whole model: gradients against finite differences.
#include "model.hpp"

#include <cmath>
#include <string>
#include <vector>

#include "catch.hpp"
#include "finite_difference.hpp"

using namespace train;
using namespace train_test;

TEST_CASE("the load-balancing loss equals the plain formula and differentiates to the logits",
          "[train]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  const int rows = 130, experts = 7;
  const load_balance balance("balance", rows + 3, experts);
  matrix logits("logits", rows, experts), dlogits("dlogits", rows, experts);
  fill_normal(logits, 1.0, random);
  std::vector<std::int32_t> counts(experts);
  double pairs = 0.0;
  for (int e = 0; e < experts; ++e)
    pairs += counts[static_cast<std::size_t>(e)] = static_cast<int>(random.integer(0, 90));
  counts[0] += 1;
  pairs += 1.0;

  const auto plain = [&] {
    loss_value loss;
    for (int t = 0; t < rows; ++t) {
      double total = 0.0;
      for (int e = 0; e < experts; ++e) total += std::exp(double(logits(t, e)));
      for (int e = 0; e < experts; ++e)
        loss.sum += experts * counts[static_cast<std::size_t>(e)] / pairs *
                    std::exp(double(logits(t, e))) / total / rows;
    }
    loss.magnitude = 1.0 / rows;  // what one row adds; the formula itself is in double
    return loss;
  };
  CHECK(std::abs(balance.backward(logits, counts, rows, 1.0, dlogits) - plain().sum) <= 1e-5);
  check_gradient("logits", logits, dlogits, plain);

  // The gradient is scaled by the coefficient and added to what is there.
  matrix shifted("shifted", rows, experts);
  Kokkos::deep_copy(shifted, 2.0f);
  balance.backward(logits, counts, rows, 3.0, shifted);
  for (int t = 0; t < rows; ++t)
    for (int e = 0; e < experts; ++e)
      REQUIRE(std::abs(shifted(t, e) - (2.0f + 3.0f * dlogits(t, e))) <= 1e-6);
}

TEST_CASE("the load-balancing loss is 1 for equal loads", "[train]") {
  const int rows = 8, experts = 4;
  const load_balance balance("balance", rows, experts);
  const matrix logits("logits", rows, experts), dlogits("dlogits", rows, experts);
  const std::vector<std::int32_t> counts(experts, 4);
  CHECK(balance.backward(logits, counts, rows, 1.0, dlogits) == Approx(1.0));
}

namespace {

struct small_model {
  static constexpr std::int64_t context = 6, sequences = 3, rows = context * sequences;

  // Every expert sees every token: no choice of experts can jump between two differences.
  explicit small_model(std::uint64_t seed, lrmoe::layer_shape moe = {8, 5, 3, 3})
      : parameters(seed),
        model(parameters, {11, context, 2, 8, 2, moe, 0.0}, exact_policies(), {}, sequences + 1),
        input("input", rows),
        target("target", rows) {
    fixture::random random(seed);
    for (int t = 0; t < rows; ++t) {
      input(t) = static_cast<std::int32_t>(random.integer(0, 10));
      target(t) = static_cast<std::int32_t>(random.integer(0, 10));
    }
    // Larger than at the start of training, so that every part of the gradient counts.
    for (parameter& p : parameters) {
      if (p.name == "embedding") fill_normal(p.value, 1.0, random);
    }
  }

  static moe_policies exact_policies() {
    moe_policies policies;
    policies.estimator = lrmoe::exact{};
    return policies;
  }

  parameter_list parameters;
  language_model model;
  tokens input, target;
};

}  // namespace

TEST_CASE("the whole model differentiates to every parameter", "[train]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  small_model small(seed);
  small.parameters.zero_gradients();
  const double trained = small.model.train(0, small.input, small.target);
  CHECK(small.model.evaluate(small.input, small.target) == trained);
  const auto loss = [&] {
    loss_value value;
    value.sum = small.model.evaluate(small.input, small.target);
    value.magnitude = value.sum;
    return value;
  };
  for (const parameter& p : small.parameters) {
    INFO("gradient by " << p.name);
    CHECK(wrong_elements(p.value.data(), p.gradient.data(), p.value.size(), loss, 12) == 0);
  }
  // The check sees a gradient that is off by a tenth.
  int refused = 0;
  for (const parameter& p : small.parameters) {
    std::vector<float> mutated(p.gradient.data(), p.gradient.data() + p.size());
    for (float& g : mutated) g *= 1.1f;
    refused += wrong_elements(p.value.data(), mutated.data(), mutated.size(), loss, 12) > 0;
  }
  CHECK(refused >= 10);
}

TEST_CASE("frozen experts get no gradient, everything else keeps its own", "[train]") {
  small_model free(5, {8, 5, 4, 2}), frozen(5, {8, 5, 4, 2});
  frozen.model.freeze_experts();
  for (small_model* m : {&free, &frozen}) {
    m->parameters.zero_gradients();
    m->model.train(0, m->input, m->target);
  }
  auto other = free.parameters.begin();
  for (const parameter& p : frozen.parameters) {
    const bool expert = p.name.ends_with(".gate_up") || p.name.ends_with(".down");
    INFO(p.name);
    CHECK(p.frozen == expert);
    bool zero = true, equal = true;
    for (std::int64_t i = 0; i < p.size(); ++i) {
      zero = zero && p.gradient(i) == 0.0f;
      equal = equal && p.gradient(i) == other->gradient(i);
    }
    CHECK(zero == expert);
    CHECK(equal == !expert);
    ++other;
  }
}
