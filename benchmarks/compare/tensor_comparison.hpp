// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "arithmetic.hpp"

namespace bench::compare {

/// One element of a result beside what it should be.
struct element_check {
  double got = 0, exact = 0;
  allowance allowed;
};

/// A tensor of a candidate against the reference, element by element: |got - exact| <= allowed. NaN and
/// infinity never pass. Rows may come in any order and in parts.
class tensor_comparison {
 public:
  struct place {
    std::int64_t row = -1, column = -1;
    double got = 0, exact = 0, error = 0, ratio = -1;
    allowance allowed;
  };

  tensor_comparison() = default;
  explicit tensor_comparison(std::string name) : name_(std::move(name)) {}

  /// Shifts one element by `times` its allowance before it is judged: the comparison must notice.
  void inject(double times) { inject_ = times; }
  /// Times every allowance.
  void scale(double factor) { scale_ = factor; }

  /// Rows first .. first + count of `columns` elements; element(row, column) with rows from 0.
  template <class Element>
  void add_rows(std::int64_t first, std::int64_t count, std::int64_t columns,
                const Element& element) {
    if (count == 0 || columns == 0) return;
    // An element that may be off at all, so that a multiple of its allowance is a fault.
    std::int64_t faulty = -1;
    for (std::int64_t i = 0; inject_ > 0 && faulty < 0 && i < count * columns; ++i) {
      const std::int64_t at = (count * columns / 2 + i) % (count * columns);
      if (element(at / columns, at % columns).allowed.total() > 0) faulty = at;
    }
    std::vector<place> worst(static_cast<std::size_t>(count));
    std::vector<double> row_ratio(static_cast<std::size_t>(count)), row_error(row_ratio);
    std::vector<std::int64_t> wrong(static_cast<std::size_t>(count), 0);
#pragma omp parallel for schedule(static) if (count * columns > 65536)
    for (std::int64_t r = 0; r < count; ++r) {
      place most;
      double errors = 0, alloweds = 0, largest = 0;
      for (std::int64_t c = 0; c < columns; ++c) {
        element_check one = element(r, c);
        const double total = scale_ * one.allowed.total();
        if (r * columns + c == faulty) one.got = one.exact + inject_ * total;
        double error = std::abs(one.got - one.exact);
        if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
        const double ratio = error <= 0 ? 0.0 : error / total;
        const bool passes = error <= total && std::isfinite(total) && std::isfinite(one.exact);
        if (!passes) ++wrong[static_cast<std::size_t>(r)];
        if (ratio > most.ratio)
          most = {first + r, c, one.got, one.exact, error, ratio, one.allowed};
        largest = std::max(largest, error);
        errors += error * error;
        alloweds += total * total;
      }
      worst[static_cast<std::size_t>(r)] = most;
      row_error[static_cast<std::size_t>(r)] = largest;
      row_ratio[static_cast<std::size_t>(r)] = errors > 0 ? std::sqrt(errors / alloweds) : 0.0;
    }
    if (faulty >= 0) inject_ = 0;
    for (std::size_t r = 0; r < worst.size(); ++r) {
      if (worst[r].ratio > worst_.ratio) worst_ = worst[r];
      largest_error_ = std::max(largest_error_, row_error[r]);
      if (row_ratio[r] > row_ratio_) {
        row_ratio_ = row_ratio[r];
        worst_row_ = first + static_cast<std::int64_t>(r);
      }
      if (wrong[r] > 0) ++wrong_rows_;
      wrong_ += wrong[r];
    }
    rows_ += count;
    elements_ += count * columns;
  }

  const std::string& name() const {
    return name_;
  }
  bool passed() const {
    return wrong_ == 0;
  }
  std::int64_t elements() const {
    return elements_;
  }
  std::int64_t rows() const {
    return rows_;
  }
  std::int64_t wrong_rows() const {
    return wrong_rows_;
  }
  std::int64_t wrong() const {
    return wrong_;
  }
  /// Where error over allowed error is largest.
  const place& worst() const {
    return worst_;
  }
  double largest_error() const {
    return largest_error_;
  }
  double ratio() const {
    return std::max(worst_.ratio, 0.0);
  }
  /// Largest error over what rounding is likely to explain; informs, and does not decide.
  double likely_ratio() const {
    return likely_ratio_;
  }
  void set_likely_ratio(double ratio) {
    likely_ratio_ = ratio;
  }
  /// Largest Euclidean norm of a row's errors over that of its allowances.
  double row_ratio() const {
    return row_ratio_;
  }
  std::int64_t worst_row() const {
    return worst_row_;
  }

 private:
  std::string name_;
  double inject_ = 0, scale_ = 1, likely_ratio_ = 0;
  place worst_;
  double largest_error_ = 0, row_ratio_ = 0;
  std::int64_t worst_row_ = -1, rows_ = 0, wrong_rows_ = 0, wrong_ = 0, elements_ = 0;
};

}  // namespace bench::compare
