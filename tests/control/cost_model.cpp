#include <cmath>
#include <limits>

#include <lrmoe/control/cost_model.hpp>

#include "catch.hpp"
#include "fixture.hpp"

namespace {

constexpr lrmoe::layer_shape shape{.D = 16, .F = 4, .E = 4, .K = 2, .F_shared = 0};

}  // namespace

TEST_CASE("predicted times are FLOPs over the rate at a width and bytes over the rate of memory",
          "[control]") {
  lrmoe::machine_rates rates;
  rates.product_flops_per_s = 1000;
  rates.product_half_width = 8;  // half the rate at sqrt(D F) = 8
  rates.memory_bytes_per_s = 10;
  const lrmoe::cost_model model(rates, shape, 4, 4);
  // 6 D F FLOPs a pair at 500 a second; rows of 3 D + 4 F elements, 3 D F a used expert, D a token.
  const double flops = 6.0 * 16 * 4, row = 3.0 * 16 + 4 * 4, weights = 3.0 * 16 * 4;
  CHECK(model.forward_s(5, 10, 3) ==
        Approx(10 * flops / 500 + 4.0 / 10 * (10 * row + 3 * weights + 5 * 16)));
  CHECK(model.kept_pair_s() == Approx(2 * flops / 500 + 4.0 / 10 * (5.0 * 16 + 10 * 4)));
  CHECK(model.kept_pair_s(1, 1, true) ==
        Approx(model.kept_pair_s() + flops * 4 / 6 / 500 + 4.0 / 10 * (16 + 3.0 * 4)));
  // 2, 4 and 6 of 12 D F FLOPs for dh', dX and dW.
  CHECK(model.kept_pair_s(0.5, 0.25) ==
        Approx(flops / 6 * (2 + 0.5 * 4 + 0.25 * 6) / 500 +
               4.0 / 10 * (16 + 5.0 * 4 + 0.5 * (2.0 * 16 + 2 * 4) + 0.25 * (2.0 * 16 + 3 * 4))));
  CHECK(model.dropped_pair_s() == Approx(flops / 3 / 500 + 4.0 / 10 * (16 + 2.0 * 4)));
  CHECK(model.dropped_pair_s(true) - model.dropped_pair_s() ==
        Approx(model.kept_pair_s(1, 1, true) - model.kept_pair_s()));
  CHECK(model.backward_fixed_s(5, 10, 3) ==
        Approx((10 * 24.0 * 4 + 2.0 * 5 * 16 * 4 + 3 * weights * 12) / 10));
  CHECK(model.remote_pair_s({.bytes_per_s = 9, .latency_s = 0}) == Approx((16.0 * 4 + 4 + 8) / 9));
}

TEST_CASE("a shared expert adds its own products whatever is kept", "[control]") {
  const lrmoe::machine_rates rates;
  auto with = shape;
  with.F_shared = 4;
  const lrmoe::cost_model alone(rates, shape, 4, 4), both(rates, with, 4, 4);
  // As many tokens as pairs through an expert of the same width.
  CHECK(both.forward_s(10, 10, 1) - alone.forward_s(10, 10, 1) ==
        Approx(alone.forward_s(0, 10, 1)));
  CHECK(both.backward_fixed_s(10, 0, 0) - alone.backward_fixed_s(10, 0, 0) ==
        Approx(10 * alone.kept_pair_s() + alone.backward_fixed_s(0, 0, 1)));
  CHECK(both.kept_pair_s() == alone.kept_pair_s());
}

TEST_CASE("rates that are no rates are refused by name, value and remedy", "[control]") {
  const auto refused = [](const auto& spoil, std::initializer_list<std::string> parts) {
    lrmoe::machine_rates rates;
    spoil(rates);
    return fixture::names(fixture::refusal([&] { rates.validate(); }), parts);
  };
  CHECK_NOTHROW(lrmoe::machine_rates{}.validate());
  for (const double bad : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    INFO(bad);
    CHECK(
        refused([&](auto& r) { r.product_flops_per_s = bad; }, {"product_flops_per_s", "measure"}));
    CHECK(refused([&](auto& r) { r.memory_bytes_per_s = bad; }, {"memory_bytes_per_s"}));
    CHECK(refused([&](auto& r) { r.inside.bytes_per_s = bad; }, {"inside.bytes_per_s"}));
    CHECK(refused([&](auto& r) { r.across.bytes_per_s = bad; }, {"across.bytes_per_s"}));
  }
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    INFO(bad);
    CHECK(refused([&](auto& r) { r.across.latency_s = bad; }, {"across.latency_s"}));
    CHECK(refused([&](auto& r) { r.product_half_width = bad; }, {"product_half_width"}));
  }
  CHECK(refused([](auto& r) { r.ranks_per_node = 0; }, {"ranks_per_node = 0", "at least 1"}));
}
