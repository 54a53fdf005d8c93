// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>

#include <cublas_v2.h>

#include <lrmoe/experts/gradient_update.hpp>

namespace lrmoe::cuda {

using device_type = Kokkos::Device<Kokkos::Cuda, Kokkos::CudaSpace>;

enum class product_operation { multiply_rows, multiply_rows_transposed, sum_products };

constexpr std::string_view name_of(product_operation operation) {
  switch (operation) {
    case product_operation::multiply_rows:
      return "multiply_rows";
    case product_operation::multiply_rows_transposed:
      return "multiply_rows_transposed";
    default:
      return "sum_products";
  }
}

/// What cuBLAS calls an element type and the type of its sums. CUBLAS_COMPUTE_32F with float operands
/// multiplies in full single precision; only the FAST variants may use TF32.
template <class Element>
struct cublas_type {
  static_assert(sizeof(Element) == 0,
                "lrmoe::cuda: products are of float, double or lrmoe::bfloat16");
};
template <>
struct cublas_type<float> {
  static constexpr std::string_view name = "float";
  static constexpr cudaDataType_t data = CUDA_R_32F;
  static constexpr cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
};
template <>
struct cublas_type<double> {
  static constexpr std::string_view name = "double";
  static constexpr cudaDataType_t data = CUDA_R_64F;
  static constexpr cublasComputeType_t compute = CUBLAS_COMPUTE_64F;
};
template <>
struct cublas_type<bfloat16> {
  static constexpr std::string_view name = "bfloat16";
  static constexpr cudaDataType_t data = CUDA_R_16BF;
  static constexpr cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
};

/// Where a matrix of each group begins: `row` counts from the first row of all groups.
struct gemm_operand {
  std::uintptr_t address = 0;
  std::int64_t row_bytes = 0;
  std::int64_t group_bytes = 0;
  int leading = 0;  ///< leading extent in elements

  KOKKOS_FUNCTION void* at(std::int64_t row, std::int64_t group) const {
    return reinterpret_cast<void*>(
        address + static_cast<std::uintptr_t>(row * row_bytes + group * group_bytes));
  }
};

/// One product per group as BLAS states it, column-major: c_g (m, n) = a_g b_g + beta c_g with inner extent
/// k; the group's number of rows stands for n, or for k where the rows are summed over.
/// A row-major matrix is its transpose in column-major order, so operands are swapped and none is copied.
struct grouped_gemm {
  std::string_view element;
  product_operation operation = product_operation::multiply_rows;
  cublasOperation_t op_a = CUBLAS_OP_N, op_b = CUBLAS_OP_N;
  gemm_operand a, b, c;
  cudaDataType_t in = CUDA_R_32F, out = CUDA_R_32F;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  int m = 0, other = 0;  ///< extents that all groups share: m, and k or n
  bool adds = false;     ///< to what c holds: beta is 1, else 0 and c is not read

  /// Whether the rows of a group are what is summed over: they are the inner extent then.
  bool sums_rows() const { return operation == product_operation::sum_products; }
  int n(int rows) const { return sums_rows() ? other : rows; }
  int k(int rows) const { return sums_rows() ? rows : other; }
  double flops(std::int64_t rows) const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(m) * static_cast<double>(other);
  }
};

namespace detail {

inline int blas_extent(std::int64_t extent) {
  require(extent >= 1 && extent <= std::numeric_limits<int>::max(), "cuBLAS product: an extent of ",
          extent, " must be in [1, 2^31 - 1]");
  return static_cast<int>(extent);
}

template <class T>
gemm_operand operand(const T* data, std::int64_t row_elements, std::int64_t group_elements,
                     int leading) {
  constexpr auto bytes = static_cast<std::int64_t>(sizeof(T));
  return {reinterpret_cast<std::uintptr_t>(data), row_elements * bytes, group_elements * bytes,
          leading};
}

template <class Element>
grouped_gemm typed_gemm(product_operation operation) {
  grouped_gemm gemm;
  gemm.element = cublas_type<Element>::name;
  gemm.operation = operation;
  gemm.in = gemm.out = cublas_type<Element>::data;
  gemm.compute = cublas_type<Element>::compute;
  return gemm;
}

/// Throws argument_error unless rows and groups fit the matrices.
inline void require_groups(std::string_view operation, const row_groups<device_type>& groups,
                           std::int64_t matrices, std::int64_t rows) {
  require(groups.size() == matrices, operation, ": ", groups.size(), " groups and ", matrices,
          " matrices: pass one matrix per group");
  require(rows >= groups.rows(), operation, ": a matrix of ", rows, " rows cannot hold the ",
          groups.rows(), " rows of the groups");
}

}  // namespace detail

