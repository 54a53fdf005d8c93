// Gradients of single-precision kernels against central finite differences, with a tolerance that
// follows from the arithmetic: rounding of the losses over the step, and the part of the truncation
// error that two steps reveal.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "../support/random.hpp"
#include "catch.hpp"
#include "host.hpp"

namespace train_test {

/// A loss and the size of its rounding error in units of the roundoff.
struct loss_value {
  double sum = 0.0;
  double magnitude = 0.0;
};

/// <y, direction>: the loss whose gradient by y is `direction`. The rounding errors of the elements
/// of y are independent, so they add up like the root of the sum of squares.
template <class View>
loss_value inner_product(const View& y, const View& direction) {
  double sum = 0.0, squares = 0.0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double term = double(y.data()[i]) * double(direction.data()[i]);
    sum += term;
    squares += term * term;
  }
  return {sum, std::sqrt(squares)};
}

template <class View>
void fill_normal(const View& view, double deviation, fixture::random& random) {
  const auto values =
      random.normal(static_cast<oracle::integer>(view.size()), deviation, oracle::format::binary32);
  for (std::size_t i = 0; i < view.size(); ++i) view.data()[i] = static_cast<float>(values[i]);
}

/// Number of elements of `gradient` that disagree with the finite differences of `loss` by the
/// elements of `values`. At most `samples` elements are tried, evenly spread.
inline int wrong_elements(float* values, const float* gradient, std::size_t size,
                          const std::function<loss_value()>& loss, std::size_t samples = 64) {
  constexpr double h = 0x1p-5;
  constexpr double unit_roundoff = 0x1p-24;
  // An element of y is a sum of up to some hundred terms with cancellation.
  constexpr double rounding_multiple = 16.0;
  int wrong = 0;
  const std::size_t stride = std::max<std::size_t>(1, size / samples);
  for (std::size_t i = 0; i < size; i += stride) {
    const float before = values[i];
    double magnitude = 0.0;
    const auto difference = [&](double step) {
      const float up = static_cast<float>(before + step);
      const float down = static_cast<float>(before - step);
      values[i] = up;
      const loss_value above = loss();
      values[i] = down;
      const loss_value below = loss();
      values[i] = before;
      magnitude = std::max({magnitude, above.magnitude, below.magnitude});
      return (above.sum - below.sum) / (double(up) - double(down));
    };
    const double coarse = difference(h);
    const double fine = difference(h / 2);
    const double extrapolated = (4.0 * fine - coarse) / 3.0;
    const double tolerance = 0.25 * std::abs(fine - coarse) +
                             rounding_multiple * unit_roundoff * magnitude / h +
                             64.0 * unit_roundoff * std::abs(extrapolated);
    if (!(std::abs(double(gradient[i]) - extrapolated) <= tolerance)) {
      UNSCOPED_INFO("element " << i << ": gradient " << gradient[i] << ", finite difference "
                               << extrapolated << ", tolerance " << tolerance);
      ++wrong;
    }
  }
  return wrong;
}

/// Checks a gradient, and that the same check refuses it when it is off by a tenth, or shifted by its
/// largest element.
template <class View>
void check_gradient(const std::string& name, const View& values, const View& gradient,
                    const std::function<loss_value()>& loss) {
  INFO("gradient by " << name);
  CHECK(wrong_elements(values.data(), gradient.data(), values.size(), loss) == 0);

  std::vector<float> mutated(gradient.data(), gradient.data() + gradient.size());
  for (float& g : mutated) g *= 1.1f;
  CHECK(wrong_elements(values.data(), mutated.data(), mutated.size(), loss) > 0);
  // A single element's own size can be below the tolerance; the largest one's is not, as just shown.
  float shift = 0.0f;
  for (std::size_t i = 0; i < mutated.size(); ++i)
    shift = std::max(shift, std::abs(gradient.data()[i]));
  for (std::size_t i = 0; i < mutated.size(); ++i) mutated[i] = gradient.data()[i] + shift;
  CHECK(wrong_elements(values.data(), mutated.data(), mutated.size(), loss) > 0);
}

inline train::parameter& named(train::parameter_list& parameters, const char* name) {
  for (train::parameter& p : parameters)
    if (p.name == name) return p;
  FAIL("no parameter " << name);
  return *parameters.begin();
}

}  // namespace train_test
