// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include <lrmoe/quota/fixed_fraction.hpp>
#include <lrmoe/quota/scratch.hpp>

namespace lrmoe {

/// A fixed fraction of the layer's pairs, spread over its experts where they lower the variance most:
///   minimise sum_e V_e(q[e])  subject to  sum_e q[e] = sum_e ceil(keep L[e]),  1 <= q[e] <= L[e]
/// As many pairs as fixed_fraction keeps, but under one threshold tau for all experts instead of one
/// each (Neyman 1934): experts whose pairs matter more keep more of them.
/// Numerics  optimal in integers: every V_e is convex, so the steps from q to q + 1 that gain most are
///           the best use of so many pairs. Quotas start at the common threshold, rounded down, and the
///           pairs left over go by gain; of equal gains to the lowest expert.
/// Cost      O(E log E)
/// Without a forecast this is fixed_fraction.
struct shared_threshold {
  double keep = 0.5;  ///< rho over all experts, in (0, 1]

  void validate() const {
    require(keep > 0.0 && keep <= 1.0, "shared_threshold: keep = ", keep,
            " is outside (0, 1]: keep at least some pairs");
  }

  static constexpr bool uses_history() { return true; }

  void assign(const quota_request& request, std::span<index_type> quotas) const {
    fixed_fraction{keep}.assign(request, quotas);
    if (request.forecast == nullptr || keep == 1.0) return;
    const variance_forecast& forecast = *request.forecast;
    std::int64_t left = 0;
    for (const index_type q : quotas) left += q;
    const double tau = forecast.threshold_keeping(static_cast<double>(left));
    if (!(tau > 0.0)) return;

    const auto gain = [&](std::size_t e, index_type q) {
      const auto expert = static_cast<std::int64_t>(e);
      return forecast.added_variance(expert, q) - forecast.added_variance(expert, q + 1);
    };
    // What the greedy choice has taken when gains reach tau^2.
    for (std::size_t e = 0; e < quotas.size(); ++e) {
      const index_type L = request.counts[e];
      index_type& q = quotas[e];
      if (L == 0) continue;
      q = static_cast<index_type>(
          std::clamp(forecast.kept(static_cast<std::int64_t>(e), tau), 1.0, double(L)));
      while (q < L && gain(e, q) > tau * tau) ++q;
      while (q > 1 && gain(e, q - 1) <= tau * tau) --q;
      left -= q;
    }
    // The rest, or what is too much, one by one.
    struct move {
      double gain;
      std::size_t e;
    };
    const bool more = left > 0;
    const auto after = [more](const move& a, const move& b) {
      if (a.gain != b.gain) return more ? a.gain < b.gain : a.gain > b.gain;
      return more ? a.e > b.e : a.e < b.e;
    };
    const std::span<move> heap = detail::scratch<shared_threshold, move>(quotas.size());
    std::size_t size = 0;
    const auto can_move = [&](std::size_t e) {
      return more ? quotas[e] < request.counts[e] : quotas[e] > 1;
    };
    const auto move_of = [&](std::size_t e) {
      return move{gain(e, more ? quotas[e] : quotas[e] - 1), e};
    };
    for (std::size_t e = 0; e < quotas.size(); ++e) {
      if (can_move(e)) heap[size++] = move_of(e);
    }
    const auto begin = heap.begin();
    std::make_heap(begin, begin + static_cast<std::ptrdiff_t>(size), after);
    while (left != 0 && size > 0) {
      std::pop_heap(begin, begin + static_cast<std::ptrdiff_t>(size), after);
      const std::size_t e = heap[size - 1].e;
      quotas[e] += more ? 1 : -1;
      left += more ? -1 : 1;
      if (can_move(e)) {
        heap[size - 1] = move_of(e);
        std::push_heap(begin, begin + static_cast<std::ptrdiff_t>(size), after);
      } else {
        --size;
      }
    }
  }
};

}  // namespace lrmoe
