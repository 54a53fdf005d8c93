// Routing supplied by the caller, and the check that every routing passes through.
#include <lrmoe/routing/given_routing.hpp>

#include "catch.hpp"
#include "routers.hpp"

using namespace router_test;

namespace {

std::string objection_to(const std::vector<std::int32_t>& experts,
                         const std::vector<double>& weights, integer T, integer K, integer E) {
  const fixture::array<lrmoe::index_type> e(experts);
  const fixture::array<float> w(weights);
  return objection(lrmoe::routing<float, device>{e.matrix(T, K), w.matrix(T, K)}, E);
}

}  // namespace

TEST_CASE("given routing is taken as it is and its gradient is that of the weights", "[routing]") {
  const fixture::array<lrmoe::index_type> experts(std::vector<int>{2, 0, -1, 1}, 1);
  const fixture::array<float> weights(std::vector<double>{0.5, -0.25, 0, 0}, 1);
  const lrmoe::routed_pairs<float, device> from{experts.matrix(2, 2), weights.matrix(2, 2)};
  from.validate(2, 3, 2);
  routed<float> got(2, 2);
  const lrmoe::given_routing router;
  router.route(fixture::space_type{}, from, got.views());
  Kokkos::fence("router_test::route");
  CHECK(got.experts.bits() == experts.bits());
  CHECK(got.weights.bits() == weights.bits());
  const fixture::array<float> d_weights(std::vector<double>{1, 2, 3, 4}), d_given(4);
  router.backward(fixture::space_type{}, from, got.views(),
                  fixture::constant(d_weights.matrix(2, 2)), d_given.matrix(2, 2));
  Kokkos::fence("router_test::backward");
  CHECK(d_given.values() == d_weights.values());
  CHECK(lrmoe::given_routing::gradient_columns(7, 2) == 2);
}

TEST_CASE("given routing of other extents is refused with both extents", "[routing]") {
  const fixture::array<lrmoe::index_type> experts(6);
  const fixture::array<float> weights(4);
  const lrmoe::routed_pairs<float, device> from{experts.matrix(3, 2), weights.matrix(2, 2)};
  CHECK(fixture::names(fixture::refusal([&] { from.validate(2, 4, 2); }),
                       {"experts is 3 x 2, expected 2 x 2"}));
  CHECK(fixture::names(fixture::refusal([&] { from.validate(3, 4, 2); }),
                       {"weights is 2 x 2, expected 3 x 2"}));
}

TEST_CASE("valid routing passes: negative and zero weights, padding, every expert", "[routing]") {
  CHECK(objection_to({0, 3, 2, 1}, {-1, 0, 0.5, 2}, 2, 2, 4).empty());
  CHECK(objection_to({-1, -1, 2, -1}, {0, 0, 0.5, 0}, 2, 2, 4).empty());
  CHECK(objection_to({}, {}, 0, 2, 4).empty());
}

TEST_CASE("the weight of a padded pair may be anything", "[routing]") {
  CHECK(objection_to({-1, 1}, {std::nan(""), 1}, 1, 2, 4).empty());
}

TEST_CASE("an expert id out of range names id, token, pair and limit", "[routing]") {
  for (const std::int32_t bad : {4, 5, -2, std::numeric_limits<std::int32_t>::max(),
                                 std::numeric_limits<std::int32_t>::min()}) {
    const std::string message = objection_to({0, 1, 2, 3, 1, bad}, {1, 1, 1, 1, 1, 1}, 3, 2, 4);
    CHECK(
        fixture::names(message, {"expert id " + std::to_string(bad), "token 2, pair 1", "E = 4"}));
  }
}

TEST_CASE("an expert that appears twice in a token is refused", "[routing]") {
  const std::string message = objection_to({0, 1, 2, 3, 0, 3}, {1, 1, 1, 1, 1, 1}, 2, 3, 4);
  CHECK(fixture::names(message, {"expert 3 appears more than once in token 1"}));
}

TEST_CASE("a routing weight that is NaN or infinite names token and pair", "[routing]") {
  for (const double bad : {std::nan(""), infinity, -infinity}) {
    const std::string message = objection_to({0, 1, 2, 3}, {1, bad, 1, bad}, 2, 2, 4);
    CHECK(fixture::names(message, {"token 0, pair 1", "not finite"}));
  }
}
