// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <limits>

#include <lrmoe/routing/router.hpp>
#include <lrmoe/routing/select_experts.hpp>

namespace lrmoe {

/// Sigmoid scores, selection by biased score inside the best groups, unbiased scores as weights
/// (DeepSeek-V3, GLM-4.5).
///   s = sigmoid(logits);  b = s + selection_bias
///   a group's score is the sum of its two largest b; the groups_kept best groups are eligible
///   the K largest eligible b are chosen;   w_k = scaling s_k / (sum_j s_j + 1e-20) or scaling s_k
/// The selection bias steers load without touching the loss: it receives no gradient.
/// Where not all groups are kept there are at most most_groups of them.
/// Numerics  as softmax_top_k: NaN in a row makes the token's weights NaN. Deterministic.
template <class Accumulate, class Device>
struct sigmoid_top_k {
  static constexpr index_type most_groups = 64;

  vector_view<const Accumulate, Device> selection_bias{};  // (E) or empty for none
  index_type groups = 1;
  index_type groups_kept = 1;
  bool renormalise = true;
  double scaling = 1.0;

  template <class, class>
  using input = router_logits<Accumulate, Device>;
  template <class, class>
  using gradient = matrix_view<Accumulate, Device>;

  static std::int64_t gradient_columns(std::int64_t E, std::int64_t /*K*/) { return E; }

  void validate(std::int64_t E, std::int64_t K) const {
    require(groups >= 1 && E % groups == 0, "sigmoid_top_k: groups = ", groups,
            " does not divide E = ", E, ": choose a divisor");
    require(groups <= most_groups || groups_kept == groups, "sigmoid_top_k: groups = ", groups,
            " must be at most ", most_groups, " where not all are kept: choose wider groups");
    require(groups_kept >= 1 && groups_kept <= groups, "sigmoid_top_k: groups_kept = ", groups_kept,
            " must be in [1, groups = ", groups, "]");
    require(K <= groups_kept * (E / groups), "sigmoid_top_k: K = ", K, " experts do not fit into ",
            groups_kept, " groups of ", E / groups, ": keep more groups");
    require(std::isfinite(scaling), "sigmoid_top_k: scaling = ", scaling, " must be finite");
    require(
        selection_bias.extent(0) == 0 || static_cast<std::int64_t>(selection_bias.extent(0)) == E,
        "sigmoid_top_k: selection_bias has ", selection_bias.extent(0),
        " entries, expected E = ", E, " or none");
  }

  template <class ExecutionSpace, class Unit = detail::translation_unit>
  void route(const ExecutionSpace& space, const router_logits<Accumulate, Device>& from,
             const routing<Accumulate, Device>& to) const {
    const auto self = *this;
    detail::for_each_row(
        "lrmoe::sigmoid_top_k::route", space, static_cast<std::int64_t>(from.logits.extent(0)),
        KOKKOS_LAMBDA(const detail::row_lanes<ExecutionSpace>& lanes, const std::int64_t t) {
          self.route_token(lanes, from, to, t);
        });
  }

  template <class ExecutionSpace, class Unit = detail::translation_unit>
  void backward(const ExecutionSpace& space, const router_logits<Accumulate, Device>& from,
                const routing<Accumulate, Device>& chosen,
                const matrix_view<const Accumulate, Device>& d_weights,
                const matrix_view<Accumulate, Device>& d_logits) const {
    const auto self = *this;
    detail::for_each_row(
        "lrmoe::sigmoid_top_k::backward", space, static_cast<std::int64_t>(from.logits.extent(0)),
        KOKKOS_LAMBDA(const detail::row_lanes<ExecutionSpace>& lanes, const std::int64_t t) {
          self.differentiate_token(lanes, from, chosen, d_weights, d_logits, t);
        });
  }

 private:
  KOKKOS_FUNCTION static Accumulate sigmoid(Accumulate logit) {
    return Accumulate(1) / (Accumulate(1) + Kokkos::exp(-logit));
  }

  KOKKOS_FUNCTION Accumulate normaliser(const router_logits<Accumulate, Device>& from,
                                        const matrix_view<index_type, Device>& experts,
                                        std::int64_t t) const {
    if (!renormalise) return Accumulate(1);
    Accumulate sum = Accumulate(1e-20);
    for (std::size_t k = 0; k < experts.extent(1); ++k) {
      sum += sigmoid(from.logits(t, experts(t, k)));
    }
    return sum;
  }

