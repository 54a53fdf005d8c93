// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <type_traits>
#include <vector>

#include <lrmoe/types.hpp>

#include "../support/skew.hpp"
#include "case_matrix.hpp"

namespace bench::compare {

using lrmoe::index_type;

template <class T>
double value_of(T value) {
  if constexpr (std::is_same_v<T, lrmoe::bfloat16>)
    return static_cast<double>(static_cast<float>(value));
  else
    return static_cast<double>(value);
}
template <class T>
T element_of(double value) {
  if constexpr (std::is_same_v<T, lrmoe::bfloat16>)
    return lrmoe::bfloat16(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

/// A bell-shaped value of standard deviation 1, at most 3.5: a pure function of seed, tensor and position.
inline double normal_value(std::uint64_t seed, std::uint64_t tensor, std::int64_t position) {
  // SplitMix64's output function, twice; the bits are cut into four 16-bit numbers.
  const auto mixed = [](std::uint64_t bits) {
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebULL;
    return bits ^ (bits >> 31);
  };
  const std::uint64_t bits = mixed(mixed(seed * 0x9e3779b97f4a7c15ULL + tensor) +
                                   static_cast<std::uint64_t>(position) * 0x9e3779b97f4a7c15ULL);
  double sum = 0;
  for (int part = 0; part < 4; ++part)
    sum += static_cast<double>((bits >> (16 * part)) & 0xffff) +
           static_cast<double>(bits & 0xfff) * 0x1p-14;
  return (sum / 65535.0 - 2.0) * std::sqrt(3.0);
}

enum class tensor_id : std::uint64_t {
  x = 1,
  d_out,
  gate_up,
  down,
  shared_gate_up,
  shared_down,
  logits,
  weights,
  before_gate_up,
  before_down,
  before_shared_gate_up,
  before_shared_down
};

/// What a layer call is given, on the host, already rounded to the formats in which it is stored.
template <class Element>
struct layer_inputs {
  using real = lrmoe::accumulate_t<Element>;

  compare_case of;
  std::uint64_t seed = 0;
  std::vector<Element> x, d_out;                     // (T, D)
  std::vector<Element> gate_up, down;                // (E, D, 2F), (E, F, D)
  std::vector<Element> shared_gate_up, shared_down;  // (D, 2 F_shared), (F_shared, D), or empty
  std::vector<real> logits;                          // (T, E), or empty for given routing
  std::vector<real> selection_bias;                  // (E), or empty; for sigmoid scores
  std::vector<index_type> experts;                   // (T, K), for given routing
  std::vector<real> weights;                         // (T, K), for given routing

  /// What main gradients hold before they are added to, by position; zero where ranks share experts, so
  /// that copies of an expert count it once.
  real before(tensor_id gradient, std::int64_t position) const {
    if (of.R > 1) return real(0);
    return static_cast<real>(normal_value(seed, static_cast<std::uint64_t>(gradient), position));
  }
};

template <class T>
std::vector<T> random_tensor(std::uint64_t seed, tensor_id id, std::int64_t size,
                             double deviation) {
  std::vector<T> values(static_cast<std::size_t>(size));
#pragma omp parallel for if (size > 65536)
  for (std::int64_t i = 0; i < size; ++i)
    values[static_cast<std::size_t>(i)] =
        element_of<T>(deviation * normal_value(seed, static_cast<std::uint64_t>(id), i));
  return values;
}

/// Experts (T, K) with the counts of a skew: `empty` leaves the middle expert without a token, `hot` sends
/// all tokens to the same K.
inline std::vector<index_type> skewed_experts(const compare_case& of, std::uint64_t seed) {
  const auto& [D, F, E, K, F_shared] = of.shape;
  if (of.T == 0) return {};
  const bool hole = of.skew == "empty" && E > K;
  const std::string kind = of.skew == "hot" ? "one_hot" : of.skew == "empty" ? "balanced" : of.skew;
  const auto counts = bench::skew{kind}.counts(of.T, hole ? E - 1 : E, K);
  const auto dealt = bench::assign_experts(counts, of.T, K);
  std::vector<std::int64_t> token(static_cast<std::size_t>(of.T));
  std::iota(token.begin(), token.end(), 0);
  std::shuffle(token.begin(), token.end(), std::mt19937_64(seed));
  std::vector<index_type> experts(dealt.size());
  for (std::int64_t p = 0; p < of.P(); ++p) {
    index_type e =
        dealt[static_cast<std::size_t>(token[static_cast<std::size_t>(p / K)] * K + p % K)];
    if (hole && e >= E / 2) ++e;
    experts[static_cast<std::size_t>(p)] = e;
  }
  return experts;
}

/// Inputs of a case, random but for the routing's counts.
template <class Element>
layer_inputs<Element> random_inputs(const compare_case& of, std::uint64_t seed) {
  using real = lrmoe::accumulate_t<Element>;
  const auto& [D, F, E, K, F_shared] = of.shape;
  const auto scale = [](std::int64_t width) {
    return 1.0 / std::sqrt(static_cast<double>(std::max<std::int64_t>(width, 1)));
  };
  layer_inputs<Element> in;
  in.of = of;
  in.seed = seed;
  in.x = random_tensor<Element>(seed, tensor_id::x, of.T * D, 1.0);
  in.d_out = random_tensor<Element>(seed, tensor_id::d_out, of.T * D, 1.0);
  in.gate_up = random_tensor<Element>(seed, tensor_id::gate_up, E * D * 2 * F, scale(D));
  in.down = random_tensor<Element>(seed, tensor_id::down, E * F * D, scale(F));
  in.shared_gate_up =
      random_tensor<Element>(seed, tensor_id::shared_gate_up, D * 2 * F_shared, scale(D));
  in.shared_down =
      random_tensor<Element>(seed, tensor_id::shared_down, F_shared * D, scale(F_shared));
  const auto experts = skewed_experts(of, seed);
  if (of.router == router_kind::given) {
    in.experts = experts;
    in.weights = random_tensor<real>(seed, tensor_id::weights, of.P(), 0.5);
  } else {
    // Chosen logits are 6 above the others, which spread over 3.5 at most, so the counts are the skew's.
    in.logits = random_tensor<real>(seed, tensor_id::logits, of.T * E, 0.5);
    for (std::int64_t p = 0; p < of.P(); ++p)
      in.logits[static_cast<std::size_t>(p / K * E + experts[static_cast<std::size_t>(p)])] +=
          real(6);
    // Sigmoid scores of large logits are all alike.
    if (of.router == router_kind::sigmoid)
      for (real& logit : in.logits) logit -= real(4);
  }
  return in;
}

}  // namespace bench::compare
