// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "arithmetic.hpp"
#include "inputs.hpp"

namespace bench::compare {

/// What a router makes of its input, in double, with bounds.
struct routing_reference {
  std::vector<index_type> experts;    // (T, K)  the reference's own choice, descending
  std::vector<number> scores;         // (T, E)  what experts are chosen by; empty for given routing
  std::vector<number> probabilities;  // (T, E)  softmax or sigmoid
  std::vector<number> weights;        // (T, K)  of the experts that the caller names
  std::int64_t differences = 0;       // pairs whose expert differs from the reference's choice
  std::vector<std::int64_t> unexplained;  // of them, pairs where rounding cannot be the reason
};

namespace detail {

/// The K largest of n keys that are allowed, descending, ties by lowest index.
template <class Key, class Allowed>
std::vector<index_type> largest(std::int64_t n, std::int64_t K, const Key& key,
                                const Allowed& allowed) {
  std::vector<index_type> order;
  for (std::int64_t e = 0; e < n; ++e)
    if (allowed(e)) order.push_back(static_cast<index_type>(e));
  std::stable_sort(order.begin(), order.end(),
                   [&](index_type a, index_type b) { return key(a) > key(b); });
  order.resize(static_cast<std::size_t>(std::min<std::int64_t>(K, order.size())));
  return order;
}

}  // namespace detail

/// Routes in double and judges the choice of a candidate. Logits are the same numbers in both, so softmax
/// must choose the same experts bit by bit; sigmoid scores are rounded before they are compared, so experts
/// or groups may change places where their scores differ by less than both roundings.
template <class Element>
class router_reference {
 public:
  router_reference(const layer_inputs<Element>& in, const arithmetic& rules)
      : in_(in), rules_(rules) {}

  /// Weights of the candidate's experts (T, K).
  routing_reference route(const std::vector<index_type>& chosen) const {
    const auto& [D, F, E, K, F_shared] = in_.of.shape;
    routing_reference result;
    if (in_.of.router == router_kind::given) {
      result.experts = in_.experts;
      for (const auto w : in_.weights) result.weights.push_back({static_cast<double>(w), 0.0});
    } else {
      result.probabilities.resize(static_cast<std::size_t>(in_.of.T * E));
      result.weights.resize(static_cast<std::size_t>(in_.of.P()));
      for (std::int64_t t = 0; t < in_.of.T; ++t) {
        if (sigmoid())
          route_sigmoid(t, chosen, result);
        else
          route_softmax(t, chosen, result);
      }
    }
    judge(chosen, result);
    return result;
  }

  /// Gradient of the router's input, (T, E) of logits or (T, K) of given weights.
  std::vector<number> backward(const routing_reference& at, const std::vector<index_type>& chosen,
                               const std::vector<number>& d_weights) const {
    if (in_.of.router == router_kind::given) return d_weights;
    std::vector<number> d_logits(at.probabilities.size());
    for (std::int64_t t = 0; t < in_.of.T; ++t) {
      if (sigmoid())
        sigmoid_backward(t, at, chosen, d_weights, d_logits);
      else
        softmax_backward(t, at, chosen, d_weights, d_logits);
    }
    return d_logits;
  }

 private:
  bool sigmoid() const { return in_.of.router == router_kind::sigmoid; }
  bool renormalises() const { return in_.of.router != router_kind::softmax_raw; }
  std::int64_t E() const { return in_.of.shape.E; }
  std::int64_t K() const { return in_.of.shape.K; }
  double logit(std::int64_t t, std::int64_t e) const {
    return static_cast<double>(in_.logits[static_cast<std::size_t>(t * E() + e)]);
  }
  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }
  index_type expert(const std::vector<index_type>& chosen, std::int64_t t, std::int64_t k) const {
    return std::clamp<index_type>(chosen[index(t * K() + k)], 0, static_cast<index_type>(E() - 1));
  }

  number sum(const std::vector<number>& terms, double more = 0.0) const {
    number total{more, 0.0};
    double magnitude = more;
    for (const number& term : terms) {
      total.value += term.value;
      total.error += term.error;
      magnitude += std::abs(term.value) + term.error;
    }
    total.error += rules_.sum_gamma(static_cast<double>(terms.size() + 1)) * magnitude;
    return total;
  }

