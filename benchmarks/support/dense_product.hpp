// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/openmp/config.hpp>
#if LRMOE_OPENMP_HAS_CBLAS
#include <lrmoe/openmp/product/cblas.hpp>
#else
#include <KokkosBlas3_gemm.hpp>
#endif

#include <cstdint>
#include <string>
#include <type_traits>

#include <lrmoe/types.hpp>
#if LRMOE_HAS_CUDA_BACKEND
#include <lrmoe/cuda/product/cublas_handle.hpp>
#endif

namespace bench {

/// One plain matrix product C = A B with all threads: what the machine can do without experts.
template <class Real, class Device>
void dense_product(const lrmoe::matrix_view<const Real, Device>& a,
                   const lrmoe::matrix_view<const Real, Device>& b,
                   const lrmoe::matrix_view<Real, Device>& c) {
#if LRMOE_OPENMP_HAS_CBLAS
  const auto m = static_cast<std::int64_t>(c.extent(0));
  const auto n = static_cast<std::int64_t>(c.extent(1));
  const auto k = static_cast<std::int64_t>(a.extent(1));
#if LRMOE_OPENMP_HAS_OPENBLAS
  openblas_set_num_threads(typename Device::execution_space().concurrency());
#endif
  lrmoe::openmp::cblas_product::multiply(false, false, m, n, k, a.data(), k, b.data(), n, Real(0),
                                         c.data(), n);
#if LRMOE_OPENMP_HAS_OPENBLAS
  openblas_set_num_threads(1);
#endif
#else
  KokkosBlas::gemm("N", "N", Real(1), a, b, Real(0), c);
#endif
}

/// Name of an element type in paths of results.
template <class Element>
std::string type_name() {
  if constexpr (std::is_same_v<Element, lrmoe::bfloat16>) return "bf16";
  return std::is_same_v<Element, double> ? "double" : "float";
}

/// The plain product that a layer of this element type is compared with on the host, where products of
/// bfloat16 are computed in float.
template <class Element, class ExecutionSpace>
class dense_baseline {
 public:
  using element = lrmoe::accumulate_t<Element>;

  explicit dense_baseline(const ExecutionSpace& /*space*/) {}

  template <class Device>
  void multiply(const lrmoe::matrix_view<const element, Device>& a,
                const lrmoe::matrix_view<const element, Device>& b,
                const lrmoe::matrix_view<element, Device>& c) {
    dense_product<element, Device>(a, b, c);
  }
};

#if LRMOE_HAS_CUDA_BACKEND
/// On a GPU: one product of cuBLAS in the element type, sums in accumulate_t.
template <class Element>
class dense_baseline<Element, Kokkos::Cuda> {
 public:
  using element = Element;

  explicit dense_baseline(const Kokkos::Cuda& space) : handle_(space.cuda_device()) {
    lrmoe::cuda::check(cublasSetStream(handle_.get(), space.cuda_stream()),
                       "giving cuBLAS a stream");
  }

  /// Row-major C = A B is column-major C^T = B^T A^T.
  template <class Device>
  void multiply(const lrmoe::matrix_view<const Element, Device>& a,
                const lrmoe::matrix_view<const Element, Device>& b,
                const lrmoe::matrix_view<Element, Device>& c) {
    using real = lrmoe::accumulate_t<Element>;
    using type = lrmoe::cuda::cublas_type<Element>;
    const int m = static_cast<int>(c.extent(0)), n = static_cast<int>(c.extent(1)),
              k = static_cast<int>(a.extent(1));
    const real one = 1, zero = 0;
    lrmoe::cuda::check(cublasGemmEx(handle_.get(), CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one,
                                    b.data(), type::data, n, a.data(), type::data, k, &zero,
                                    c.data(), type::data, n, type::compute, CUBLAS_GEMM_DEFAULT),
                       "the plain dense product");
  }

 private:
  lrmoe::cuda::cublas_handle handle_;
};
#endif

/// The library behind dense_product, in words.
inline std::string dense_product_library() {
#if LRMOE_OPENMP_HAS_OPENBLAS
  std::string text = openblas_get_config();
  return text.substr(0, text.find_last_not_of(' ') + 1);
#elif LRMOE_OPENMP_HAS_CBLAS
  return "CBLAS";
#else
  return "Kokkos Kernels";
#endif
}

}  // namespace bench
