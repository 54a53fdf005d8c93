// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include <lrmoe/experts/gathered_rows.hpp>
#include <lrmoe/experts/grouped_product.hpp>
#include <lrmoe/experts/swiglu_rows.hpp>

namespace lrmoe {

/// The five expert operations (contract: experts/operations.hpp) composed of row copies, the products of a
/// library and row kernels. Serves every library that multiplies row groups; a backend that fuses
/// some of it offers operations of its own.
///
/// Space     copies of gathered rows, g and u where they are not saved, dh' (see scratch_bytes)
/// Numerics  dh' is rounded to Element between its product and the row work
template <class Product, class ExecutionSpace, class Device>
class composed_operations {
 public:
  template <class T>
  using vector = vector_view<T, Device>;
  template <class T>
  using matrix = matrix_view<T, Device>;
  template <class T>
  using tensor = tensor_view<T, Device>;
  template <class T>
  using gathered = gathered_rows<T, Device>;
  using groups_type = row_groups<Device>;

  explicit composed_operations(workspace<Device>& scratch)
      : workspace_(scratch), product_(scratch) {}

  static constexpr bool gathers = false;

  Product& product() { return product_; }

  /// Bytes of workspace that the operations take for these experts, forward and backward.
  template <class Element>
  static std::int64_t scratch_bytes(const ExecutionSpace& space,
                                    std::span<const expert_work> works) {
    const auto sizes = scratch_sizes(works);
    return Product::workspace_bytes(space) +
           (sizes[0] + sizes[1] + sizes[2] + sizes[3]) * static_cast<std::int64_t>(sizeof(Element));
  }

  template <class Element>
  void reserve(const ExecutionSpace& space, std::span<const expert_work> works) {
    const auto sizes = scratch_sizes(works);
    for (std::size_t i = 0; i < sizes.size(); ++i)
      workspace_[buffer_names[i]].template vector<Element>(sizes[i]);
    product_.reserve(space);
  }

  /// g, u = x [W_gate W_up];  h = silu(g) u;  norms = ||h||
  /// Shapes    x gathered, D columns; weights (G, D, 2F); pre (P, 2F) or empty; h (P, F); norms (P)
  ///           or empty
  template <class Element>
  product_cost gate_up(const ExecutionSpace& space, const gathered<Element>& x,
                       const groups_type& groups, const tensor<const Element>& weights,
                       const matrix<Element>& pre, const matrix<Element>& h,
                       const vector<float>& norms) {
    if (groups.rows() == 0) return {};
    const auto columns = static_cast<std::int64_t>(weights.extent(2));
    const matrix<Element> gu =
        pre.extent(0) != 0
            ? rows_of(pre, groups)
            : workspace_[buffer_names[pre_rows]].template matrix<Element>(groups.rows(), columns);
    product_.multiply_rows(space, packed(space, left_rows, x, groups), groups, weights, false, gu);
    swiglu_rows(space, matrix<const Element>(gu), rows_of(h, groups),
                norms.extent(0) == 0 ? norms
                                     : vector<float>(norms.data() + groups.first(),
                                                     static_cast<std::size_t>(groups.rows())));
    return row_cost(groups, weights, false);
  }

  /// y = h W_down
  /// Shapes    h gathered, F columns; weights (G, F, D); y (P, D)
  template <class Element>
  product_cost down(const ExecutionSpace& space, const gathered<Element>& h,
                    const groups_type& groups, const tensor<const Element>& weights,
                    const matrix<Element>& y) {
    if (groups.rows() == 0) return {};
    product_.multiply_rows(space, packed(space, left_rows, h, groups), groups, weights, false,
                           rows_of(y, groups));
    return row_cost(groups, weights, false);
  }

  /// dh' = dO W_down^T;  dw = c <dh', h>;  dh = c w dh';  dg = dh u silu'(g);  du = dh silu(g);
  /// scaled_h = c w h
  /// Shapes    rows.d_out, rows.pre gathered; weights (G, F, D); d_pre (M, 2F) and scaled_h (M, F), or
  ///           both empty; d_weights (M) or empty
  template <class Element>
  product_cost down_backward(const ExecutionSpace& space,
                             const swiglu_kept_rows<Element, Device>& rows,
                             const tensor<const Element>& weights, const matrix<Element>& d_pre,
                             const matrix<Element>& scaled_h,
                             const vector<accumulate_t<Element>>& d_weights) {
    const groups_type& groups = rows.groups;
    if (groups.rows() == 0) return {};
    const auto d_hidden = workspace_[buffer_names[hidden_rows]].template matrix<Element>(
        groups.rows(), static_cast<std::int64_t>(weights.extent(1)));
    product_.multiply_rows(space, packed(space, left_rows, rows.d_out, groups), groups, weights,
                           true, d_hidden);
    swiglu_backward_rows(space, rows, matrix<const Element>(d_hidden), d_pre, scaled_h, d_weights);
    return row_cost(groups, weights, true);
  }

