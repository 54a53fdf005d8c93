// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>

#include <lrmoe/experts/swiglu.hpp>
#include <lrmoe/openmp/experts/silu.hpp>
#include <lrmoe/openmp/experts/tile.hpp>

namespace lrmoe::openmp {

/// The five expert operations on the host (contract: lrmoe/experts/operations.hpp).
///
/// An operation is cut into tiles of rows of one expert. A thread takes a tile, gathers and widens
/// its rows into scratch where they are not usable in place, runs one product through Product, and
/// applies the row work while the result is in its cache. Tiles depend on offsets and extents alone
/// and no sum is split between them: results are bitwise equal for any number of threads.
template <class Product>
class expert_operations {
 public:
  template <class T>
  using vector = vector_view<T, device_type>;
  template <class T>
  using matrix = matrix_view<T, device_type>;
  template <class T>
  using tensor = tensor_view<T, device_type>;
  template <class T>
  using gathered = gathered_rows<T, device_type>;

  explicit expert_operations(workspace<device_type>& scratch) : workspace_(scratch) {}

  static constexpr bool gathers = true;

  /// Bytes of workspace that the operations take for these experts, forward and backward.
  template <class Element>
  static std::int64_t scratch_bytes(const Kokkos::OpenMP& space,
                                    std::span<const expert_work> works) {
    return scratch_size<Element>(space, works) *
           static_cast<std::int64_t>(sizeof(accumulate_t<Element>));
  }

  template <class Element>
  void reserve(const Kokkos::OpenMP& space, std::span<const expert_work> works) {
    thread_scratch_buffer(workspace_)
        .template vector<accumulate_t<Element>>(scratch_size<Element>(space, works));
  }

  /// g, u = x [W_gate W_up];  h = silu(g) u;  norms = ||h||
  /// Shapes    x gathered, D columns; weights (G, D, 2F); pre (P, 2F) or empty; h (P, F); norms (P)
  ///           or empty
  /// Numerics  g and u are rounded to Element before h is made from them, as backward will see them
  template <class Element>
  product_cost gate_up(const Kokkos::OpenMP& space, const gathered<Element>& x,
                       const row_groups<device_type>& groups, const tensor<const Element>& weights,
                       const matrix<Element>& pre, const matrix<Element>& h,
                       const vector<float>& norms) {
    using real = accumulate_t<Element>;
    const auto D = static_cast<std::int64_t>(weights.extent(1));
    const auto F = static_cast<std::int64_t>(h.extent(1));
    const bool save = pre.size() != 0;
    const thread_scratch<real, 3> scratch(
        workspace_, space, {tile_rows * D, tile_rows * 2 * F, group_scratch<real>(weights)});
    const typename Product::session session;
    for_each_tile("lrmoe::gate_up::tile", space, groups, tile_rows, 1,
                  [&](const tile& at, std::int64_t /*part*/) {
                    const auto [x_scratch, gu_scratch, weight_scratch] = scratch.mine();
                    const auto input = load_rows(x, at, 0, D, x_scratch);
                    real* gu = gu_scratch;
                    if constexpr (std::is_same_v<real, Element>) {
                      if (save) gu = &pre(at.first, 0);
                    }
                    Product::multiply(false, false, at.rows, 2 * F, D, input.data, input.stride,
                                      load_group(weights, at.group, weight_scratch), 2 * F, real(0),
                                      gu, 2 * F);
                    for (std::int64_t i = 0; i < at.rows; ++i, gu += 2 * F) {
                      if constexpr (!std::is_same_v<real, Element>) {
                        for (std::int64_t f = 0; f < 2 * F; ++f) {
                          const auto rounded = static_cast<Element>(gu[f]);
                          if (save) pre(at.first + i, f) = rounded;
                          gu[f] = static_cast<real>(rounded);
                        }
                      }
                      Element* hidden = &h(at.first + i, 0);
                      real squares = 0;
#pragma omp simd reduction(+ : squares)
                      for (std::int64_t f = 0; f < F; ++f) {
                        hidden[f] = static_cast<Element>(gu[f] * sigmoid(gu[f]) * gu[F + f]);
                        squares += static_cast<real>(hidden[f]) * static_cast<real>(hidden[f]);
                      }
                      if (norms.size() != 0)
                        norms(at.first + i) = static_cast<float>(std::sqrt(squares));
                    }
                  });
    return row_product_cost<Element>(groups, D, 2 * F, save ? sizeof(Element) : 0);
  }

