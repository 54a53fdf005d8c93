// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/routing/router.hpp>

namespace lrmoe {

/// Require valid routing: ids in [0, E) or no_expert, no id twice in a token, weights finite.
/// Throws argument_error naming the first offending token and pair.
/// Order     fences the space: the verdict is needed before anything is computed from the routing
/// Cost      K^2 comparisons a token, one host synchronisation
template <class ExecutionSpace, class Accumulate, class Device>
void check_routing(const ExecutionSpace& space, const routing<Accumulate, Device>& given,
                   std::int64_t E) {
  const auto K = static_cast<index_type>(given.experts.extent(1));
  const std::int64_t P = static_cast<std::int64_t>(given.experts.extent(0)) * K;
  const auto faulty = KOKKOS_LAMBDA(const std::int64_t p) {
    const std::int64_t t = p / K;
    const auto k = static_cast<index_type>(p % K);
    const index_type e = given.experts(t, k);
    if (e == no_expert) return false;
    if (e < 0 || e >= E || !Kokkos::isfinite(given.weights(t, k))) return true;
    for (index_type j = 0; j < k; ++j) {
      if (given.experts(t, j) == e) return true;
    }
    return false;
  };
  std::int64_t first = P;
  Kokkos::parallel_reduce(
      "lrmoe::check_routing::find", Kokkos::RangePolicy<ExecutionSpace>(space, 0, P),
      KOKKOS_LAMBDA(const std::int64_t p, std::int64_t& lowest) {
        if (faulty(p) && p < lowest) lowest = p;
      },
      Kokkos::Min<std::int64_t>(first));
  space.fence("lrmoe::check_routing: verdict");
  if (first >= P) return;

  const std::int64_t t = first / K;
  const std::int64_t k = first % K;
  const auto experts = Kokkos::create_mirror_view_and_copy(
      Kokkos::HostSpace{}, Kokkos::subview(given.experts, t, Kokkos::ALL));
  const auto weights = Kokkos::create_mirror_view_and_copy(
      Kokkos::HostSpace{}, Kokkos::subview(given.weights, t, Kokkos::ALL));
  const index_type e = experts(k);
  require(e >= 0 && e < E, "routing: expert id ", e, " of token ", t, ", pair ", k,
          " is outside [0, E = ", E, "): pass a valid id, or ", no_expert, " for a padded pair");
  require(Kokkos::isfinite(weights(k)), "routing: weight ", weights(k), " of token ", t, ", pair ",
          k, " is not finite: check the router's logits for NaN and infinity");
  require(false, "routing: expert ", e, " appears more than once in token ", t,
          ": the experts of a token must be distinct");
}

}  // namespace lrmoe
