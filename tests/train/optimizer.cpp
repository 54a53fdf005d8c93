// AdamW, the gradient's norm and the learning-rate schedule against plain formulas.
#include <cmath>
#include <vector>

#include "adamw.hpp"
#include "catch.hpp"
#include "finite_difference.hpp"
#include "schedule.hpp"

using namespace train;

TEST_CASE("adamw takes the steps of the plain formula", "[train]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  parameter_list parameters(seed);
  const parameter& decayed = parameters.add_random("w", 10000, 1.0);
  const parameter& plain = parameters.add_ones("gain", 7);
  parameter& frozen = parameters.add_random("frozen", 5, 1.0);
  frozen.frozen = true;
  const lrmoe::adamw_settings settings{.weight_decay = 0.3};
  const double rate = 0.01, scale = 0.5;

  struct entry {
    double w, m = 0.0, v = 0.0;
  };
  const auto copy = [](const parameter& p) {
    std::vector<entry> entries;
    for (std::int64_t i = 0; i < p.size(); ++i) entries.push_back({p.value(i)});
    return entries;
  };
  auto expected_decayed = copy(decayed), expected_plain = copy(plain);
  const auto frozen_before = copy(frozen);
  for (int step = 1; step <= 5; ++step) {
    for (const parameter& p : parameters) train_test::fill_normal(p.gradient, 1.0, random);
    adamw_step(parameters, settings, {.step = step, .rate = rate, .gradient_scale = scale});
    const auto advance = [&](std::vector<entry>& entries, const parameter& p, double decay) {
      for (std::size_t i = 0; i < entries.size(); ++i) {
        entry& e = entries[i];
        const double g = p.gradient(i) * scale;
        e.m = 0.9 * e.m + 0.1 * g;
        e.v = 0.95 * e.v + 0.05 * g * g;
        const double m = e.m / (1 - std::pow(0.9, step)), v = e.v / (1 - std::pow(0.95, step));
        e.w -= rate * (m / (std::sqrt(v) + 1e-8) + decay * e.w);
        REQUIRE(std::abs(p.value(i) - e.w) <= 16.0 * step * 0x1p-24 * (std::abs(e.w) + 5.0 * rate));
      }
    };
    advance(expected_decayed, decayed, 0.3);
    advance(expected_plain, plain, 0.0);
  }
  for (std::size_t i = 0; i < frozen_before.size(); ++i)
    CHECK(frozen.value(i) == frozen_before[i].w);
}

TEST_CASE("gradient norm leaves out frozen parameters", "[train]") {
  parameter_list parameters(0);
  parameter& a = parameters.add_random("a", 20000, 1.0);
  parameter& b = parameters.add_random("b", 4, 1.0);
  Kokkos::deep_copy(a.gradient, 0.5f);
  Kokkos::deep_copy(b.gradient, 100.0f);
  CHECK(squared_gradient_norm(parameters) == Approx(20000 * 0.25 + 40000.0));
  b.frozen = true;
  CHECK(squared_gradient_norm(parameters) == Approx(20000 * 0.25));
}

TEST_CASE("the learning rate rises over the warm-up and falls to a tenth", "[train]") {
  const schedule s{2.0, 10, 110};
  CHECK(s.rate(0) == Approx(0.2));
  CHECK(s.rate(9) == Approx(2.0));
  CHECK(s.rate(10) == Approx(2.0));
  CHECK(s.rate(60) == Approx(1.1));
  CHECK(s.rate(109) == Approx(0.2).margin(0.002));
  for (int step = 11; step < 110; ++step) CHECK(s.rate(step) < s.rate(step - 1));
  CHECK(schedule{1.0, 0, 1}.rate(0) == Approx(1.0));
}
