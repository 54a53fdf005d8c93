// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <concepts>
#include <cstdint>

#include <lrmoe/detail/views.hpp>
#include <lrmoe/types.hpp>

namespace lrmoe {

/// The routing of one call: token t sends its k-th pair to experts(t, k) with weight weights(t, k).
/// experts(t, k) == no_expert: the pair does not exist (padding).
template <class Accumulate, class Device>
struct routing {
  matrix_view<index_type, Device> experts;  // (T, K)
  matrix_view<Accumulate, Device> weights;  // (T, K)
};

/// Router input of the routers that start from logits. A token whose `padding` entry is not 0 is
/// padding; an empty view means that there is none. Converts from the logits alone.
template <class Accumulate, class Device>
struct router_logits {
  matrix_view<const Accumulate, Device> logits;       // (T, E)
  vector_view<const std::uint8_t, Device> padding{};  // (T) or empty

  router_logits() = default;
  router_logits(const matrix_view<const Accumulate, Device>& values,
                const vector_view<const std::uint8_t, Device>& is_padding = {})
      : logits(values), padding(is_padding) {}
  router_logits(const matrix_view<Accumulate, Device>& values,
                const vector_view<const std::uint8_t, Device>& is_padding = {})
      : logits(values), padding(is_padding) {}

  /// Throws argument_error when an extent differs from what T tokens and E experts need.
  void validate(std::int64_t T, std::int64_t E, std::int64_t /*K*/) const {
    detail::require_extents("router_logits", "logits", logits, T, E);
    require(padding.extent(0) == 0 || static_cast<std::int64_t>(padding.extent(0)) == T,
            "router_logits: padding has ", padding.extent(0), " entries, expected T = ", T,
            " or none: pass one byte per token");
  }

  /// Throws argument_error when an output shares memory with the input.
  template <class Output>
  void require_disjoint(std::string_view name, const Output& output) const {
    detail::require_disjoint("router_logits", name, output, "logits", logits);
  }

  KOKKOS_FUNCTION bool is_padding(std::int64_t t) const {
    return padding.extent(0) != 0 && padding(t) != 0;
  }
};

/// A router chooses K experts per token and, in backward, turns gradients of the routing weights
/// into gradients of its input.
///   input<A, Device>     what it routes from; has validate(T, E, K) and require_disjoint(name, view)
///   gradient<A, Device>  matrix view of the gradient of that input
///   gradient_columns(E, K)
///   validate(E, K)       throws argument_error when the policy's own settings do not fit
///   route(space, input, routing)                            writes every element of routing
///   backward(space, input, routing, d_weights (T, K), gradient)   overwrites gradient
/// Laws: the experts of a token are distinct; equal input gives equal routing; ties go to the lowest
/// expert id; a router does not itself check values (check_routing does, for every router).
template <class Router>
concept router = std::copyable<Router> && requires(const Router& r, std::int64_t n) {
  r.validate(n, n);
  { Router::gradient_columns(n, n) } -> std::same_as<std::int64_t>;
};

}  // namespace lrmoe