  void route_softmax(std::int64_t t, const std::vector<index_type>& chosen,
                     routing_reference& to) const {
    double most = -INFINITY;
    for (std::int64_t e = 0; e < E(); ++e) most = std::max(most, logit(t, e));
    std::vector<number> powers(index(E()));
    for (std::int64_t e = 0; e < E(); ++e) {
      const double distance = logit(t, e) - most, power = std::exp(distance);
      const double relative =
          std::isfinite(distance) ? rules_.u * (std::abs(distance) + arithmetic::exponential) : 0.0;
      powers[index(e)] = {power, power * relative + rules_.tiny};
    }
    const number all = sum(powers);
    for (std::int64_t e = 0; e < E(); ++e)
      to.probabilities[index(t * E() + e)] = rules_.divide(powers[index(e)], all);
    std::vector<number> of_chosen;
    for (std::int64_t k = 0; k < K(); ++k) of_chosen.push_back(powers[index(expert(chosen, t, k))]);
    const number divisor = renormalises() ? sum(of_chosen) : all;
    for (std::int64_t k = 0; k < K(); ++k)
      to.weights[index(t * K() + k)] = rules_.divide(of_chosen[index(k)], divisor);
    const auto best = detail::largest(
        E(), K(), [&](index_type e) { return logit(t, e); }, [](std::int64_t) { return true; });
    to.experts.insert(to.experts.end(), best.begin(), best.end());
  }

  number bias(std::int64_t e) const {
    return {in_.selection_bias.empty() ? 0.0 : static_cast<double>(in_.selection_bias[index(e)]),
            0.0};
  }
  number biased(const routing_reference& at, std::int64_t t, std::int64_t e) const {
    return rules_.add(at.probabilities[index(t * E() + e)], bias(e));
  }
  /// Sum of a group's two largest biased scores.
  number group_score(const routing_reference& at, std::int64_t t, std::int64_t group) const {
    const std::int64_t width = E() / in_.of.groups();
    const auto best = detail::largest(
        E(), 2, [&](index_type e) { return biased(at, t, e).value; },
        [&](std::int64_t e) { return e / width == group; });
    number score = biased(at, t, best[0]);
    // Rounding may swap which are the two largest; their sum is then still within the largest error.
    if (best.size() > 1) score = rules_.add(score, biased(at, t, best[1]));
    return score;
  }

  void route_sigmoid(std::int64_t t, const std::vector<index_type>& chosen,
                     routing_reference& to) const {
    for (std::int64_t e = 0; e < E(); ++e)
      to.probabilities[index(t * E() + e)] = rules_.sigmoid(number{logit(t, e), 0.0});
    const std::int64_t groups = in_.of.groups(), width = E() / groups;
    std::vector<double> of_group;
    for (std::int64_t g = 0; g < groups; ++g) of_group.push_back(group_score(to, t, g).value);
    const auto kept = detail::largest(
        groups, in_.of.groups_kept(), [&](index_type g) { return of_group[index(g)]; },
        [](std::int64_t) { return true; });
    const auto best = detail::largest(
        E(), K(), [&](index_type e) { return biased(to, t, e).value; },
        [&](std::int64_t e) {
          return std::find(kept.begin(), kept.end(), static_cast<index_type>(e / width)) !=
                 kept.end();
        });
    to.experts.insert(to.experts.end(), best.begin(), best.end());
    const number divisor = sigmoid_divisor(t, to, chosen);
    const number factor = rules_.divide(number{in_.of.scaling, 0.0}, divisor);
    for (std::int64_t k = 0; k < K(); ++k)
      to.weights[index(t * K() + k)] =
          rules_.multiply(factor, to.probabilities[index(t * E() + expert(chosen, t, k))]);
  }

  number sigmoid_divisor(std::int64_t t, const routing_reference& at,
                         const std::vector<index_type>& chosen) const {
    std::vector<number> of_chosen;
    for (std::int64_t k = 0; k < K(); ++k)
      of_chosen.push_back(at.probabilities[index(t * E() + expert(chosen, t, k))]);
    return sum(of_chosen, 1e-20);
  }

