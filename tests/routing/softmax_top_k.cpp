#include <lrmoe/routing/softmax_top_k.hpp>

#include "catch.hpp"
#include "routers.hpp"

using namespace router_test;

TEMPLATE_TEST_CASE("softmax routing and its gradient equal the oracle", "[routing]", float,
                   double) {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  oracle::arithmetic rules;
  rules.storage = fixture::format_of<TestType>();
  struct size {
    integer T, E, K;
  };
  const auto [T, E, K] = GENERATE(size{33, 8, 2}, size{17, 5, 5}, size{9, 1, 1}, size{40, 31, 1},
                                  size{5, 128, 8}, size{0, 4, 2});
  const bool renormalise = GENERATE(false, true);
  INFO("T = " << T << ", E = " << E << ", K = " << K << ", renormalise = " << renormalise);
  const auto logits = draw.normal(T * E, 3.0, rules.storage);
  const fixture::array<TestType> input(logits, 1);
  const lrmoe::softmax_top_k router{renormalise};
  const lrmoe::router_logits<TestType, device> from(input.matrix(T, E));
  const auto got = route(router, from, K);
  const auto expected = oracle::softmax_top_k(rules, logits, T, E, K, renormalise);
  CHECK(got.ids() == expected.experts);
  check::check_close("weights", got.weights.values(), as_tensor(expected.weights, K));

  const auto d_values = draw.normal(T * K, 1.0, rules.storage);
  const fixture::array<TestType> d_weights(d_values), d_logits(T * E);
  oracle::tensor d_exact(T, K);
  for (std::size_t i = 0; i < d_values.size(); ++i) d_exact.data[i].value = d_values[i];
  const fixture::space_type space;
  router.backward(space, from, got.views(), fixture::constant(d_weights.matrix(T, K)),
                  d_logits.matrix(T, E));
  space.fence("router_test::backward");
  check::check_close("d_logits", d_logits.values(),
                     oracle::softmax_top_k_backward(rules, expected, d_exact, renormalise));
  CHECK(d_logits.guards_intact());
}

TEST_CASE("equal logits go to the lowest expert ids", "[routing]") {
  const fixture::array<float> logits(std::vector<double>{1, 1, 1, 1, /**/ 0, 2, 0, 2,
                                                         /**/ -1, -1, 3, -1});
  const auto got =
      route(lrmoe::softmax_top_k{}, lrmoe::router_logits<float, device>(logits.matrix(3, 4)), 3);
  CHECK(got.ids() == std::vector<std::int32_t>{0, 1, 2, 1, 3, 0, 2, 0, 1});
  CHECK(got.weights.values()[0] == Approx(1.0 / 3.0));
}

TEST_CASE("one expert per token with renormalised weights has weight one and no router gradient",
          "[routing]") {
  const fixture::array<float> logits(std::vector<double>{0.5, -1, 2, -60, 60, 0});
  const lrmoe::router_logits<float, device> from(logits.matrix(2, 3));
  const lrmoe::softmax_top_k router{true};
  const auto got = route(router, from, 1);
  CHECK(got.weights.values() == std::vector<double>{1, 1});
  const fixture::array<float> d_weights(std::vector<double>{3.7, -11}), d_logits(6);
  router.backward(fixture::space_type{}, from, got.views(),
                  fixture::constant(d_weights.matrix(2, 1)), d_logits.matrix(2, 3));
  Kokkos::fence("router_test::backward");
  CHECK(d_logits.values() == std::vector<double>(6, 0.0));
}

TEST_CASE("a logit of minus infinity gives its expert weight zero", "[routing]") {
  const fixture::array<float> logits(
      std::vector<double>{-infinity, 1, -infinity, 2, /**/ 0, -infinity, -infinity, -infinity});
  for (const bool renormalise : {false, true}) {
    const auto got = route(lrmoe::softmax_top_k{renormalise},
                           lrmoe::router_logits<float, device>(logits.matrix(2, 4)), 2);
    CHECK(got.ids() == std::vector<std::int32_t>{3, 1, 0, 1});
    CHECK(got.weights.values()[2] == 1.0);
    CHECK(got.weights.values()[3] == 0.0);
    CHECK(objection(got.views(), 4).empty());
  }
}

TEST_CASE("a token whose logits hold NaN, plus infinity or nothing finite is refused by name",
          "[routing]") {
  const double bad = GENERATE(std::numeric_limits<double>::quiet_NaN(), infinity);
  const integer where = GENERATE(0, 1, 2, 3);
  const bool renormalise = GENERATE(false, true);
  INFO("logit " << bad << " at " << where);
  std::vector<double> values{0.3, 0.2, 0.1, 0.4, 0.1, 0.2, 0.3, 0.4};
  values[static_cast<std::size_t>(4 + where)] = bad;
  const fixture::array<float> logits(values);
  const auto got = route(lrmoe::softmax_top_k{renormalise},
                         lrmoe::router_logits<float, device>(logits.matrix(2, 4)), 2);
  const std::string message = objection(got.views(), 4);
  CHECK(fixture::names(message, {"token 1", "not finite"}));

  const fixture::array<float> nothing(std::vector<double>(4, -infinity));
  const auto none = route(lrmoe::softmax_top_k{renormalise},
                          lrmoe::router_logits<float, device>(nothing.matrix(1, 4)), 2);
  CHECK(objection(none.views(), 4).find("not finite") != std::string::npos);
}

TEST_CASE("padding tokens choose no expert, whatever their logits", "[routing]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const fixture::array<float> logits(std::vector<double>{1, 2, 3, nan, nan, nan, 3, 2, 1});
  const fixture::array<std::uint8_t> padding(std::vector<int>{0, 1, 0});
  const lrmoe::router_logits<float, device> from(logits.matrix(3, 3), padding.vector());
  for (const bool renormalise : {false, true}) {
    const lrmoe::softmax_top_k router{renormalise};
    const auto got = route(router, from, 2);
    CHECK(got.ids() == std::vector<std::int32_t>{2, 1, -1, -1, 0, 1});
    CHECK(got.weights.values()[2] == 0.0);
    CHECK(objection(got.views(), 3).empty());
    const fixture::array<float> d_weights(std::vector<double>{1, 2, 3, 4, 5, 6}), d_logits(9);
    router.backward(fixture::space_type{}, from, got.views(),
                    fixture::constant(d_weights.matrix(3, 2)), d_logits.matrix(3, 3));
    Kokkos::fence("router_test::backward");
    for (std::size_t i = 3; i < 6; ++i) CHECK(d_logits.values()[i] == 0.0);
    CHECK(std::isfinite(d_logits.values()[0]));
  }
}

TEST_CASE("logits and padding of other extents are refused with both extents", "[routing]") {
  const fixture::array<float> logits(12);
  const fixture::array<std::uint8_t> padding(2);
  const lrmoe::router_logits<float, device> from(logits.matrix(3, 4), padding.vector());
  const auto message = [&](integer T, integer E) {
    return fixture::refusal([&] { from.validate(T, E, 1); });
  };
  CHECK(fixture::names(message(3, 5), {"3 x 4, expected 3 x 5"}));
  CHECK(fixture::names(message(4, 4), {"3 x 4, expected 4 x 4"}));
  CHECK(fixture::names(message(3, 4), {"padding has 2 entries, expected T = 3"}));
}
