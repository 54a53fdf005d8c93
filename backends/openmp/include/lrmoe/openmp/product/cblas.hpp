// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/openmp/config.hpp>

#if !LRMOE_OPENMP_HAS_CBLAS
#error \
    "lrmoe: this installation was configured without CBLAS: use openmp::kokkos_kernels_product, or configure LRMoE again with a BLAS"
#endif

#include <cstdint>
#include <type_traits>

#include <cblas.h>
#include <omp.h>

#if LRMOE_OPENMP_HAS_OPENBLAS
extern "C" void openblas_set_num_threads(int);
extern "C" int openblas_get_num_threads(void);
#endif

namespace lrmoe::openmp {

/// Matrix products of one thread through CBLAS.
struct cblas_product {
  static constexpr const char* name = "cblas";

  /// While one is alive every calling thread gets a product of its own: the operations run one product
  /// per Kokkos thread, and a BLAS that spawned threads in each would oversubscribe the machine.
  /// OpenBLAS is told so and its setting restored; other BLAS libraries follow OpenMP's nesting.
  class session {
   public:
#if LRMOE_OPENMP_HAS_OPENBLAS
    session() : threads_(openblas_get_num_threads()), omp_threads_(omp_get_max_threads()) {
      if (threads_ != 1) openblas_set_num_threads(1);
    }
    ~session() {
      if (threads_ != 1) openblas_set_num_threads(threads_);
      // OpenBLAS built with OpenMP hands its number on to the OpenMP runtime.
      if (omp_get_max_threads() != omp_threads_) omp_set_num_threads(omp_threads_);
    }
    session(const session&) = delete;
    session& operator=(const session&) = delete;

   private:
    int threads_;
    int omp_threads_;
#else
    session() {}
#endif
  };

  /// C = op(A) op(B) + beta C, row-major, C m x n, inner extent k; leading extents in elements.
  template <class Real>
  static void multiply(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n,
                       std::int64_t k, const Real* a, std::int64_t lda, const Real* b,
                       std::int64_t ldb, Real beta, Real* c, std::int64_t ldc) {
    static_assert(std::is_same_v<Real, float> || std::is_same_v<Real, double>,
                  "lrmoe::openmp::cblas_product: products are computed in float or double");
    const auto op_a = transpose_a ? CblasTrans : CblasNoTrans;
    const auto op_b = transpose_b ? CblasTrans : CblasNoTrans;
    const auto call = [&](auto gemm) {
      gemm(CblasRowMajor, op_a, op_b, m, n, k, Real(1), a, lda, b, ldb, beta, c, ldc);
    };
    if constexpr (std::is_same_v<Real, float>) {
      call(cblas_sgemm);
    } else {
      call(cblas_dgemm);
    }
  }
};

}  // namespace lrmoe::openmp