  /// y = h W_down
  /// Shapes    h gathered, F columns; weights (G, F, D); y (P, D)
  template <class Element>
  product_cost down(const Kokkos::OpenMP& space, const gathered<Element>& h,
                    const row_groups<device_type>& groups, const tensor<const Element>& weights,
                    const matrix<Element>& y) {
    return multiply_rows("lrmoe::down::tile", space, h, groups, weights, false, y);
  }

  /// dx = [dg du] [W_gate W_up]^T
  /// Shapes    d_pre gathered, 2F columns; weights (G, D, 2F); dx (M, D)
  template <class Element>
  product_cost gate_up_backward(const Kokkos::OpenMP& space, const gathered<Element>& d_pre,
                                const row_groups<device_type>& groups,
                                const tensor<const Element>& weights, const matrix<Element>& dx) {
    return multiply_rows("lrmoe::gate_up_backward::tile", space, d_pre, groups, weights, true, dx);
  }

  /// dh' = dO W_down^T;  dw = c <dh', h>;  dh = c w dh';  dg = dh u silu'(g);  du = dh silu(g);
  /// scaled_h = c w h
  /// Shapes    rows.d_out, rows.pre gathered; weights (G, F, D); d_pre (M, 2F) and scaled_h (M, F), or
  ///           both empty; d_weights (M) or empty
  /// Numerics  h is recomputed from the saved g and u and rounded as in gate_up; never divides by w
  template <class Element>
  product_cost down_backward(const Kokkos::OpenMP& space,
                             const swiglu_kept_rows<Element, device_type>& rows,
                             const tensor<const Element>& weights, const matrix<Element>& d_pre,
                             const matrix<Element>& scaled_h,
                             const vector<accumulate_t<Element>>& d_weights) {
    using real = accumulate_t<Element>;
    const auto F = static_cast<std::int64_t>(weights.extent(1));
    const auto D = static_cast<std::int64_t>(weights.extent(2));
    const thread_scratch<real, 4> scratch(
        workspace_, space, {tile_rows * D, tile_rows * F, 2 * F, group_scratch<real>(weights)});
    const bool store = d_pre.size() != 0;
    const typename Product::session session;
    for_each_tile(
        "lrmoe::down_backward::tile", space, rows.groups, tile_rows, 1,
        [&](const tile& at, std::int64_t /*part*/) {
          const auto [d_out_scratch, dh_scratch, pre_scratch, weight_scratch] = scratch.mine();
          const auto d_out = load_rows(rows.d_out, at, 0, D, d_out_scratch);
          Product::multiply(false, true, at.rows, F, D, d_out.data, d_out.stride,
                            load_group(weights, at.group, weight_scratch), D, real(0), dh_scratch,
                            F);
          for (std::int64_t i = 0; i < at.rows; ++i) {
            const std::int64_t m = at.first + i;
            const real* dh = dh_scratch + i * F;
            const real* gu = load_rows(rows.pre, tile{at.group, m, 1}, 0, 2 * F, pre_scratch).data;
            const real factor =
                rows.factors.size() != 0 ? static_cast<real>(rows.factors(m)) : real(1);
            const real scale = rows.weights.size() != 0 ? factor * rows.weights(m) : factor;
            real inner = 0;
            if (!store) {
#pragma omp simd reduction(+ : inner)
              for (std::int64_t f = 0; f < F; ++f) {
                const real silu = gu[f] * sigmoid(gu[f]);
                inner += dh[f] * static_cast<real>(static_cast<Element>(silu * gu[F + f]));
              }
              d_weights(m) = factor * inner;
              continue;
            }
            Element* d_gate = &d_pre(m, 0);
            Element* d_up = d_gate + F;
            Element* weighted = &scaled_h(m, 0);
#pragma omp simd reduction(+ : inner)
            for (std::int64_t f = 0; f < F; ++f) {
              const real s = sigmoid(gu[f]);
              const real silu = gu[f] * s;
              const auto hidden = static_cast<real>(static_cast<Element>(silu * gu[F + f]));
              const real scaled = scale * dh[f];
              inner += dh[f] * hidden;
              d_gate[f] =
                  static_cast<Element>(scaled * gu[F + f] * s * (real(1) + gu[f] * (real(1) - s)));
              d_up[f] = static_cast<Element>(scaled * silu);
              weighted[f] = static_cast<Element>(scale * hidden);
            }
            if (d_weights.size() != 0) d_weights(m) = factor * inner;
          }
        });
    return row_product_cost<Element>(rows.groups, D, F, 0);
  }

