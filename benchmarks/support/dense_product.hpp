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

#include <lrmoe/types.hpp>

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

/// The library behind it, in words.
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
