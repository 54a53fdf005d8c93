// How far two correct implementations of one MoE block may deviate from the exact result: the library,
// and Hugging Face's modules under autograd. Both bounds come from the arithmetic, see oracle.hpp; they
// differ where autograd takes other steps:
//   dw         <dO, y> instead of <dO W_down^T, h>
//   d_logits   through the division and the softmax one after the other, so that in a renormalised softmax
//              the terms that cancel leave their rounding, in the gradients of experts not chosen too
#pragma once

#include <cmath>

#include "oracle.hpp"
#include "stored_case.hpp"

namespace huggingface_test {

using oracle::number;

/// Exact values of everything, each with the error that the order of operations explains.
struct bounds {
  oracle::tensor logits, weights, out, dx, d_router;
  oracle::tensor d_gate_up, d_down, d_shared_gate_up, d_shared_down;
  std::vector<std::int32_t> experts;  // (T, K), in the order of weights
};

enum class steps { of_the_library, of_autograd };

inline number negative(number a) {
  return {-a.value, a.error};
}

inline number divide(const oracle::arithmetic& rules, number a, number b) {
  const double value = a.value / b.value;
  const double carried = (a.error + std::abs(value) * b.error) / (std::abs(b.value) - b.error);
  return {value, carried + rules.u() * (std::abs(value) + carried) + rules.underflow()};
}

/// Gradient of the logits as autograd computes it.
inline oracle::tensor autograd_d_logits(const oracle::arithmetic& rules, const settings& chosen,
                                        const oracle::routing& routed,
                                        const oracle::tensor& d_weights) {
  const integer T = d_weights.rows, K = d_weights.columns, E = routed.probabilities.columns;
  oracle::tensor d_logits(T, E);
  for (integer t = 0; t < T; ++t) {
    const auto expert = [&](integer k) {
      return routed.experts[static_cast<std::size_t>(t * K + k)];
    };
    std::vector<number> d_weight;
    for (integer k = 0; k < K; ++k)
      d_weight.push_back(chosen.sigmoid
                             ? rules.multiply(d_weights(t, k), {chosen.options.scaling, 0.0})
                             : d_weights(t, k));
    if (chosen.renormalise) {
      number sum{chosen.sigmoid ? oracle::sigmoid_guard : 0.0, 0.0};
      for (integer k = 0; k < K; ++k) sum = rules.add(sum, routed.probabilities(t, expert(k)));
      oracle::sum_of_products d_sum(rules);
      for (integer k = 0; k < K; ++k) {
        const number share = divide(rules, routed.probabilities(t, expert(k)), sum);
        d_sum.add(negative(d_weight[static_cast<std::size_t>(k)]), divide(rules, share, sum));
      }
      for (number& d : d_weight) d = rules.add(divide(rules, d, sum), d_sum.result());
    }
    if (chosen.sigmoid) {
      for (integer k = 0; k < K; ++k) {
        const number s = routed.probabilities(t, expert(k));
        const number slope = rules.multiply({1.0 - s.value, s.error + rules.u()}, s);
        d_logits(t, expert(k)) = rules.multiply(d_weight[static_cast<std::size_t>(k)], slope);
      }
      continue;
    }
    std::vector<number> d_probability(static_cast<std::size_t>(E));
    for (integer k = 0; k < K; ++k)
      d_probability[static_cast<std::size_t>(expert(k))] = d_weight[static_cast<std::size_t>(k)];
    oracle::sum_of_products mean(rules);
    for (integer e = 0; e < E; ++e)
      mean.add(routed.probabilities(t, e), d_probability[static_cast<std::size_t>(e)]);
    for (integer e = 0; e < E; ++e)
      d_logits(t, e) = rules.multiply(
          routed.probabilities(t, e),
          rules.add(d_probability[static_cast<std::size_t>(e)], negative(mean.result())));
  }
  return d_logits;
}

inline bounds bounds_of(const stored_case& in, oracle::format format, steps order) {
  const auto [T, D, F, E, K, F_shared] = in.shape;
  const auto block = in.block<double>();
  const auto router = host_values(block.router);
  oracle::layer layer;
  layer.rules.storage = format;
  const oracle::arithmetic& rules = layer.rules;
  layer.shape = in.shape;
  layer.x = in.x;
  layer.gate_up = host_values(block.gate_up);
  layer.down = host_values(block.down);
  layer.shared_gate_up = host_values(block.shared_gate_up);
  layer.shared_down = host_values(block.shared_down);
  const auto at = [](const std::vector<double>& values, integer i) {
    return values[static_cast<std::size_t>(i)];
  };

  bounds result;
  result.logits = oracle::tensor(T, E);
  for (integer t = 0; t < T; ++t)
    for (integer e = 0; e < E; ++e) {
      oracle::sum_of_products sum(rules);
      for (integer d = 0; d < D; ++d) sum.add(at(in.x, t * D + d), at(router, e * D + d));
      result.logits(t, e) = sum.result();
    }
  const auto logits = result.logits.values();
  oracle::routing routed =
      in.chosen.sigmoid ? oracle::sigmoid_top_k(rules, logits, host_values(block.selection_bias), T,
                                                E, K, in.chosen.options)
                        : oracle::softmax_top_k(rules, logits, T, E, K, in.chosen.renormalise);
  // Logits that are off by at most a change a sigmoid by at most the factor e^a, and a quotient of
  // exponentials or sigmoids by at most e^2a.
  for (integer t = 0; t < T; ++t) {
    double largest = 0.0;
    for (integer e = 0; e < E; ++e) largest = std::max(largest, result.logits(t, e).error);
    const double factor = std::expm1(2.0 * largest);
    const auto widen = [&](number& w) { w.error += factor * (std::abs(w.value) + w.error); };
    for (integer e = 0; e < E; ++e) widen(routed.probabilities(t, e));
    for (integer k = 0; k < K; ++k) widen(routed.weights[static_cast<std::size_t>(t * K + k)]);
  }
  layer.experts = routed.experts;
  layer.weights = routed.weights;
  result.experts = routed.experts;
  result.weights = oracle::tensor(T, K);
  result.weights.data = routed.weights;

  const auto forward = oracle::forward(layer);
  const std::vector<double> all(static_cast<std::size_t>(T * K), 1.0);
  auto gradients = oracle::backward(layer, forward, in.d_out, all);
  oracle::tensor d_logits;
  if (order == steps::of_autograd) {
    for (integer t = 0; t < T; ++t)
      for (integer k = 0; k < K; ++k) {
        oracle::sum_of_products sum(rules);
        for (integer d = 0; d < D; ++d)
          sum.add({at(in.d_out, t * D + d), 0.0}, forward.pairs.y(t * K + k, d));
        gradients.d_weights(t, k) = sum.result();
      }
    d_logits = autograd_d_logits(rules, in.chosen, routed, gradients.d_weights);
  } else {
    d_logits = in.chosen.sigmoid ? oracle::sigmoid_top_k_backward(
                                       rules, routed, gradients.d_weights, in.chosen.options)
                                 : oracle::softmax_top_k_backward(
                                       rules, routed, gradients.d_weights, in.chosen.renormalise);
  }
  result.out = forward.out;
  result.d_gate_up = gradients.gate_up;
  result.d_down = gradients.down;
  result.d_shared_gate_up = gradients.shared_gate_up;
  result.d_shared_down = gradients.shared_down;
  result.d_router = oracle::tensor(E, D);
  for (integer e = 0; e < E; ++e)
    for (integer d = 0; d < D; ++d) {
      oracle::sum_of_products sum(rules);
      for (integer t = 0; t < T; ++t) sum.add(d_logits(t, e), {at(in.x, t * D + d), 0.0});
      result.d_router(e, d) = sum.result();
    }
  result.dx = gradients.dx;
  for (integer t = 0; t < T; ++t)
    for (integer d = 0; d < D; ++d) {
      oracle::sum_of_products share(rules);
      double magnitude = 0.0;
      for (integer e = 0; e < E; ++e) {
        const double w = at(router, e * D + d);
        share.add(d_logits(t, e), {w, 0.0});
        magnitude += std::abs(d_logits(t, e).value * w);
      }
      // The router's share joins a sum of K pairs and the shared expert, at any place in it.
      number total = rules.add(result.dx(t, d), share.result());
      total.error += rules.gamma(K + 2) * magnitude;
      result.dx(t, d) = rules.store(total);
    }
  return result;
}

}  // namespace huggingface_test
