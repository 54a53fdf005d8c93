// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include <lrmoe/estimator/certificate.hpp>

namespace train {

/// Gradient-noise scale of dW_down, from what every step knows anyway.
/// With contributions z_p of the pairs taken as independent, the computed gradient G has
///   E ||G||^2 = ||g||^2 + sum ||z_p||^2 + V,
/// so ||g||^2 is about ||G||^2 - S - V, and a batch of so many tokens has noise equal to the gradient:
///   B_noise = tokens a step * S / ||g||^2
/// (McCandlish et al. 2018). Tokens of one sequence are alike, which makes the true scale larger: read it
/// as a lower bound. Moving averages, as ||g||^2 of one step is mostly noise.
class noise_scale {
 public:
  void add(const lrmoe::certificate& certified, double gradient_squared_norm) {
    if (certified.score_total <= 0.0) return;
    const double weight = steps_ == 0 ? 1.0 : 0.02;
    scores_ += weight * (certified.score_total - scores_);
    signal_ += weight *
               (gradient_squared_norm - certified.score_total - certified.added_variance - signal_);
    variance_ += weight * (certified.added_variance - variance_);
    ++steps_;
  }

  /// NaN while the gradient cannot be told from noise.
  double tokens(std::int64_t tokens_per_step) const {
    if (!(signal_ > 0.0)) return std::numeric_limits<double>::quiet_NaN();
    return static_cast<double>(tokens_per_step) * scores_ / signal_;
  }
  /// Root of V / ||g||^2: error that selection adds to dW_down, relative to it. NaN likewise.
  double relative_error() const {
    return signal_ > 0.0 ? std::sqrt(variance_ / signal_)
                         : std::numeric_limits<double>::quiet_NaN();
  }

  nlohmann::ordered_json state() const {
    return {{"steps", steps_}, {"scores", scores_}, {"signal", signal_}, {"variance", variance_}};
  }
  void restore(const nlohmann::ordered_json& state) {
    steps_ = state.at("steps");
    scores_ = state.at("scores");
    signal_ = state.at("signal");
    variance_ = state.at("variance");
  }

 private:
  std::int64_t steps_ = 0;
  double scores_ = 0.0;    // S
  double signal_ = 0.0;    // ||G||^2 - S - V
  double variance_ = 0.0;  // V
};

}  // namespace train
