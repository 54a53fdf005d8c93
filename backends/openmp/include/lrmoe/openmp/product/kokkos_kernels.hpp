// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/openmp/config.hpp>

#if !LRMOE_OPENMP_HAS_KOKKOS_KERNELS
#error \
    "lrmoe: this installation was configured without Kokkos Kernels: use openmp::cblas_product, or configure LRMoE again with Kokkos Kernels"
#endif

#include <cstdint>

#include <KokkosBatched_Gemm_Decl.hpp>
#include <KokkosBatched_Util.hpp>
#include <Kokkos_Core.hpp>

namespace lrmoe::openmp {

/// Matrix products of one thread through Kokkos Kernels' serial blocked product: no BLAS needed, an
/// order of magnitude slower than one.
struct kokkos_kernels_product {
  static constexpr const char* name = "kokkos_kernels";

  /// Nothing to set up: a serial product owns no threads.
  struct session {
    session() {}
  };

  /// C = op(A) op(B) + beta C, row-major, C m x n, inner extent k; leading extents in elements.
  template <class Real>
  static void multiply(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n,
                       std::int64_t k, const Real* a, std::int64_t lda, const Real* b,
                       std::int64_t ldb, Real beta, Real* c, std::int64_t ldc) {
    using namespace KokkosBatched;
    using layout = Kokkos::LayoutStride;
    using input = Kokkos::View<const Real**, layout, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>;
    using output = Kokkos::View<Real**, layout, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>;
    const auto strided = [](std::int64_t rows, std::int64_t columns, std::int64_t leading) {
      return layout(static_cast<std::size_t>(rows), static_cast<std::size_t>(leading),
                    static_cast<std::size_t>(columns), 1);
    };
    const input a_view(a, transpose_a ? strided(k, m, lda) : strided(m, k, lda));
    const input b_view(b, transpose_b ? strided(n, k, ldb) : strided(k, n, ldb));
    const output c_view(c, strided(m, n, ldc));
    const auto call = [&](auto op_a, auto op_b) {
      SerialGemm<decltype(op_a), decltype(op_b), Algo::Gemm::Blocked>::invoke(Real(1), a_view,
                                                                              b_view, beta, c_view);
    };
    if (transpose_a) {
      transpose_b ? call(Trans::Transpose{}, Trans::Transpose{})
                  : call(Trans::Transpose{}, Trans::NoTranspose{});
    } else {
      transpose_b ? call(Trans::NoTranspose{}, Trans::Transpose{})
                  : call(Trans::NoTranspose{}, Trans::NoTranspose{});
    }
  }
};

}  // namespace lrmoe::openmp
