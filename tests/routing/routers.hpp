// What the router tests share.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include <lrmoe/routing/check_routing.hpp>
#include <lrmoe/routing/router.hpp>

#include "fixture.hpp"

namespace router_test {

using fixture::device;
using oracle::integer;

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Routing with poisoned storage.
template <class Accumulate>
struct routed {
  fixture::array<lrmoe::index_type> experts;
  fixture::array<Accumulate> weights;
  integer T, K;

  routed(integer tokens, integer k) : experts(tokens * k), weights(tokens * k), T(tokens), K(k) {}
  lrmoe::routing<Accumulate, device> views() const {
    return {experts.matrix(T, K), weights.matrix(T, K)};
  }
  std::vector<std::int32_t> ids() const { return experts.elements(); }
};

template <class Router, class Accumulate>
routed<Accumulate> route(const Router& router,
                         const lrmoe::router_logits<Accumulate, device>& input, integer K) {
  const auto T = static_cast<integer>(input.logits.extent(0));
  const auto E = static_cast<integer>(input.logits.extent(1));
  router.validate(E, K);
  input.validate(T, E, K);
  routed<Accumulate> result(T, K);
  const fixture::space_type space;
  router.route(space, input, result.views());
  space.fence("router_test::route");
  CHECK(result.experts.guards_intact());
  CHECK(result.weights.guards_intact());
  return result;
}

/// Message of the argument_error that checking this routing throws, empty if none.
template <class Accumulate>
std::string objection(const lrmoe::routing<Accumulate, device>& given, integer E) {
  return fixture::refusal([&] {
    const fixture::array<std::int64_t> first_faulty(1);
    lrmoe::find_faulty_pair(fixture::space_type{}, given, E, first_faulty.vector());
    Kokkos::fence("lrmoe_test::check_routing");
    const std::int64_t faulty = fixture::host_copy(first_faulty.vector())[0];
    if (faulty < static_cast<std::int64_t>(given.experts.size()))
      lrmoe::report_faulty_pair(given, E, faulty);
  });
}

inline oracle::tensor as_tensor(const std::vector<oracle::number>& values, integer columns) {
  oracle::tensor result(columns > 0 ? static_cast<integer>(values.size()) / columns : 0, columns);
  result.data = values;
  return result;
}

}  // namespace router_test
