// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/openmp/config.hpp>
#if LRMOE_OPENMP_HAS_CBLAS
#include <lrmoe/openmp/product/cblas.hpp>
#else
#include <lrmoe/openmp/product/kokkos_kernels.hpp>
#endif

#include <cmath>
#include <cstdint>
#include <vector>

namespace bench::compare {

/// Elements from which on a loop is worth waking other threads.
inline constexpr std::int64_t shared_work = 1 << 16;

/// Row-major double matrix of the reference; keeps its storage when it shrinks.
class dense_matrix {
 public:
  void resize(std::int64_t rows, std::int64_t columns) {
    rows_ = rows;
    columns_ = columns;
    data_.resize(static_cast<std::size_t>(rows * columns));
  }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  double* row(std::int64_t r) { return data_.data() + r * columns_; }
  const double* row(std::int64_t r) const { return data_.data() + r * columns_; }
  double& operator()(std::int64_t r, std::int64_t c) { return row(r)[c]; }
  double operator()(std::int64_t r, std::int64_t c) const { return row(r)[c]; }

  /// element(r, c) everywhere.
  template <class Element>
  void fill(std::int64_t rows, std::int64_t columns, const Element& element) {
    resize(rows, columns);
#pragma omp parallel for if (rows * columns > shared_work)
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c) row(r)[c] = element(r, c);
  }

 private:
  std::int64_t rows_ = 0, columns_ = 0;
  std::vector<double> data_;
};

inline dense_matrix magnitudes(const dense_matrix& of) {
  dense_matrix result;
  result.fill(of.rows(), of.columns(),
              [&](std::int64_t r, std::int64_t c) { return std::abs(of(r, c)); });
  return result;
}

inline dense_matrix squares(const dense_matrix& of) {
  dense_matrix result;
  result.fill(of.rows(), of.columns(),
              [&](std::int64_t r, std::int64_t c) { return of(r, c) * of(r, c); });
  return result;
}

enum class turned { none, left, right };

#if LRMOE_OPENMP_HAS_CBLAS
using host_product = lrmoe::openmp::cblas_product;
#else
using host_product = lrmoe::openmp::kokkos_kernels_product;
#endif

/// c = a b, a^T b or a b^T, in double.
inline void multiply(turned which, const dense_matrix& a, const dense_matrix& b, dense_matrix& c) {
  const bool left = which == turned::left, right = which == turned::right;
  const std::int64_t m = left ? a.columns() : a.rows(), k = left ? a.rows() : a.columns(),
                     n = right ? b.rows() : b.columns();
  c.resize(m, n);
  if (m == 0 || n == 0) return;
  if (k == 0) {
    c.fill(m, n, [](std::int64_t, std::int64_t) { return 0.0; });
    return;
  }
  host_product::multiply(left, right, m, n, k, a.row(0), a.columns(), b.row(0), b.columns(), 0.0,
                         c.row(0), n);
}

}  // namespace bench::compare