  /// dx = [dg du] [W_gate W_up]^T
  /// Shapes    d_pre gathered, 2F columns; weights (G, D, 2F); dx (M, D)
  template <class Element>
  product_cost gate_up_backward(const ExecutionSpace& space, const gathered<Element>& d_pre,
                                const groups_type& groups, const tensor<const Element>& weights,
                                const matrix<Element>& dx) {
    if (groups.rows() == 0) return {};
    product_.multiply_rows(space, packed(space, left_rows, d_pre, groups), groups, weights, true,
                           rows_of(dx, groups));
    return row_cost(groups, weights, true);
  }

  /// dW += left^T right, or dW = left^T right, with zeros for groups without rows
  /// Shapes    left gathered, A columns; right gathered, B columns; gradient (G, A, B)
  template <class Element>
  product_cost weight_gradient(const ExecutionSpace& space, const gathered<Element>& left,
                               const gathered<Element>& right, const groups_type& groups,
                               const tensor<accumulate_t<Element>>& gradient,
                               gradient_update update) {
    if (update == gradient_update::overwrite) zero_groups_without_rows(space, groups, gradient);
    if (groups.rows() == 0) return {};
    product_.sum_products(space, packed(space, left_rows, left, groups),
                          packed(space, right_rows, right, groups), groups, gradient, update);
    return gradient_product_cost<Element>(groups, static_cast<std::int64_t>(gradient.extent(1)),
                                          static_cast<std::int64_t>(gradient.extent(2)), update);
  }

 private:
  enum buffer_index : std::size_t { left_rows, right_rows, pre_rows, hidden_rows };
  static constexpr std::array<const char*, 4> buffer_names{"experts::left", "experts::right",
                                                           "experts::pre", "experts::d_hidden"};

  /// Elements of each buffer.
  static std::array<std::int64_t, 4> scratch_sizes(std::span<const expert_work> works) {
    std::array<std::int64_t, 4> most{};
    for (const expert_work& w : works) {
      const std::int64_t rows = w.gathered ? std::max(w.forward_rows, w.backward_rows) : 0;
      const std::array<std::int64_t, 4> sizes{
          std::max({rows * w.D, w.drawn_dx * 2 * w.F, w.drawn_dw * std::max(w.D, w.F)}),
          w.drawn_dw * std::max(w.D, 2 * w.F), w.saved ? 0 : w.forward_rows * 2 * w.F,
          w.backward_rows * w.F};
      for (std::size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], sizes[i]);
    }
    return most;
  }

  template <class View>
  static View rows_of(const View& all, const groups_type& groups) {
    return View(all.data() + groups.first() * static_cast<std::int64_t>(all.extent(1)),
                static_cast<std::size_t>(groups.rows()), all.extent(1));
  }

  /// The rows of the groups one behind the other: where they are, or copied into a buffer.
  template <class Element>
  matrix<const Element> packed(const ExecutionSpace& space, buffer_index where,
                               const gathered<Element>& rows, const groups_type& groups) {
    if (rows.index.extent(0) == 0) return rows_of(rows.matrix, groups);
    const auto copy = workspace_[buffer_names[where]].template matrix<Element>(
        groups.rows(), static_cast<std::int64_t>(rows.matrix.extent(1)));
    pack_rows(space, rows, groups.first(), copy);
    return copy;
  }

  /// Cost of the rows times W, or W^T, of their groups.
  template <class Element>
  static product_cost row_cost(const groups_type& groups, const tensor<const Element>& weights,
                               bool transpose) {
    return row_product_cost<Element>(
        groups, static_cast<std::int64_t>(weights.extent(transpose ? 2 : 1)),
        static_cast<std::int64_t>(weights.extent(transpose ? 1 : 2)), sizeof(Element));
  }

  workspace<Device>& workspace_;
  Product product_;
};

}  // namespace lrmoe
