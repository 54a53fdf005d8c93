// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/compaction/kept_subset.hpp>
#include <lrmoe/compaction/scale_rows.hpp>
#include <lrmoe/context.hpp>
#include <lrmoe/experts/gathered_rows.hpp>

namespace lrmoe {

/// SwiGLU experts composed from the backend's operations. The routed experts are G = E groups, the
/// shared expert is one group of all tokens.
template <class Element, backend Backend>
struct swiglu_experts {
  using device_type = typename Backend::device_type;
  using real = accumulate_t<Element>;
  using rows_type = gathered_rows<Element, device_type>;
  using kept_type = swiglu_kept_rows<Element, device_type>;
  using subset = kept_subset<device_type>;
  using groups_type = row_groups<device_type>;
  using matrix = matrix_view<Element, device_type>;
  using weights = tensor_view<const Element, device_type>;
  using gradient = tensor_view<real, device_type>;
  static constexpr bool gathers = Backend::expert_operations::gathers;

  /// Complete forward of all rows.
  ///   y_r = (silu(x_r W_gate) (x_r W_up)) W_down
  /// Shapes    x (N, D) gathered, in G groups; gate_up (G, D, 2F); down (G, F, D); pre (N, 2F)
  ///           receives g and u, or is empty when no backward follows; norms (N) receives ||h||, or
  ///           is empty; y (N, D)
  /// Space     scratch of N F elements
  static void forward(context<Backend>& on, const rows_type& x, const groups_type& groups,
                      const weights& gate_up, const weights& down, const matrix& pre,
                      const vector_view<float, device_type>& norms, const matrix& y) {
    const matrix h =
        on.scratch["swiglu::hidden"].template matrix<Element>(y.extent(0), down.extent(1));
    on.operations.gate_up(on.space, x, groups, gate_up, pre, h, norms);
    on.operations.down(on.space, rows_type{h}, groups, down, y);
  }

  /// g and u of M rows whose forward did not save them.
  /// Shapes    x (M, D) gathered, in G groups; gate_up (G, D, 2F); pre (M, 2F)
  /// Space     scratch of M F elements
  static product_cost recompute(context<Backend>& on, const rows_type& x, const groups_type& groups,
                                const weights& gate_up, const matrix& pre) {
    const matrix h =
        on.scratch["swiglu::hidden"].template matrix<Element>(pre.extent(0), pre.extent(1) / 2);
    return on.operations.gate_up(on.space, x, groups, gate_up, pre, h, {});
  }

  /// Make room for a backward of M rows, so that backward itself allocates nothing once gradients have
  /// been added to. Throws memory_error.
  static void reserve_backward(context<Backend>& on, std::int64_t M, std::int64_t F) {
    on.scratch["swiglu::d_pre"].template matrix<Element>(M, 2 * F);
    on.scratch["swiglu::hidden"].template matrix<Element>(M, F);
  }
  /// The same for with_packed_gradients.
  static void reserve_gradients(context<Backend>& on, std::int64_t M, std::int64_t D) {
    if (!gathers) on.scratch["swiglu::d_out"].template matrix<Element>(M, D);
  }

  /// The same rows with dO in order, where operations would copy it once for each product otherwise.
  /// Space     scratch of M D elements
  static kept_type with_packed_gradients(context<Backend>& on, kept_type rows) {
    if (!gathers && rows.d_out.index.extent(0) != 0) {
      const matrix packed = on.scratch["swiglu::d_out"].template matrix<Element>(
          rows.groups.end(), rows.d_out.matrix.extent(1));
      pack_rows(on.space, rows.d_out, 0, packed);
      rows.d_out = {packed};
    }
    return rows;
  }

  /// Backward of the kept rows, in two steps, between which [dg du] may be looked at. First:
  ///   dh' = dO W_down^T;  dw = c <dh', h>;  dh = c w dh';  du = dh silu(g);  dg = dh u silu'(g)
  ///   dx = [dg du] [W_gate W_up]^T, times the second factor
  /// Shapes    d_weights (M) receives dw, or is empty; dx (S, D) receives the input gradients of the
  ///           rows in dx_of
  /// Ensures   returns [dg du] (M, 2F) in scratch, for weight_gradients
  /// Space     scratch of 3 M F elements
  static matrix backward(context<Backend>& on, const kept_type& rows, std::int64_t M,
                         const subset& dx_of, const weights& gate_up, const weights& down,
                         const vector_view<real, device_type>& d_weights, const matrix& dx,
                         product_cost& cost) {
    const auto F = static_cast<std::int64_t>(down.extent(1));
    const matrix d_pre = on.scratch["swiglu::d_pre"].template matrix<Element>(M, 2 * F);
    const matrix scaled_h = on.scratch["swiglu::hidden"].template matrix<Element>(M, F);
    cost += on.operations.down_backward(on.space, rows, down, d_pre, scaled_h, d_weights);
    cost += on.operations.gate_up_backward(on.space, rows_type{d_pre, dx_of.rows}, dx_of.groups,
                                           gate_up, dx);
    if (!dx_of.all()) scale_rows(on.space, dx, {}, dx_of.factors);
    return d_pre;
  }

  /// Second:
  ///   dW_down += h^T (c w dO);  [dW_gate dW_up] += x^T [dg du],   rows in dw_of, times the second factor
  /// Shapes    d_pre (M, 2F) as returned by backward; d_gate_up (G, D, 2F) and d_down (G, F, D), or
  ///           empty: not wanted
  /// Ensures   wanted gradients are added to, or overwritten, with zeros for groups without rows in dw_of
  /// Numerics  a second factor is multiplied into the stored rows, one more rounding to Element
  static void weight_gradients(context<Backend>& on, const kept_type& rows, const matrix& d_pre,
                               const subset& dw_of, const gradient& d_gate_up,
                               const gradient& d_down, gradient_update update, product_cost& cost) {
    const matrix scaled_h =
        on.scratch["swiglu::hidden"].template matrix<Element>(d_pre.extent(0), d_pre.extent(1) / 2);
    rows_type x = rows.x, d_out = rows.d_out;
    if (!dw_of.all()) {
      scale_rows(on.space, d_pre, dw_of.rows, dw_of.factors);
      scale_rows(on.space, scaled_h, dw_of.rows, dw_of.factors);
      const bool packed = d_out.index.extent(0) == 0;
      x = {x.matrix, dw_of.tokens};
      d_out = {d_out.matrix, packed ? dw_of.rows : dw_of.tokens};
    }
    if (d_down.size() != 0) {
      cost += on.operations.weight_gradient(on.space, rows_type{scaled_h, dw_of.rows}, d_out,
                                            dw_of.groups, d_down, update);
    }
    if (d_gate_up.size() != 0) {
      cost += on.operations.weight_gradient(on.space, x, rows_type{d_pre, dw_of.rows}, dw_of.groups,
                                            d_gate_up, update);
    }
  }

  /// dw = <dO W_down^T, h> of M rows alone, for the exact router gradient.
  /// Shapes    rows as for backward, without weights and factors; d_weights (M)
  static product_cost weight_products(context<Backend>& on, const kept_type& rows,
                                      const weights& down,
                                      const vector_view<real, device_type>& d_weights) {
    return on.operations.down_backward(on.space, rows, down, {}, {}, d_weights);
  }
};

}  // namespace lrmoe
