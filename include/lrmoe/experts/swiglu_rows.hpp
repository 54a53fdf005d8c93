// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/detail/row_parallel.hpp>
#include <lrmoe/experts/operations.hpp>

/// The row work of SwiGLU between matrix products, for operations that do not fuse it into them.
/// Everything is asynchronous on the space and deterministic.
namespace lrmoe {

namespace detail {

template <class Real>
KOKKOS_FORCEINLINE_FUNCTION Real sigmoid(Real x) {
#if defined(__CUDA_ARCH__)
  // Two units in the last place instead of half a one, for a quarter of the instructions.
  if constexpr (std::is_same_v<Real, float>) return __fdividef(1.0F, 1.0F + expf(-x));
#endif
  return Real(1) / (Real(1) + Kokkos::exp(-x));
}

/// silu(g) u in the element type, as forward stores it.
template <class Element, class Real>
KOKKOS_FORCEINLINE_FUNCTION Real hidden_value(Real g, Real u) {
  return static_cast<Real>(static_cast<Element>(g * sigmoid(g) * u));
}

}  // namespace detail

/// h = silu(g) u;  norms = ||h||
/// Shapes    pre (N, 2F): g then u; h (N, F); norms (N) or empty
template <class ExecutionSpace, class Element, class Device, class Unit = detail::translation_unit>
void swiglu_rows(const ExecutionSpace& space, const matrix_view<const Element, Device>& pre,
                 const matrix_view<Element, Device>& h, const vector_view<float, Device>& norms) {
  using real = accumulate_t<Element>;
  const auto F = static_cast<std::int64_t>(h.extent(1));
  const bool chunked = detail::in_chunks<ExecutionSpace>(F, pre, h);
  const bool with_norms = norms.extent(0) != 0;
  detail::for_each_row(
      "lrmoe::swiglu_rows::forward", space, static_cast<std::int64_t>(h.extent(0)),
      KOKKOS_LAMBDA(const detail::row_lanes<ExecutionSpace>& lanes, const std::int64_t i) {
        const Element* g_row = &pre(i, 0);
        Element* h_row = &h(i, 0);
        const real squares = lanes.template sum_blocks<Element, 3>(
            F, chunked,
            [&]<class Block>(const Block& block, real& sum, typename Block::values& g,
                             typename Block::values& u) {
              block.sum(sum, [&](const int f) {
                g[f] = detail::hidden_value<Element>(g[f], u[f]);
                return g[f] * g[f];
              });
              block.store(h_row, g);
            },
            g_row, g_row + F);
        if (with_norms) lanes.once([&] { norms(i) = static_cast<float>(Kokkos::sqrt(squares)); });
      });
}

/// dw = c <dh', h>;  dh = c w dh';  dg = dh u silu'(g);  du = dh silu(g);  scaled_h = c w h
/// Shapes    rows.pre (., 2F) gathered; d_hidden (M, F): dh' of the rows of rows.groups, packed; d_pre (., 2F)
///           and scaled_h (., F), or both empty; d_weights (.) or empty
/// Numerics  h is recomputed from g and u and rounded as in forward; never divides by w
template <class ExecutionSpace, class Element, class Device, class Unit = detail::translation_unit>
void swiglu_backward_rows(const ExecutionSpace& space,
                          const swiglu_kept_rows<Element, Device>& rows,
                          const matrix_view<const Element, Device>& d_hidden,
                          const matrix_view<Element, Device>& d_pre,
                          const matrix_view<Element, Device>& scaled_h,
                          const vector_view<accumulate_t<Element>, Device>& d_weights) {
  using real = accumulate_t<Element>;
  const auto F = static_cast<std::int64_t>(d_hidden.extent(1));
  const std::int64_t begin = rows.groups.first();
  const gathered_rows<Element, Device> pre = rows.pre;
  const auto weights = rows.weights;
  const auto factors = rows.factors;
  const bool chunked = detail::in_chunks<ExecutionSpace>(F, pre.matrix, d_hidden, d_pre, scaled_h);
  const bool indexed = pre.index.extent(0) != 0, weighted = weights.extent(0) != 0,
             scaled = factors.extent(0) != 0, store = d_pre.extent(0) != 0,
             with_weights = d_weights.extent(0) != 0;
  detail::for_each_row(
      "lrmoe::swiglu_rows::backward", space, rows.groups.rows(),
      KOKKOS_LAMBDA(const detail::row_lanes<ExecutionSpace>& lanes, const std::int64_t i) {
        const std::int64_t m = begin + i;
        const Element* g_row = &pre.matrix(indexed ? pre.index(m) : m, 0);
        const Element* dh_row = &d_hidden(i, 0);
        const real factor = scaled ? static_cast<real>(factors(m)) : real(1);
        const real scale = weighted ? factor * weights(m) : factor;
        const real inner = lanes.template sum_blocks<Element, 2>(
            F, chunked,
            [&]<class Block>(const Block& block, real& sum, typename Block::values& g,
                             typename Block::values& u, typename Block::values& dh) {
              typename Block::values weighted_h;
              block.sum(sum, [&](const int f) {
                const real s = detail::sigmoid(g[f]);
                const real silu = g[f] * s;
                const auto hidden = static_cast<real>(static_cast<Element>(silu * u[f]));
                const real d_hidden_value = scale * dh[f];
                weighted_h[f] = scale * hidden;
                u[f] = d_hidden_value * u[f] * s * (real(1) + g[f] * (real(1) - s));
                g[f] = d_hidden_value * silu;
                return dh[f] * hidden;
              });
              if (store) {
                block.store(&d_pre(m, 0), u);
                block.store(&d_pre(m, F), g);
                block.store(&scaled_h(m, 0), weighted_h);
              }
            },
            g_row, g_row + F, dh_row);
        if (with_weights) lanes.once([&] { d_weights(m) = factor * inner; });
      });
}

}  // namespace lrmoe
