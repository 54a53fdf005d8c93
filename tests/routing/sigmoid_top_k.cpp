#include <lrmoe/routing/sigmoid_top_k.hpp>

#include "catch.hpp"
#include "routers.hpp"

using namespace router_test;

namespace {

template <class Accumulate>
lrmoe::sigmoid_top_k<Accumulate, device> router_of(const oracle::sigmoid_options& options,
                                                   const fixture::array<Accumulate>& bias) {
  lrmoe::sigmoid_top_k<Accumulate, device> router;
  router.groups = static_cast<lrmoe::index_type>(options.groups);
  router.groups_kept = static_cast<lrmoe::index_type>(options.groups_kept);
  router.renormalise = options.renormalise;
  router.scaling = options.scaling;
  router.selection_bias = bias.vector();
  return router;
}

}  // namespace

TEMPLATE_TEST_CASE("sigmoid routing with bias, groups and scaling equals the oracle", "[routing]",
                   float, double) {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  oracle::arithmetic rules;
  rules.storage = fixture::format_of<TestType>();
  struct size {
    integer T, E, K, groups, groups_kept;
    bool biased;
  };
  const auto [T, E, K, groups, groups_kept, biased] =
      GENERATE(size{33, 8, 2, 1, 1, false}, size{29, 16, 3, 4, 2, true},
               size{20, 12, 4, 12, 5, true},  // groups of one expert
               size{11, 6, 6, 3, 3, true}, size{7, 1, 1, 1, 1, true}, size{0, 8, 2, 2, 1, false},
               size{8, 128, 8, 8, 4, true});
  const bool renormalise = GENERATE(false, true);
  INFO("T = " << T << ", E = " << E << ", K = " << K << ", groups = " << groups
              << ", renormalise = " << renormalise);
  // Scores on a grid of a thousandth: no rounding error can reverse an order.
  std::vector<double> logits, bias;
  for (integer t = 0; t < T; ++t)
    for (const auto place : draw.routes(1, E, E)) {
      const double score = 0.02 + 0.9 * (place + draw.uniform(0.2, 0.3)) / static_cast<double>(E);
      logits.push_back(oracle::round_to(rules.storage, std::log(score / (1.0 - score))));
    }
  if (biased) bias = draw.normal(E, 0.2, rules.storage);
  const fixture::array<TestType> bias_array(bias), input(logits, 1);
  const oracle::sigmoid_options options{groups, groups_kept, renormalise, 2.5};
  const auto router = router_of(options, bias_array);
  const lrmoe::router_logits<TestType, device> from(input.matrix(T, E));
  const auto got = route(router, from, K);
  const auto expected = oracle::sigmoid_top_k(rules, logits, bias, T, E, K, options);
  REQUIRE(got.ids() == expected.experts);
  check::check_close("weights", got.weights.values(), as_tensor(expected.weights, K));

  const auto d_values = draw.normal(T * K, 1.0, rules.storage);
  const fixture::array<TestType> d_weights(d_values), d_logits(T * E);
  oracle::tensor d_exact(T, K);
  for (std::size_t i = 0; i < d_values.size(); ++i) d_exact.data[i].value = d_values[i];
  router.backward(fixture::space_type{}, from, got.views(),
                  fixture::constant(d_weights.matrix(T, K)), d_logits.matrix(T, E));
  Kokkos::fence("router_test::backward");
  check::check_close("d_logits", d_logits.values(),
                     oracle::sigmoid_top_k_backward(rules, expected, d_exact, options));
  CHECK(d_logits.guards_intact());
}

TEST_CASE("the selection bias moves the choice and not the weight", "[routing]") {
  const fixture::array<float> logits(std::vector<double>{2, 1, 0, -1}),
      bias(std::vector<double>{-10, 0, 0, 10});
  const auto router = router_of<float>({1, 1, false, 1.0}, bias);
  const auto got = route(router, lrmoe::router_logits<float, device>(logits.matrix(1, 4)), 2);
  CHECK(got.ids() == std::vector<std::int32_t>{3, 1});
  CHECK(got.weights.values()[0] == Approx(oracle::sigmoid(-1.0)));
  CHECK(got.weights.values()[1] == Approx(oracle::sigmoid(1.0)));
}

TEST_CASE("equal groups and equal experts go to the lowest ids", "[routing]") {
  const fixture::array<float> logits(std::vector<double>(8, 0.5)), bias;
  const auto router = router_of<float>({4, 2, true, 1.0}, bias);
  const auto got = route(router, lrmoe::router_logits<float, device>(logits.matrix(1, 8)), 3);
  CHECK(got.ids() == std::vector<std::int32_t>{0, 1, 2});
}

