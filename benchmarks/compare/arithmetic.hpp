// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <lrmoe/types.hpp>

namespace bench::compare {

/// What one result may be off by, and why:
///   storage       its own rounding to the element type
///   accumulation  the sum that it is, in any order
///   propagated    what its operands may be off by
struct allowance {
  double storage = 0, accumulation = 0, propagated = 0;
  double total() const { return storage + accumulation + propagated; }
};

/// An exact value and a bound on the deviation of what a correct implementation computes for it.
struct number {
  double value = 0, error = 0;
};

/// Rounding of the formats, and first-order bounds of the operations (Higham, Accuracy and Stability of
/// Numerical Algorithms, chapter 3). Nothing here is fitted to results.
///   u   unit roundoff of accumulate_t: products, sums, router
///   s   unit roundoff of the element type
///   v   error of one addition inside a matrix product, 2u: tensor cores cut sums off instead of rounding
///       them (Fasi, Higham, Mikaitis and Pranesh 2021)
struct arithmetic {
  double u = 0, s = 0, v = 0;
  /// What results are likely to be off by instead of what they may be: errors are taken for independent
  /// and centred, add up in quadrature, and n roundings count as sqrt(n) (Higham and Mary 2019).
  bool likely = false;

  /// Relative error of e^x in units of u. CUDA's expf and exp are documented to 2 ulp = 4u at most; the
  /// host's own float version has 2e-7 = 3.4u, the C library's less than 2u.
  static constexpr double exponential = 4.0;
  /// Results below the smallest normal number lose their relative accuracy.
  double tiny = 0;

  /// Standard deviations by which one of 1e10 elements is exceeded with probability 1e-9.
  static double confidence() { return std::sqrt(2.0 * std::log(2e19)); }

  template <class Element>
  static arithmetic of() {
    const double single = std::ldexp(1.0, -24), twice = std::ldexp(1.0, -53);
    if (std::is_same_v<Element, double>)
      return {.u = twice, .s = twice, .v = 2 * twice, .tiny = 1e-290};
    return {.u = single,
            .s = std::is_same_v<Element, float> ? single : std::ldexp(1.0, -8),
            .v = 2 * single,
            .tiny = 1e-36};
  }

  /// Bound of n roundings in a row by eps each.
  double gamma(double n, double eps) const {
    return likely ? std::sqrt(n) * eps : n * eps / (1.0 - n * eps);
  }
  /// Two errors together.
  double join(double a, double b) const { return likely ? std::sqrt(a * a + b * b) : a + b; }
  /// Of a sum of n products in a matrix product: n roundings of products and n - 1 additions at most
  /// in any one path, and one more for the scale 1 or the value added to.
  double product_gamma(double n) const { return gamma(n + 1.0, v); }
  double sum_gamma(double n) const { return gamma(n, u); }

  double storage(double value, double error) const { return s * (std::abs(value) + error) + tiny; }
  number store(number a) const { return {a.value, join(a.error, storage(a.value, a.error))}; }
  number multiply(number a, number b) const {
    const double value = a.value * b.value;
    const double carried =
        join(std::abs(a.value) * b.error, std::abs(b.value) * a.error) + a.error * b.error;
    return {value, join(carried, u * (std::abs(value) + carried) + tiny)};
  }
  number add(number a, number b) const {
    const double carried = join(a.error, b.error);
    const double value = a.value + b.value;
    return {value, join(carried, u * (std::abs(value) + carried))};
  }
  /// a / b, b's interval away from zero.
  number divide(number a, number b) const {
    const double least = std::abs(b.value) - b.error;
    if (!(least > 0)) return {a.value / b.value, std::numeric_limits<double>::infinity()};
    const double value = a.value / b.value;
    const double carried = join(a.error, std::abs(value) * b.error) / least;
    return {value, join(carried, u * (std::abs(value) + carried) + tiny)};
  }

  /// 1 / (1 + e^-x)
  static double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
  number sigmoid(number x) const {
    const double value = sigmoid(x.value);
    // One exponential, whose error counts by its share in 1 + e^-x; one addition; one division.
    const double own = value * ((1.0 - value) * exponential * u + 2.0 * u);
    return {value, join(value * (1.0 - value) * x.error, own) + 0.05 * x.error * x.error + tiny};
  }
  /// x sigmoid(x); its second derivative is at most 1/2.
  number silu(number x) const {
    const number sig = sigmoid(number{x.value, 0.0});
    const number own = multiply(number{x.value, 0.0}, sig);
    const double slope = sig.value * (1.0 + x.value * (1.0 - sig.value));
    return {own.value, join(std::abs(slope) * x.error, own.error) + 0.25 * x.error * x.error};
  }
  /// s (1 + x (1 - s)), s = sigmoid(x), as it is computed; its own derivative bounds x's share.
  number silu_derivative(number x) const {
    const number sig = sigmoid(number{x.value, 0.0});
    const double rest_value = sigmoid(-x.value);  // without cancellation
    const number rest{rest_value, sig.error + u * rest_value};
    const number inner = add(number{1.0, 0.0}, multiply(number{x.value, 0.0}, rest));
    const number own = multiply(sig, inner);
    const double curvature = sig.value * rest_value * (2.0 + x.value * (1.0 - 2.0 * sig.value));
    return {own.value, join(std::abs(curvature) * x.error, own.error) + 0.25 * x.error * x.error};
  }
};

}  // namespace bench::compare