  /// Two experts may change places when their scores, or those of their groups, lie within both roundings.
  bool may_swap(const routing_reference& at, std::int64_t t, index_type a, index_type b) const {
    if (!sigmoid()) return false;
    const auto close = [](number left, number right) {
      return std::abs(left.value - right.value) <= left.error + right.error;
    };
    if (close(biased(at, t, a), biased(at, t, b))) return true;
    const std::int64_t width = E() / in_.of.groups();
    if (in_.of.groups_kept() == in_.of.groups()) return false;
    // A group at the edge lets in or keeps out experts, which moves those behind them.
    std::vector<number> of_group;
    for (std::int64_t g = 0; g < in_.of.groups(); ++g) of_group.push_back(group_score(at, t, g));
    std::vector<number> sorted = of_group;
    std::sort(sorted.begin(), sorted.end(), [](number l, number r) { return l.value > r.value; });
    const std::size_t edge = index(in_.of.groups_kept());
    (void)width;
    return close(sorted[edge - 1], sorted[edge]);
  }

  void judge(const std::vector<index_type>& chosen, routing_reference& result) const {
    for (std::int64_t p = 0; p < in_.of.P(); ++p) {
      const index_type own = result.experts[index(p)], other = chosen[index(p)];
      if (own == other) continue;
      ++result.differences;
      const bool known = other >= 0 && other < E();
      if (!known || in_.of.router == router_kind::given || !may_swap(result, p / K(), own, other))
        result.unexplained.push_back(p);
    }
  }

  void softmax_backward(std::int64_t t, const routing_reference& at,
                        const std::vector<index_type>& chosen, const std::vector<number>& d_weights,
                        std::vector<number>& d_logits) const {
    std::vector<number> products;
    for (std::int64_t k = 0; k < K(); ++k)
      products.push_back(
          rules_.multiply(at.weights[index(t * K() + k)], d_weights[index(t * K() + k)]));
    number minus_mean = sum(products);
    minus_mean.value = -minus_mean.value;
    if (!renormalises())
      for (std::int64_t e = 0; e < E(); ++e)
        d_logits[index(t * E() + e)] =
            rules_.multiply(at.probabilities[index(t * E() + e)], minus_mean);
    for (std::int64_t k = 0; k < K(); ++k) {
      const auto p = index(t * K() + k);
      number& d = d_logits[index(t * E() + expert(chosen, t, k))];
      const number centred = renormalises() ? rules_.add(d_weights[p], minus_mean) : d_weights[p];
      d = rules_.add(d, rules_.multiply(at.weights[p], centred));
    }
  }

  void sigmoid_backward(std::int64_t t, const routing_reference& at,
                        const std::vector<index_type>& chosen, const std::vector<number>& d_weights,
                        std::vector<number>& d_logits) const {
    const number divisor = sigmoid_divisor(t, at, chosen);
    std::vector<number> products;
    for (std::int64_t k = 0; k < K(); ++k)
      products.push_back(
          rules_.divide(rules_.multiply(d_weights[index(t * K() + k)],
                                        at.probabilities[index(t * E() + expert(chosen, t, k))]),
                        divisor));
    number minus_mean = sum(products);
    minus_mean.value = -minus_mean.value;
    for (std::int64_t k = 0; k < K(); ++k) {
      const auto e = index(t * E() + expert(chosen, t, k));
      const number s = at.probabilities[e];
      const double rest_value = arithmetic::sigmoid(-logit(t, expert(chosen, t, k)));
      const number rest{rest_value, s.error + rules_.u * rest_value};
      const number d_score =
          rules_.divide(rules_.multiply(number{in_.of.scaling, 0.0},
                                        rules_.add(d_weights[index(t * K() + k)], minus_mean)),
                        divisor);
      d_logits[e] = rules_.multiply(rules_.multiply(d_score, s), rest);
    }
  }

  const layer_inputs<Element>& in_;
  const arithmetic& rules_;
};

}  // namespace bench::compare