TEST_CASE("infinite logits saturate: minus infinity has weight zero, plus infinity one",
          "[routing]") {
  const fixture::array<float> logits(
      std::vector<double>{-infinity, infinity, -infinity, /**/ -infinity, -infinity, -infinity}),
      bias;
  const bool renormalise = GENERATE(false, true);
  const auto router = router_of<float>({1, 1, renormalise, 2.0}, bias);
  const auto from = lrmoe::router_logits<float, device>(logits.matrix(2, 3));
  const auto got = route(router, from, 2);
  CHECK(got.ids() == std::vector<std::int32_t>{1, 0, 0, 1});
  CHECK(got.weights.values() == std::vector<double>{2, 0, 0, 0});
  CHECK(objection(got.views(), 3).empty());
  const fixture::array<float> d_weights(std::vector<double>{1, 2, 3, 4}), d_logits(6);
  router.backward(fixture::space_type{}, from, got.views(),
                  fixture::constant(d_weights.matrix(2, 2)), d_logits.matrix(2, 3));
  Kokkos::fence("router_test::backward");
  CHECK(d_logits.values() == std::vector<double>(6, 0.0));
}

TEST_CASE("NaN logits and NaN biases are refused by the token's name", "[routing]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::size_t where = GENERATE(4u, 5u, 6u, 7u);
  std::vector<double> values{0.3, 0.2, 0.1, 0.4, 0.1, 0.2, 0.3, 0.4};
  values[where] = nan;
  const fixture::array<float> logits(values), no_bias;
  const auto refused = [&](const fixture::array<float>& input, const fixture::array<float>& bias) {
    const auto router = router_of<float>({2, 1, true, 1.0}, bias);
    return objection(
        route(router, lrmoe::router_logits<float, device>(input.matrix(2, 4)), 2).views(), 4);
  };
  CHECK(refused(logits, no_bias).find("token 1") != std::string::npos);
  const fixture::array<float> fine(std::vector<double>(8, 0.0)),
      bad_bias(std::vector<double>{0, nan, 0, 0});
  CHECK(refused(fine, bad_bias).find("token 0") != std::string::npos);
}

TEST_CASE("padding tokens choose no expert under sigmoid routing", "[routing]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const fixture::array<float> logits(std::vector<double>{nan, nan, nan, 1, 2, 3}), bias;
  const fixture::array<std::uint8_t> padding(std::vector<int>{1, 0});
  const auto router = router_of<float>({1, 1, true, 1.0}, bias);
  const lrmoe::router_logits<float, device> from(logits.matrix(2, 3), padding.vector());
  const auto got = route(router, from, 2);
  CHECK(got.ids() == std::vector<std::int32_t>{-1, -1, 2, 1});
  CHECK(got.weights.values()[0] == 0.0);
  const fixture::array<float> d_weights(std::vector<double>{1, 2, 3, 4}), d_logits(6);
  router.backward(fixture::space_type{}, from, got.views(),
                  fixture::constant(d_weights.matrix(2, 2)), d_logits.matrix(2, 3));
  Kokkos::fence("router_test::backward");
  for (std::size_t i = 0; i < 3; ++i) CHECK(d_logits.values()[i] == 0.0);
}

TEST_CASE("settings of sigmoid routing that do not fit name the value and the limit", "[routing]") {
  const fixture::array<float> bias;
  const auto message = [&](const oracle::sigmoid_options& options, integer E, integer K,
                           const fixture::array<float>& with) {
    return fixture::refusal([&] { router_of(options, with).validate(E, K); });
  };
  using fixture::names;
  CHECK(message({2, 1, true, 1.0}, 8, 4, bias).empty());
  CHECK(names(message({3, 1, true, 1.0}, 8, 2, bias), {"groups = 3 does not divide E = 8"}));
  CHECK(names(message({0, 1, true, 1.0}, 8, 2, bias), {"groups = 0"}));
  CHECK(names(message({4, 5, true, 1.0}, 8, 2, bias), {"groups_kept = 5"}));
  CHECK(names(message({4, 0, true, 1.0}, 8, 2, bias), {"groups_kept = 0"}));
  CHECK(names(message({65, 1, true, 1.0}, 130, 2, {}), {"groups = 65", "at most 64"}));
  CHECK(names(message({4, 1, true, 1.0}, 8, 3, bias), {"K = 3"}));
  CHECK(names(message({1, 1, true, infinity}, 8, 2, bias), {"scaling = inf"}));
  const fixture::array<float> three(std::vector<double>{1, 2, 3});
  CHECK(names(message({1, 1, true, 1.0}, 8, 2, three), {"selection_bias has 3 entries"}));
}