/// c_r = a_r W_g, or a_r W_g^T; see lrmoe::grouped_product. c^T = W^T a^T is what BLAS computes.
template <class Element>
grouped_gemm multiply_rows_gemm(const matrix_view<const Element, device_type>& a,
                                const row_groups<device_type>& groups,
                                const tensor_view<const Element, device_type>& weights,
                                bool transpose, const matrix_view<Element, device_type>& c) {
  const auto k = static_cast<std::int64_t>(weights.extent(transpose ? 2 : 1));
  const auto n = static_cast<std::int64_t>(weights.extent(transpose ? 1 : 2));
  detail::require_groups("multiply_rows", groups, static_cast<std::int64_t>(weights.extent(0)),
                         static_cast<std::int64_t>(std::min(a.extent(0), c.extent(0))));
  require(
      static_cast<std::int64_t>(a.extent(1)) == k && static_cast<std::int64_t>(c.extent(1)) == n,
      "multiply_rows: ", a.extent(1), " columns times a matrix of ", k, " x ", n, " give ",
      c.extent(1), " columns: the inner and outer extents must agree");
  auto gemm = detail::typed_gemm<Element>(transpose ? product_operation::multiply_rows_transposed
                                                    : product_operation::multiply_rows);
  gemm.m = detail::blas_extent(n);
  gemm.other = detail::blas_extent(k);
  gemm.op_a = transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
  gemm.a = detail::operand(weights.data(), 0, k * n, transpose ? gemm.other : gemm.m);
  gemm.b = detail::operand(a.data(), k, 0, gemm.other);
  gemm.c = detail::operand(c.data(), n, 0, gemm.m);
  return gemm;
}

/// gradient_g += a^T b, or gradient_g = a^T b; see lrmoe::grouped_product. gradient^T of b^T a is what BLAS
/// computes.
template <class Element>
grouped_gemm sum_products_gemm(const matrix_view<const Element, device_type>& a,
                               const matrix_view<const Element, device_type>& b,
                               const row_groups<device_type>& groups,
                               const tensor_view<accumulate_t<Element>, device_type>& gradient,
                               gradient_update update) {
  const auto A = static_cast<std::int64_t>(gradient.extent(1));
  const auto B = static_cast<std::int64_t>(gradient.extent(2));
  detail::require_groups("sum_products", groups, static_cast<std::int64_t>(gradient.extent(0)),
                         static_cast<std::int64_t>(std::min(a.extent(0), b.extent(0))));
  require(
      static_cast<std::int64_t>(a.extent(1)) == A && static_cast<std::int64_t>(b.extent(1)) == B,
      "sum_products: rows of ", a.extent(1), " and ", b.extent(1), " columns and a gradient of ", A,
      " x ", B, ": the extents must agree");
  auto gemm = detail::typed_gemm<Element>(product_operation::sum_products);
  gemm.out = cublas_type<accumulate_t<Element>>::data;
  gemm.m = detail::blas_extent(B);
  gemm.other = detail::blas_extent(A);
  gemm.op_b = CUBLAS_OP_T;
  gemm.a = detail::operand(b.data(), B, 0, gemm.m);
  gemm.b = detail::operand(a.data(), A, 0, gemm.other);
  gemm.c = detail::operand(gradient.data(), 0, A * B, gemm.m);
  gemm.adds = update == gradient_update::add;
  return gemm;
}

/// The two operations of lrmoe::grouped_product for a provider whose multiply(space, gemm, groups) takes them
/// untyped.
template <class Provider>
class typed_products {
 public:
  template <class Element>
  void multiply_rows(const Kokkos::Cuda& space, const matrix_view<const Element, device_type>& a,
                     const row_groups<device_type>& groups,
                     const tensor_view<const Element, device_type>& weights, bool transpose,
                     const matrix_view<Element, device_type>& c) {
    provider().multiply(space, multiply_rows_gemm(a, groups, weights, transpose, c), groups);
  }
  template <class Element>
  void sum_products(const Kokkos::Cuda& space, const matrix_view<const Element, device_type>& a,
                    const matrix_view<const Element, device_type>& b,
                    const row_groups<device_type>& groups,
                    const tensor_view<accumulate_t<Element>, device_type>& gradient,
                    gradient_update update) {
    provider().multiply(space, sum_products_gemm(a, b, groups, gradient, update), groups);
  }

 private:
  Provider& provider() { return static_cast<Provider&>(*this); }
};

}  // namespace lrmoe::cuda
