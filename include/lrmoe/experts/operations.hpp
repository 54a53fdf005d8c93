// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <concepts>
#include <span>

#include <lrmoe/experts/expert_work.hpp>
#include <lrmoe/experts/gathered_rows.hpp>
#include <lrmoe/experts/gradient_update.hpp>
#include <lrmoe/experts/row_groups.hpp>

/// The expert operations are what a backend computes: the matrix products of the experts together
/// with the row work that can be fused into them. Rows are grouped by expert (row_groups).
///
///   gate_up           g, u = x [W_gate W_up];  h = silu(g) u;  norms = ||h||
///   down              y = h W_down
///   down_backward     dh' = dO W_down^T;  dw = c <dh', h>;  dg, du = c w dh' d(silu(g) u);  s = c w h
///                     (or dw alone, when its other results are empty)
///   gate_up_backward  dx = [dg du] [W_gate W_up]^T
///   weight_gradient   dW += left^T right, or dW = left^T right: then zeros for groups without rows
///
/// Row arguments marked "gathered" are read through an index, so that a fused backend need not
/// build what a simple one copies. Rows outside the groups are neither read nor written. Each operation
/// is asynchronous on the space, deterministic, and returns what its products cost.
/// Element types may be float, double and bfloat16; products and sums are kept in accumulate_t, and
/// a value is rounded once when it is stored.
namespace lrmoe {

/// Kept rows of SwiGLU experts and what backward needs of them.
template <class Element, class Device>
struct swiglu_kept_rows {
  gathered_rows<Element, Device> x;      // (M, D) inputs
  gathered_rows<Element, Device> pre;    // (M, 2F) saved g and u
  gathered_rows<Element, Device> d_out;  // (M, D) unscaled dO of the row's token
  row_groups<Device> groups;
  vector_view<const accumulate_t<Element>, Device> weights;  // (M) w, or empty for 1
  vector_view<const float, Device> factors;                  // (M) c, or empty for 1
};

/// Work of matrix products, from the rows and groups really used.
struct product_cost {
  double flops = 0;          ///< 2 m n k of every product
  double bytes_read = 0;     ///< both operands of every product, weights once per group in use
  double bytes_written = 0;  ///< results; a gradient that is added to is both read and written

  product_cost& operator+=(const product_cost& other) {
    flops += other.flops;
    bytes_read += other.bytes_read;
    bytes_written += other.bytes_written;
    return *this;
  }
};

/// Cost of rows (., inner) times a weight (inner, width) a group, `result_bytes` for each number of the result.
template <class Element, class Device>
product_cost row_product_cost(const row_groups<Device>& groups, std::int64_t inner,
                              std::int64_t width, std::size_t result_bytes) {
  const auto rows = static_cast<double>(groups.rows());
  return {2.0 * rows * inner * width,
          (rows * inner + static_cast<double>(groups.used()) * inner * width) * sizeof(Element),
          rows * width * result_bytes};
}

/// Cost of rows (., A)^T times rows (., B), a gradient (A, B) a group. Zeros for groups without rows are no
/// product.
template <class Element, class Device>
product_cost gradient_product_cost(const row_groups<Device>& groups, std::int64_t A, std::int64_t B,
                                   gradient_update update) {
  const auto rows = static_cast<double>(groups.rows());
  const double sums = static_cast<double>(groups.used()) * A * B * sizeof(accumulate_t<Element>);
  const double before = update == gradient_update::add ? sums : 0.0;
  return {2.0 * rows * A * B, rows * (A + B) * sizeof(Element) + before, sums};
}

/// The signatures, for one element type. Shapes are given where a backend implements them
/// (lrmoe/openmp/experts/operations.hpp, lrmoe/experts/composed_operations.hpp). Scratch comes from the
/// workspace: reserve<Element>(space, works) takes it for a whole call, so that backward, once gradients
/// have been added to, allocates nothing, and scratch_bytes<Element>(space, works) states it.
/// `gathers` tells whether inputs are read through their index in place; where they are copied first,
/// callers copy once what two operations read.
template <class Operations, class ExecutionSpace, class Device, class Element>
concept expert_operations = requires(
    Operations& operations, const ExecutionSpace& space, const gathered_rows<Element, Device>& rows,
    const swiglu_kept_rows<Element, Device>& kept, const row_groups<Device>& groups,
    std::span<const expert_work> works, const tensor_view<const Element, Device>& weights,
    const tensor_view<accumulate_t<Element>, Device>& gradient, gradient_update update,
    const matrix_view<Element, Device>& matrix, const vector_view<float, Device>& norms,
    const vector_view<accumulate_t<Element>, Device>& d_weights) {
  {
    operations.gate_up(space, rows, groups, weights, matrix, matrix, norms)
    } -> std::same_as<product_cost>;
  { operations.down(space, rows, groups, weights, matrix) } -> std::same_as<product_cost>;
  {
    operations.down_backward(space, kept, weights, matrix, matrix, d_weights)
    } -> std::same_as<product_cost>;
  {
    operations.gate_up_backward(space, rows, groups, weights, matrix)
    } -> std::same_as<product_cost>;
  {
    operations.weight_gradient(space, rows, rows, groups, gradient, update)
    } -> std::same_as<product_cost>;
  { Operations::template scratch_bytes<Element>(space, works) } -> std::same_as<std::int64_t>;
  operations.template reserve<Element>(space, works);
  { Operations::gathers } -> std::convertible_to<bool>;
};

}  // namespace lrmoe
