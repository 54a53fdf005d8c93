// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/context.hpp>

namespace lrmoe {

/// SwiGLU experts composed from the backend's operations. The routed experts are G = E groups, the
/// shared expert is one group of all tokens.
template <class Element, backend Backend>
struct swiglu_experts {
  using device_type = typename Backend::device_type;
  using real = accumulate_t<Element>;
  using rows_type = gathered_rows<Element, device_type>;
  using offsets_type = vector_view<const index_type, device_type>;
  using matrix = matrix_view<Element, device_type>;
  using weights = tensor_view<const Element, device_type>;
  using gradient = tensor_view<real, device_type>;

  /// Complete forward of all rows.
  ///   y_r = (silu(x_r W_gate) (x_r W_up)) W_down
  /// Shapes    x (P, D) gathered; offsets (G+1); gate_up (G, D, 2F); down (G, F, D); pre (P, 2F)
  ///           receives g and u, or is empty when no backward follows; norms (P) receives ||h||, or
  ///           is empty; y (P, D)
  /// Space     scratch of P F elements
  static void forward(context<Backend>& on, const rows_type& x, const offsets_type& offsets,
                      const weights& gate_up, const weights& down, const matrix& pre,
                      const vector_view<float, device_type>& norms, const matrix& y) {
    const matrix h =
        on.scratch["swiglu::hidden"].template matrix<Element>(y.extent(0), down.extent(1));
    on.operations.gate_up(on.space, x, offsets, gate_up, pre, h, norms);
    on.operations.down(on.space, rows_type{h}, offsets, down, y);
  }

  /// Make room for a backward of M rows of width F, so that backward itself allocates nothing once
  /// gradients have been added to. Throws memory_error.
  static void reserve_backward(context<Backend>& on, std::int64_t M, std::int64_t F) {
    on.scratch["swiglu::d_pre"].template matrix<Element>(M, 2 * F);
    on.scratch["swiglu::hidden"].template matrix<Element>(M, F);
  }

  /// Backward of the kept rows.
  ///   dh' = dO W_down^T;  dw = c <dh', h>;  dh = c w dh';  dW_down += h^T (c w dO)
  ///   du = dh silu(g);  dg = dh u silu'(g);  dW += x^T [dg du];  dx = [dg du] [W_gate W_up]^T
  /// Shapes    d_weights (M) receives dw, or is empty; dx (M, D) receives the rows' input gradients;
  ///           d_gate_up (G, D, 2F) and d_down (G, F, D) are added to, or empty: not wanted
  /// Space     scratch of 3 M F elements
  static product_cost backward(context<Backend>& on,
                               const swiglu_kept_rows<Element, device_type>& rows,
                               const weights& gate_up, const weights& down,
                               const vector_view<real, device_type>& d_weights, const matrix& dx,
                               const gradient& d_gate_up, const gradient& d_down) {
    const auto M = static_cast<std::int64_t>(dx.extent(0));
    const auto F = static_cast<std::int64_t>(down.extent(1));
    const matrix d_pre = on.scratch["swiglu::d_pre"].template matrix<Element>(M, 2 * F);
    const matrix scaled_h = on.scratch["swiglu::hidden"].template matrix<Element>(M, F);

    product_cost cost =
        on.operations.down_backward(on.space, rows, down, d_pre, scaled_h, d_weights);
    if (d_down.size() != 0) {
      cost += on.operations.weight_gradient(on.space, rows_type{scaled_h}, rows.d_out, rows.offsets,
                                            d_down);
    }
    if (d_gate_up.size() != 0) {
      cost += on.operations.weight_gradient(on.space, rows.x, rows_type{d_pre}, rows.offsets,
                                            d_gate_up);
    }
    cost += on.operations.gate_up_backward(on.space, rows_type{d_pre}, rows.offsets, gate_up, dx);
    return cost;
  }
};

}  // namespace lrmoe
