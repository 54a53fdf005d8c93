// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <limits>

#include <lrmoe/routing/router.hpp>
#include <lrmoe/routing/select_experts.hpp>

namespace lrmoe {

/// Softmax over all experts, the K largest probabilities as weights, optionally divided by their sum
/// (Qwen3-MoE: norm_topk_prob).
///   w_k = p_k                     or   w_k = p_k / sum_j p_j,    p = softmax(logits)
/// Numerics  exponentials relative to the largest logit; a NaN logit makes the token's weights NaN,
///           which check_routing reports. Deterministic.
/// Cost      K E comparisons and E exponentials a token.
struct softmax_top_k {
  bool renormalise = true;

  template <class Accumulate, class Device>
  using input = router_logits<Accumulate, Device>;
  template <class Accumulate, class Device>
  using gradient = matrix_view<Accumulate, Device>;

  static std::int64_t gradient_columns(std::int64_t E, std::int64_t /*K*/) { return E; }

  void validate(std::int64_t /*E*/, std::int64_t /*K*/) const {}

  template <class ExecutionSpace, class Accumulate, class Device,
            class Unit = detail::translation_unit>
  void route(const ExecutionSpace& space, const router_logits<Accumulate, Device>& from,
             const routing<Accumulate, Device>& to) const {
    const auto E = static_cast<index_type>(from.logits.extent(1));
    const auto K = static_cast<index_type>(to.experts.extent(1));
    const bool renormalise_weights = renormalise;
    detail::for_each_row(
        "lrmoe::softmax_top_k::route", space, static_cast<std::int64_t>(from.logits.extent(0)),
        KOKKOS_LAMBDA(const detail::row_lanes<ExecutionSpace>& lanes, const std::int64_t t) {
          if (from.is_padding(t)) {
            lanes.for_each(K, [&](const index_type k) {
              to.experts(t, k) = no_expert;
              to.weights(t, k) = Accumulate(0);
            });
            return;
          }
          const auto logits = lanes.values(E, [&](index_type e) { return from.logits(t, e); });
          const auto all = [](index_type) { return true; };

          auto chosen = detail::ranked_expert<Accumulate>::start();
          Accumulate largest = 0;
          Accumulate sum = 0;
          for (index_type k = 0; k < K; ++k) {
            chosen = detail::next_expert(lanes, logits, chosen, all);
            // NaN is no candidate, so a token of NaN logits runs out of them.
            if (chosen.none()) break;
            if (k == 0) largest = chosen.value;
            const Accumulate weight = Kokkos::exp(chosen.value - largest);
            sum += weight;
            lanes.once([&] {
              to.experts(t, k) = chosen.id;
              to.weights(t, k) = weight;
            });
          }
          const auto total = lanes.sum(logits, [&](index_type, const Accumulate logit) {
            return Kokkos::exp(logit - largest);
          });
          // total is NaN when any logit is: also then the weights must not look valid.
          const Accumulate divisor = renormalise_weights ? sum + (total - total) : total;
          lanes.for_each(K, [&](const index_type k) {
            if (chosen.none()) {
              to.experts(t, k) = k;
              to.weights(t, k) = std::numeric_limits<Accumulate>::quiet_NaN();
            } else {
              to.weights(t, k) /= divisor;
            }
          });
        });
  }

  template <class ExecutionSpace, class Accumulate, class Device,
            class Unit = detail::translation_unit>
  void backward(const ExecutionSpace& space, const router_logits<Accumulate, Device>& from,
                const routing<Accumulate, Device>& chosen,
                const matrix_view<const Accumulate, Device>& d_weights,
                const matrix_view<Accumulate, Device>& d_logits) const {
    const auto E = static_cast<index_type>(from.logits.extent(1));
    const auto K = static_cast<index_type>(chosen.experts.extent(1));
    const bool renormalised = renormalise;
    detail::for_each_row(
        "lrmoe::softmax_top_k::backward", space, static_cast<std::int64_t>(from.logits.extent(0)),
        KOKKOS_LAMBDA(const detail::row_lanes<ExecutionSpace>& lanes, const std::int64_t t) {
          const bool padding = from.is_padding(t);
          Accumulate mean = 0;
          for (index_type k = 0; k < K && !padding; ++k)
            mean += chosen.weights(t, k) * d_weights(t, k);
          if (renormalised || padding) {
            lanes.for_each(E, [&](const index_type e) { d_logits(t, e) = Accumulate(0); });
          } else {
            const auto logits =
                lanes.values(E, [&](const index_type e) { return from.logits(t, e); });
            const Accumulate largest =
                detail::next_expert(lanes, logits, detail::ranked_expert<Accumulate>::start(),
                                    [](index_type) { return true; })
                    .value;
            const auto total = lanes.sum(logits, [&](index_type, const Accumulate logit) {
              return Kokkos::exp(logit - largest);
            });
            lanes.for_each(E, [&](const index_type e) {
              d_logits(t, e) = -mean * Kokkos::exp(from.logits(t, e) - largest) / total;
            });
          }
          if (padding) return;
          lanes.once([&] {
            for (index_type k = 0; k < K; ++k) {
              const Accumulate centred = renormalised ? d_weights(t, k) - mean : d_weights(t, k);
              d_logits(t, chosen.experts(t, k)) += chosen.weights(t, k) * centred;
            }
          });
        });
  }
};

}  // namespace lrmoe
