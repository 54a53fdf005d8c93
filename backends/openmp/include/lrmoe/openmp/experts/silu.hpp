// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace lrmoe::openmp {

/// e^x without branches or library calls, so that loops over it vectorise. The argument is limited to
/// [-87, 87], where the result stays normal. Relative error below 2e-7.
/// NaN gives a finite value: callers multiply by the argument, which keeps the NaN.
inline float exponential(float x) {
  constexpr float log2_e = 1.44269504F;
  constexpr float ln2_high = 0.693359375F;  // few bits, so that n * ln2_high is exact
  constexpr float ln2_low = -2.12194440e-4F;
  constexpr float shifter = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer

  // The limit compares integers: compilers do not vectorise float comparisons that may trap.
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  constexpr std::uint32_t limit = std::bit_cast<std::uint32_t>(87.0F);
  x = std::bit_cast<float>((magnitude < limit ? magnitude : limit) | (bits & 0x80000000U));
  const float shifted = x * log2_e + shifter;
  const float n = shifted - shifter;
  const float r = (x - n * ln2_high) - n * ln2_low;
  // Taylor to r^7: |r| <= ln(2)/2 leaves 5e-9.
  float sum = 1.0F / 5040.0F;
  sum = sum * r + 1.0F / 720.0F;
  sum = sum * r + 1.0F / 120.0F;
  sum = sum * r + 1.0F / 24.0F;
  sum = sum * r + 1.0F / 6.0F;
  sum = sum * r + 0.5F;
  sum = sum * r + 1.0F;
  sum = sum * r + 1.0F;
  const std::uint32_t exponent =
      std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(shifter) + 127U;
  return sum * std::bit_cast<float>(exponent << 23);
}

inline double exponential(double x) {
  return std::exp(x);
}

template <class Real>
inline Real sigmoid(Real x) {
  return Real(1) / (Real(1) + exponential(-x));
}

}  // namespace lrmoe::openmp