  /// dW += left^T right, or dW = left^T right, with zeros for groups without rows
  /// Shapes    left gathered, A columns; right gathered, B columns; gradient (G, A, B)
  template <class Element>
  product_cost weight_gradient(const Kokkos::OpenMP& space, const gathered<Element>& left,
                               const gathered<Element>& right,
                               const row_groups<device_type>& groups,
                               const tensor<accumulate_t<Element>>& gradient,
                               gradient_update update) {
    using real = accumulate_t<Element>;
    const auto G = static_cast<std::int64_t>(gradient.extent(0));
    const auto A = static_cast<std::int64_t>(gradient.extent(1));
    const auto B = static_cast<std::int64_t>(gradient.extent(2));
    // A thread owns some rows of a group's gradient and runs through all rows of the group. With few
    // groups the gradient is cut finer, so that a single expert still employs several threads.
    const std::int64_t part_rows = std::min<std::int64_t>(A, G >= 8 ? 512 : 128);
    const std::int64_t parts = (A + part_rows - 1) / part_rows;
    const thread_scratch<real, 2> scratch(workspace_, space,
                                          {tile_rows * part_rows, tile_rows * B});
    if (update == gradient_update::overwrite) zero_groups_without_rows(space, groups, gradient);
    const real first_beta = update == gradient_update::add ? real(1) : real(0);
    const typename Product::session session;
    for_each_tile(
        "lrmoe::weight_gradient::tile", space, groups, std::numeric_limits<index_type>::max(),
        parts, [&](const tile& at, std::int64_t part) {
          const auto [left_scratch, right_scratch] = scratch.mine();
          const std::int64_t first_column = part * part_rows;
          const std::int64_t columns = std::min(part_rows, A - first_column);
          for (std::int64_t done = 0; done < at.rows; done += tile_rows) {
            const tile chunk{at.group, at.first + done, std::min(tile_rows, at.rows - done)};
            const auto l = load_rows(left, chunk, first_column, columns, left_scratch);
            const auto r = load_rows(right, chunk, 0, B, right_scratch);
            Product::multiply(true, false, columns, B, chunk.rows, l.data, l.stride, r.data,
                              r.stride, done == 0 ? first_beta : real(1),
                              &gradient(at.group, first_column, 0), B);
          }
        });
    return gradient_product_cost<Element>(groups, A, B, update);
  }

 private:
  /// gate_up needs the most.
  template <class Element>
  static std::int64_t scratch_size(const Kokkos::OpenMP& space,
                                   std::span<const expert_work> works) {
    std::int64_t most = 0;
    for (const auto& [D, F, forward_rows, backward_rows, drawn_dx, drawn_dw, gathered, saved] :
         works) {
      const std::int64_t widened_weights =
          std::is_same_v<accumulate_t<Element>, Element> ? 0 : 2 * D * F;
      most = std::max(most, tile_rows * (D + 2 * F) + widened_weights);
    }
    return most * space.concurrency();
  }

  /// y = rows W or rows W^T, one rounding.
  template <class Element>
  product_cost multiply_rows(const char* label, const Kokkos::OpenMP& space,
                             const gathered<Element>& rows, const row_groups<device_type>& groups,
                             const tensor<const Element>& weights, bool transpose,
                             const matrix<Element>& y) {
    using real = accumulate_t<Element>;
    const auto stride = static_cast<std::int64_t>(weights.extent(2));
    const auto inner = static_cast<std::int64_t>(weights.extent(transpose ? 2 : 1));
    const auto width = static_cast<std::int64_t>(weights.extent(transpose ? 1 : 2));
    const thread_scratch<real, 3> scratch(
        workspace_, space, {tile_rows * inner, tile_rows * width, group_scratch<real>(weights)});
    const typename Product::session session;
    for_each_tile(label, space, groups, tile_rows, 1, [&](const tile& at, std::int64_t /*part*/) {
      const auto [row_scratch, y_scratch, weight_scratch] = scratch.mine();
      const auto input = load_rows(rows, at, 0, inner, row_scratch);
      real* product = y_scratch;
      if constexpr (std::is_same_v<real, Element>) product = &y(at.first, 0);
      Product::multiply(false, transpose, at.rows, width, inner, input.data, input.stride,
                        load_group(weights, at.group, weight_scratch), stride, real(0), product,
                        width);
      if constexpr (!std::is_same_v<real, Element>) {
        Element* stored = &y(at.first, 0);
        for (std::int64_t i = 0; i < at.rows * width; ++i) {
          stored[i] = static_cast<Element>(product[i]);
        }
      }
    });
    return row_product_cost<Element>(groups, inner, width, sizeof(Element));
  }

  workspace<device_type>& workspace_;
};

}  // namespace lrmoe::openmp
