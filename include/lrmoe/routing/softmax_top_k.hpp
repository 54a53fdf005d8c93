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
    Kokkos::parallel_for(
        "lrmoe::softmax_top_k::route",
        Kokkos::RangePolicy<ExecutionSpace>(space, 0, from.logits.extent(0)),
        KOKKOS_LAMBDA(const std::int64_t t) {
          if (from.is_padding(t)) {
            for (index_type k = 0; k < K; ++k) {
              to.experts(t, k) = no_expert;
              to.weights(t, k) = Accumulate(0);
            }
            return;
          }
          const auto logit = [&](index_type e) { return from.logits(t, e); };
          const auto all = [](index_type) { return true; };

          detail::ranked_expert<Accumulate> chosen{Accumulate(0), no_expert};
          Accumulate largest = 0;
          Accumulate sum = 0;
          for (index_type k = 0; k < K; ++k) {
            chosen = detail::next_expert(E, chosen, logit, all);
            // NaN compares with nothing, so a token of NaN logits runs out of candidates.
            if (chosen.id == no_expert) break;
            if (k == 0) largest = chosen.value;
            const Accumulate weight = Kokkos::exp(chosen.value - largest);
            to.experts(t, k) = chosen.id;
            to.weights(t, k) = weight;
            sum += weight;
          }
          Accumulate total = 0;
          for (index_type e = 0; e < E; ++e) total += Kokkos::exp(from.logits(t, e) - largest);
          // total is NaN when any logit is: also then the weights must not look valid.
          const Accumulate divisor = renormalise_weights ? sum + (total - total) : total;
          for (index_type k = 0; k < K; ++k) {
            if (chosen.id == no_expert) {
              to.experts(t, k) = k;
              to.weights(t, k) = std::numeric_limits<Accumulate>::quiet_NaN();
            } else {
              to.weights(t, k) /= divisor;
            }
          }
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
    Kokkos::parallel_for(
        "lrmoe::softmax_top_k::backward",
        Kokkos::RangePolicy<ExecutionSpace>(space, 0, from.logits.extent(0)),
        KOKKOS_LAMBDA(const std::int64_t t) {
          for (index_type e = 0; e < E; ++e) d_logits(t, e) = Accumulate(0);
          if (from.is_padding(t)) return;
          Accumulate mean = 0;
          for (index_type k = 0; k < K; ++k) mean += chosen.weights(t, k) * d_weights(t, k);
          if (!renormalised) {
            Accumulate largest = from.logits(t, 0);
            for (index_type e = 1; e < E; ++e) largest = Kokkos::max(largest, from.logits(t, e));
            Accumulate total = 0;
            for (index_type e = 0; e < E; ++e) total += Kokkos::exp(from.logits(t, e) - largest);
            for (index_type e = 0; e < E; ++e) {
              d_logits(t, e) = -mean * Kokkos::exp(from.logits(t, e) - largest) / total;
            }
          }
          for (index_type k = 0; k < K; ++k) {
            const Accumulate centred = renormalised ? d_weights(t, k) - mean : d_weights(t, k);
            d_logits(t, chosen.experts(t, k)) += chosen.weights(t, k) * centred;
          }
        });
  }
};

}  // namespace lrmoe
