// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <string>

#include <cblas.h>

#include <lrmoe/openmp/config.hpp>

#include "host.hpp"

#if LRMOE_OPENMP_HAS_OPENBLAS
extern "C" void openblas_set_num_threads(int);
#endif

namespace train {

/// Products are cut into blocks for Kokkos' threads here and in the library; a BLAS that has threads
/// of its own would only compete with them. Others than OpenBLAS follow OpenMP's rules for nesting.
inline void use_one_blas_thread() {
#if LRMOE_OPENMP_HAS_OPENBLAS
  openblas_set_num_threads(1);
#endif
}

enum class transpose : bool { no, yes };

/// One product on the calling thread, on rows of `stride` elements.
///   c = alpha * op(a) op(b) + beta * c,   c (rows, columns), inner length `inner`
inline void small_multiply(transpose ta, transpose tb, std::int64_t rows, std::int64_t columns,
                           std::int64_t inner, float alpha, const float* a, std::int64_t a_stride,
                           const float* b, std::int64_t b_stride, float beta, float* c,
                           std::int64_t c_stride) {
  const auto blas_int = [](std::int64_t n) { return static_cast<int>(n); };
  cblas_sgemm(CblasRowMajor, ta == transpose::yes ? CblasTrans : CblasNoTrans,
              tb == transpose::yes ? CblasTrans : CblasNoTrans, blas_int(rows), blas_int(columns),
              blas_int(inner), alpha, a, blas_int(a_stride), b, blas_int(b_stride), beta, c,
              blas_int(c_stride));
}

/// Dense product, its result cut into blocks that are shared among threads.
///   c = op(a) op(b) + beta * c
/// Each block is one call of a BLAS that runs on one thread; blocks depend on the sizes only, so
/// the result does not depend on the number of threads.
inline void multiply(const std::string& label, transpose ta, const const_matrix& a, transpose tb,
                     const const_matrix& b, float beta, const matrix& c) {
  const auto rows = static_cast<std::int64_t>(c.extent(0));
  const auto columns = static_cast<std::int64_t>(c.extent(1));
  const auto inner = static_cast<std::int64_t>(ta == transpose::yes ? a.extent(0) : a.extent(1));
  const auto a_stride = static_cast<std::int64_t>(a.extent(1));
  const auto b_stride = static_cast<std::int64_t>(b.extent(1));
  // Tall results (activations) are cut by rows, weight gradients, small with a long inner dimension,
  // along their longer side.
  const bool tall = rows >= 512;
  const std::int64_t longer = std::max(rows, columns);
  const std::int64_t block =
      tall ? 256 : std::clamp<std::int64_t>((longer / 4 + 15) / 16 * 16, 32, 128);
  const bool by_rows = tall || rows >= columns;
  for_chunks(label, by_rows ? rows : columns, block,
             [=](std::int64_t, std::int64_t begin, std::int64_t end) {
               const std::int64_t row = by_rows ? begin : 0;
               const std::int64_t column = by_rows ? 0 : begin;
               const float* a_block = a.data() + row * (ta == transpose::yes ? 1 : a_stride);
               const float* b_block = b.data() + column * (tb == transpose::yes ? b_stride : 1);
               small_multiply(ta, tb, by_rows ? end - begin : rows, by_rows ? columns : end - begin,
                              inner, 1.0f, a_block, a_stride, b_block, b_stride, beta,
                              c.data() + row * columns + column, columns);
             });
}

}  // namespace train
