// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include <lrmoe/bfloat16.hpp>
#include <lrmoe/detail/translation_unit.hpp>
#include <lrmoe/error.hpp>

/// The letters used by every name, comment and document:
///   T tokens of one call, D model width, F expert width, E experts, K experts per token,
///   P = T K token-expert pairs, pair p = t K + k, M pairs kept for backward.
/// A *row* is a pair that exists (padding has none), counted in expert order.
namespace lrmoe {

/// Counts and indices of tokens, pairs, rows and experts. Element offsets inside a view are 64 bits
/// wide; only the number of pairs of one call is limited to 2^31 - 1.
using index_type = std::int32_t;

/// Expert id of a pair that does not exist: padding tokens carry no load, no quota and no gradient.
inline constexpr index_type no_expert = -1;

template <class T, class Device>
using vector_view = Kokkos::View<T*, Kokkos::LayoutRight, Device>;
template <class T, class Device>
using matrix_view = Kokkos::View<T**, Kokkos::LayoutRight, Device>;
template <class T, class Device>
using tensor_view = Kokkos::View<T***, Kokkos::LayoutRight, Device>;

/// Type in which products, sums and main gradients of an element type are kept.
template <class Element>
using accumulate_t = std::conditional_t<std::is_same_v<Element, double>, double, float>;

/// Extents of one MoE layer.
struct layer_shape {
  std::int64_t D = 0;
  std::int64_t F = 0;
  std::int64_t E = 0;
  std::int64_t K = 0;
  std::int64_t F_shared = 0;  ///< width of the shared expert, 0 for none

  /// Throws argument_error naming the extent that is out of range.
  void validate() const {
    require(D >= 1, "layer_shape: D = ", D, " must be at least 1: set the model width");
    require(F >= 1, "layer_shape: F = ", F, " must be at least 1: set the expert width");
    require(E >= 1 && E <= max_experts, "layer_shape: E = ", E, " must be in [1, ", max_experts,
            "]: set the number of experts");
    require(K >= 1 && K <= E, "layer_shape: K = ", K, " must be in [1, E = ", E,
            "]: a token cannot choose an expert twice");
    require(F_shared >= 0, "layer_shape: F_shared = ", F_shared,
            " must not be negative: use 0 for no shared expert");
  }

  static constexpr std::int64_t max_experts = 1 << 20;
};

}  // namespace lrmoe
