// Fresh random inputs, reproducible: every test prints its seed on failure, and the environment
// variable LRMOE_TEST_SEED repeats it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include "oracle.hpp"

namespace fixture {

inline std::uint64_t fresh_seed() {
  if (const char* text = std::getenv("LRMOE_TEST_SEED")) return std::strtoull(text, nullptr, 10);
  std::random_device entropy;
  return (static_cast<std::uint64_t>(entropy()) << 32) | entropy();
}

class random {
 public:
  explicit random(std::uint64_t seed) : engine_(seed) {}

  double uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(engine_);
  }
  oracle::integer integer(oracle::integer low, oracle::integer high) {
    return std::uniform_int_distribution<oracle::integer>(low, high)(engine_);
  }
  std::uint64_t bits() { return engine_(); }

  /// Normal values that the format holds exactly.
  std::vector<double> normal(oracle::integer count, double deviation, oracle::format f) {
    std::normal_distribution<double> distribution(0.0, deviation);
    std::vector<double> result(static_cast<std::size_t>(count));
    for (double& value : result) value = oracle::round_to(f, distribution(engine_));
    return result;
  }

  /// K distinct experts for each of T tokens; experts >= E_used stay empty.
  std::vector<std::int32_t> routes(oracle::integer T, oracle::integer K, oracle::integer E_used) {
    std::vector<std::int32_t> result;
    std::vector<std::int32_t> all(static_cast<std::size_t>(E_used));
    std::iota(all.begin(), all.end(), 0);
    for (oracle::integer t = 0; t < T; ++t) {
      std::shuffle(all.begin(), all.end(), engine_);
      result.insert(result.end(), all.begin(), all.begin() + K);
    }
    return result;
  }

 private:
  std::mt19937_64 engine_;
};

/// A layer with random inputs of unit scale and routing weights in (0.05, 1).
inline oracle::layer random_layer(random& draw, const oracle::extents& shape, oracle::format f) {
  const auto [T, D, F, E, K, F_shared] = shape;
  oracle::layer in;
  in.rules.storage = f;
  in.shape = shape;
  in.x = draw.normal(T * D, 1.0, f);
  // A width of zero draws nothing, but its deviation must be positive.
  const auto scale = [](oracle::integer width) {
    return 1.0 / std::sqrt(static_cast<double>(std::max<oracle::integer>(width, 1)));
  };
  in.gate_up = draw.normal(E * D * 2 * F, scale(D), f);
  in.down = draw.normal(E * F * D, scale(F), f);
  in.shared_gate_up = draw.normal(D * 2 * F_shared, scale(D), f);
  in.shared_down = draw.normal(F_shared * D, scale(F_shared), f);
  in.experts = draw.routes(T, K, E);
  for (oracle::integer p = 0; p < T * K; ++p)
    in.weights.push_back({oracle::round_to(in.rules.accumulation(), draw.uniform(0.05, 1.0)), 0.0});
  return in;
}

}  // namespace fixture
