// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <string>

#include <lrmoe/routing/router.hpp>

namespace lrmoe {

/// Look for a pair that breaks the rules of routing: ids in [0, E) or no_expert, no id twice in a token,
/// weights finite. first_faulty (1) receives the lowest such pair, or P.
/// Order     asynchronous on the space: the verdict is needed before anything is computed from the
///           routing, but can be read together with other results
/// Cost      K^2 comparisons a token
template <class ExecutionSpace, class Accumulate, class Device,
          class Unit = detail::translation_unit>
void find_faulty_pair(const ExecutionSpace& space, const routing<Accumulate, Device>& given,
                      std::int64_t E, const vector_view<std::int64_t, Device>& first_faulty) {
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
  Kokkos::deep_copy(space, first_faulty, P);
  Kokkos::parallel_for(
      "lrmoe::check_routing::find", Kokkos::RangePolicy<ExecutionSpace>(space, 0, P),
      KOKKOS_LAMBDA(const std::int64_t p) {
        if (faulty(p)) Kokkos::atomic_min(&first_faulty(0), p);
      });
}

/// Throw the argument_error that names what is wrong with pair p = t K + k of a routing.
template <class Accumulate, class Device>
[[noreturn]] void report_faulty_pair(const routing<Accumulate, Device>& given, std::int64_t E,
                                     std::int64_t p) {
  const auto K = static_cast<std::int64_t>(given.experts.extent(1));
  const std::int64_t t = p / K;
  const std::int64_t k = p % K;
  const auto experts = Kokkos::create_mirror_view_and_copy(
      Kokkos::HostSpace{}, Kokkos::subview(given.experts, t, Kokkos::ALL));
  const auto weights = Kokkos::create_mirror_view_and_copy(
      Kokkos::HostSpace{}, Kokkos::subview(given.weights, t, Kokkos::ALL));
  const index_type e = experts(k);
  require(e >= 0 && e < E, "routing: expert id ", e, " of token ", t, ", pair ", k,
          " is outside [0, E = ", E, "): pass a valid id, or ", no_expert, " for a padded pair");
  require(Kokkos::isfinite(weights(k)), "routing: weight ", weights(k), " of token ", t, ", pair ",
          k, " is not finite: check the router's logits for NaN and infinity");
  throw argument_error("lrmoe: routing: expert " + std::to_string(e) +
                       " appears more than once in token " + std::to_string(t) +
                       ": the experts of a token must be distinct");
}

}  // namespace lrmoe