  template <class Lanes>
  KOKKOS_FUNCTION void route_token(const Lanes& lanes,
                                   const router_logits<Accumulate, Device>& from,
                                   const routing<Accumulate, Device>& to, std::int64_t t) const {
    const auto E = static_cast<index_type>(from.logits.extent(1));
    const auto K = static_cast<index_type>(to.experts.extent(1));
    if (from.is_padding(t)) {
      lanes.for_each(K, [&](const index_type k) {
        to.experts(t, k) = no_expert;
        to.weights(t, k) = Accumulate(0);
      });
      return;
    }
    const index_type width = E / groups;
    const auto biased = [&](index_type e) {
      const Accumulate bias = selection_bias.extent(0) != 0 ? selection_bias(e) : Accumulate(0);
      return sigmoid(from.logits(t, e)) + bias;
    };
    const auto group_score = [&](index_type group) {
      Accumulate first = -Kokkos::Experimental::infinity_v<Accumulate>;
      Accumulate second = first;
      for (index_type e = group * width; e < (group + 1) * width; ++e) {
        const Accumulate b = biased(e);
        if (b > first) {
          second = first;
          first = b;
        } else if (b > second) {
          second = b;
        }
      }
      return width == 1 ? first : first + second;
    };
    const auto all = [](index_type) { return true; };

    std::uint64_t kept_groups = 0;
    if (groups_kept < groups) {
      const auto scores = lanes.values(groups, group_score);
      auto group = detail::ranked_expert<Accumulate>::start();
      for (index_type i = 0; i < groups_kept; ++i) {
        group = detail::next_expert(lanes, scores, group, all);
        if (!group.none()) kept_groups |= std::uint64_t{1} << group.id;
      }
    }
    const auto eligible = [&](index_type e) {
      return groups_kept == groups || (kept_groups >> (e / width) & 1) != 0;
    };

    const auto scores = lanes.values(E, biased);
    const auto any_nan =
        lanes.sum(scores, [](index_type, const Accumulate score) { return score - score; });
    auto chosen = detail::ranked_expert<Accumulate>::start();
    for (index_type k = 0; k < K; ++k) {
      if (any_nan == Accumulate(0)) chosen = detail::next_expert(lanes, scores, chosen, eligible);
      lanes.once([&] { to.experts(t, k) = any_nan == Accumulate(0) ? chosen.id : k; });
    }
    const Accumulate factor = Accumulate(scaling) / normaliser(from, to.experts, t) + any_nan;
    lanes.for_each(K, [&](const index_type k) {
      to.weights(t, k) = factor * sigmoid(from.logits(t, to.experts(t, k)));
    });
  }

  template <class Lanes>
  KOKKOS_FUNCTION void differentiate_token(const Lanes& lanes,
                                           const router_logits<Accumulate, Device>& from,
                                           const routing<Accumulate, Device>& chosen,
                                           const matrix_view<const Accumulate, Device>& d_weights,
                                           const matrix_view<Accumulate, Device>& d_logits,
                                           std::int64_t t) const {
    const auto K = static_cast<index_type>(chosen.experts.extent(1));
    const auto E = static_cast<index_type>(d_logits.extent(1));
    lanes.for_each(E, [&](const index_type e) { d_logits(t, e) = Accumulate(0); });
    if (from.is_padding(t)) return;
    const Accumulate sum = normaliser(from, chosen.experts, t);
    Accumulate mean = 0;  // sum_k dw_k s_k / sum, the share every score takes from the others
    if (renormalise) {
      for (index_type k = 0; k < K; ++k) {
        mean += d_weights(t, k) * sigmoid(from.logits(t, chosen.experts(t, k))) / sum;
      }
    }
    lanes.for_each(K, [&](const index_type k) {
      const index_type e = chosen.experts(t, k);
      const Accumulate s = sigmoid(from.logits(t, e));
      const Accumulate d_score = Accumulate(scaling) * (d_weights(t, k) - mean) / sum;
      d_logits(t, e) = d_score * s * (Accumulate(1) - s);
    });
  }
};

}  // namespace lrmoe
