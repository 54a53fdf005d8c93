// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <concepts>

#include <lrmoe/experts/gradient_update.hpp>
#include <lrmoe/memory/workspace.hpp>

namespace lrmoe {

/// Matrix products of row groups, each with a matrix of its own: all that composed_operations needs of a
/// library. Rows lie one behind the other as the groups say; row-major, contiguous.
///   multiply_rows(space, a, groups, weights, transpose, c)
///       c_r = a_r W_g, or a_r W_g^T when `transpose`, for the rows r of every group g
///       Shapes    a and c: row groups.first() is their first; a (groups.rows(), k), c (groups.rows(), n);
///                 weights (G, k, n), transposed (G, n, k)
///       Numerics  sums in accumulate_t, one rounding to Element
///   sum_products(space, a, b, groups, gradient, update)
///       gradient_g += a^T b over the rows of group g, or gradient_g = a^T b to overwrite what was there
///       Shapes    a (groups.rows(), A), b (groups.rows(), B) likewise; gradient (G, A, B)
///       Numerics  products and sums in accumulate_t
///   workspace_bytes(space)   what the product takes from the workspace, and reserve(space) takes it
/// Groups without rows are not touched, whatever the update. Asynchronous on the space, deterministic from run
/// to run.
/// Models: cuda::cublas_loop, cuda::cublas_grouped, cuda::measured_product.
template <class Product, class ExecutionSpace, class Device, class Element>
concept grouped_product = std::constructible_from < Product,
        workspace<Device>
& > &&requires(Product& product, const ExecutionSpace& space,
               const matrix_view<const Element, Device>& rows, const row_groups<Device>& groups,
               const tensor_view<const Element, Device>& weights, bool transpose,
               const matrix_view<Element, Device>& result,
               const tensor_view<accumulate_t<Element>, Device>& gradient, gradient_update update) {
  product.multiply_rows(space, rows, groups, weights, transpose, result);
  product.sum_products(space, rows, rows, groups, gradient, update);
  { Product::workspace_bytes(space) } -> std::same_as<std::int64_t>;
  product.reserve(space);
};

}  // namespace lrmoe
