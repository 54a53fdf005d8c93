// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace train {

/// Counter-based random bits: a pure function of its keys, so that any draw can be made anew, in
/// any order, on any thread, after a restart.
inline std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const auto mix = [](std::uint64_t z) {  // the finaliser of splitmix64
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  };
  constexpr std::uint64_t golden = 0x9e3779b97f4a7c15u;
  return mix(mix(mix(seed + golden) + golden * (stream + 1)) + golden * (index + 1));
}

/// Standard normal draw (Box-Muller).
inline float random_normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const std::uint64_t bits = random_bits(seed, stream, index);
  const double u = (static_cast<double>(bits >> 32) + 0.5) * 0x1p-32;
  const double v = static_cast<double>(bits & 0xffffffffu) * 0x1p-32;
  return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v));
}

/// Uniform integer in [0, bound), bound > 0; the bias is below bound / 2^64.
inline std::uint64_t random_below(std::uint64_t bound, std::uint64_t seed, std::uint64_t stream,
                                  std::uint64_t index) {
  return random_bits(seed, stream, index) % bound;
}

}  // namespace train
