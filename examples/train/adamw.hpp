// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <vector>

#include "parameters.hpp"

namespace train {

struct adamw_settings {
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
};

/// Euclidean norm of all gradients that are not frozen.
inline double gradient_norm(const parameter_list& parameters) {
  double total = 0.0;
  for (const parameter& p : parameters)
    if (!p.frozen) total += squared_norm(p.gradient);
  return std::sqrt(total);
}

/// One step (1, 2, ...) of Adam with decoupled weight decay on gradients times gradient_scale.
///   m = β1 m + (1-β1) g;  v = β2 v + (1-β2) g²;
///   w -= rate (m / (1-β1^step) / (√(v / (1-β2^step)) + ε) + decay w)
inline void adamw_step(const parameter_list& parameters, const adamw_settings& settings,
                       std::int64_t step, double rate, double gradient_scale) {
  const auto b1 = static_cast<float>(settings.beta1);
  const auto b2 = static_cast<float>(settings.beta2);
  const double steps = static_cast<double>(step);
  const auto correct1 = static_cast<float>(1.0 / (1.0 - std::pow(settings.beta1, steps)));
  const auto correct2 = static_cast<float>(1.0 / (1.0 - std::pow(settings.beta2, steps)));
  const auto epsilon = static_cast<float>(settings.epsilon);
  const auto scale = static_cast<float>(gradient_scale);
  const auto step_size = static_cast<float>(rate);
  for (const parameter& p : parameters) {
    if (p.frozen) continue;
    const float decay = static_cast<float>(p.decayed ? rate * settings.weight_decay : 0.0);
    float* const w = p.value.data();
    float* const m = p.first_moment.data();
    float* const v = p.second_moment.data();
    const float* const g = p.gradient.data();
    for_chunks("train::adamw::step", p.size(), 8192,
               [=](std::int64_t, std::int64_t begin, std::int64_t end) {
#pragma omp simd
                 for (std::int64_t i = begin; i < end; ++i) {
                   const float gradient = g[i] * scale;
                   m[i] = b1 * m[i] + (1.0f - b1) * gradient;
                   v[i] = b2 * v[i] + (1.0f - b2) * gradient * gradient;
                   w[i] -= step_size * m[i] * correct1 / (std::sqrt(v[i] * correct2) + epsilon) +
                           decay * w[i];
                 }
               });
  }
}

}  // namespace train
