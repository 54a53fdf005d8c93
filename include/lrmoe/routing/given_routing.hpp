// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/routing/router.hpp>

namespace lrmoe {

/// Routing computed by the caller: ids in [0, E) or no_expert, distinct in each token, and finite
/// weights, which may be negative.
template <class Accumulate, class Device>
struct routed_pairs {
  matrix_view<const index_type, Device> experts;  // (T, K)
  matrix_view<const Accumulate, Device> weights;  // (T, K)

  void validate(std::int64_t T, std::int64_t /*E*/, std::int64_t K) const {
    detail::require_extents("routed_pairs", "experts", experts, T, K);
    detail::require_extents("routed_pairs", "weights", weights, T, K);
  }

  /// Throws argument_error when an output shares memory with the input.
  template <class Output>
  void require_disjoint(std::string_view name, const Output& output) const {
    detail::require_disjoint("routed_pairs", name, output, "experts", experts);
    detail::require_disjoint("routed_pairs", name, output, "weights", weights);
  }
};

/// Router that takes routing as supplied; its gradient is that of the weights (T, K).
struct given_routing {
  template <class Accumulate, class Device>
  using input = routed_pairs<Accumulate, Device>;
  template <class Accumulate, class Device>
  using gradient = matrix_view<Accumulate, Device>;

  static std::int64_t gradient_columns(std::int64_t /*E*/, std::int64_t K) { return K; }

  void validate(std::int64_t /*E*/, std::int64_t /*K*/) const {}

  template <class ExecutionSpace, class Accumulate, class Device>
  void route(const ExecutionSpace& space, const routed_pairs<Accumulate, Device>& from,
             const routing<Accumulate, Device>& to) const {
    Kokkos::deep_copy(space, to.experts, from.experts);
    Kokkos::deep_copy(space, to.weights, from.weights);
  }

  template <class ExecutionSpace, class Accumulate, class Device>
  void backward(const ExecutionSpace& space, const routed_pairs<Accumulate, Device>& /*from*/,
                const routing<Accumulate, Device>& /*chosen*/,
                const matrix_view<const Accumulate, Device>& d_weights,
                const matrix_view<Accumulate, Device>& d_given) const {
    Kokkos::deep_copy(space, d_given, d_weights);
  }
};

}  // namespace lrmoe
