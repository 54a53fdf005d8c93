// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>

#include <lrmoe/detail/views.hpp>
#include <lrmoe/types.hpp>

namespace lrmoe {

struct adamw_settings {
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;

  /// Throws argument_error naming the setting that is out of range.
  void validate() const {
    require(weight_decay >= 0.0, "adamw: weight_decay = ", weight_decay, " must not be negative");
    require(beta1 >= 0.0 && beta1 < 1.0, "adamw: beta1 = ", beta1, " must be in [0, 1)");
    require(beta2 >= 0.0 && beta2 < 1.0, "adamw: beta2 = ", beta2, " must be in [0, 1)");
    require(epsilon > 0.0, "adamw: epsilon = ", epsilon, " must be positive");
  }
};

/// What changes from step to step.
struct adamw_step {
  std::int64_t step = 1;        ///< 1, 2, ...
  double rate = 0.0;            ///< learning rate
  double gradient_scale = 1.0;  ///< gradients are multiplied by it: 1 / loss scale, clipping
};

/// Factor that brings gradients of this norm down to max_norm; 1 below it, and for max_norm 0 (no
/// clipping).
inline double clip_scale(double norm, double max_norm) {
  return max_norm > 0.0 && norm > max_norm ? max_norm / norm : 1.0;
}

/// One step of Adam with decoupled weight decay and bias correction, for each parameter:
///   g = gradient_scale gradient;  m = β1 m + (1-β1) g;  v = β2 v + (1-β2) g²
///   w -= rate (m / (1-β1^step)) / (√(v / (1-β2^step)) + ε) + rate decay w
/// Shapes    master w, first m, second v, gradient (n); weights (n), or empty for none
/// Numerics  in the master's type, coefficients computed in double and rounded to it; weights receive the
///           new master rounded to nearest even. Each parameter is computed by itself: the same bits
///           however the parameters are cut into calls.
/// Order     asynchronous on the space
/// Cost      reads 4 and writes 3 numbers a parameter
/// Source    Loshchilov and Hutter, Decoupled weight decay regularization (2019)
template <class ExecutionSpace, class Element, class Accumulate, class Device,
          class Unit = detail::translation_unit>
void adamw(const ExecutionSpace& space, const adamw_settings& settings, const adamw_step& now,
           const vector_view<Accumulate, Device>& master,
           const vector_view<Accumulate, Device>& first,
           const vector_view<Accumulate, Device>& second,
           const vector_view<const Accumulate, Device>& gradient,
           const vector_view<Element, Device>& weights) {
  const auto n = static_cast<std::int64_t>(master.extent(0));
  require(now.step >= 1, "adamw: step = ", now.step, " must be at least 1: the first step is 1");
  require(first.extent(0) == master.extent(0) && second.extent(0) == master.extent(0) &&
              gradient.extent(0) == master.extent(0) &&
              (weights.extent(0) == 0 || weights.extent(0) == master.extent(0)),
          "adamw: ", n, " master weights with ", first.extent(0), " and ", second.extent(0),
          " moments, ", gradient.extent(0), " gradients and ", weights.extent(0),
          " weights: pass as many of each");
  const auto steps = static_cast<double>(now.step);
  const auto b1 = static_cast<Accumulate>(settings.beta1);
  const auto b2 = static_cast<Accumulate>(settings.beta2);
  const auto rest1 = static_cast<Accumulate>(1.0 - settings.beta1);
  const auto rest2 = static_cast<Accumulate>(1.0 - settings.beta2);
  const auto correct1 = static_cast<Accumulate>(1.0 / (1.0 - std::pow(settings.beta1, steps)));
  const auto correct2 = static_cast<Accumulate>(1.0 / (1.0 - std::pow(settings.beta2, steps)));
  const auto epsilon = static_cast<Accumulate>(settings.epsilon);
  const auto scale = static_cast<Accumulate>(now.gradient_scale);
  const auto rate = static_cast<Accumulate>(now.rate);
  const auto decay = static_cast<Accumulate>(now.rate * settings.weight_decay);
  const bool stores = weights.extent(0) != 0;
  // A thread of a processor takes a run of parameters, one of an accelerator takes one.
  constexpr std::int64_t run =
      Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Device::memory_space>::accessible
          ? 4096
          : 1;
  Kokkos::parallel_for(
      "lrmoe::adamw",
      Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>>(space, 0,
                                                                           (n + run - 1) / run),
      KOKKOS_LAMBDA(const std::int64_t block) {
        const std::int64_t end = Kokkos::min(n, (block + 1) * run);
        for (std::int64_t i = block * run; i < end; ++i) {
          const Accumulate g = gradient(i) * scale;
          const Accumulate m = b1 * first(i) + rest1 * g;
          const Accumulate v = b2 * second(i) + rest2 * g * g;
          const Accumulate w = master(i);
          const Accumulate updated =
              w - (rate * m * correct1 / (Kokkos::sqrt(v * correct2) + epsilon) + decay * w);
          first(i) = m;
          second(i) = v;
          master(i) = updated;
          if (stores) weights(i) = static_cast<Element>(updated);
        }
      });
}

}  // namespace lrmoe
