// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <lrmoe/quota/quota.hpp>
#include <lrmoe/quota/scratch.hpp>

namespace lrmoe::detail {

/// What one more pair of expert e takes off the forecast variance: V_e(q) - V_e(q + 1).
inline double gain_of_pair(const variance_forecast& forecast, std::size_t e, index_type q) {
  const auto expert = static_cast<std::int64_t>(e);
  return forecast.added_variance(expert, q) - forecast.added_variance(expert, q + 1);
}

/// Quotas of all steps from q to q + 1 that gain more than tau^2, and no other: what the greedy choice
/// has taken when it reaches that gain. At least 1 of an expert that has pairs.
inline void take_gains_above(const quota_request& request, double tau,
                             std::span<index_type> quotas) {
  const variance_forecast& forecast = *request.forecast;
  for (std::size_t e = 0; e < quotas.size(); ++e) {
    const index_type L = request.counts[e];
    if (L == 0) continue;
    index_type& q = quotas[e];
    q = static_cast<index_type>(
        std::clamp(forecast.kept(static_cast<std::int64_t>(e), tau), 1.0, double(L)));
    while (q < L && gain_of_pair(forecast, e, q) > tau * tau) ++q;
    while (q > 1 && gain_of_pair(forecast, e, q - 1) <= tau * tau) --q;
  }
}

/// Add single pairs, largest gain first and of equal gains the lowest expert's, or take them away in the
/// reverse order, as long as go_on(gain of the next) says so.
template <class GoOn>
void exchange_by_gain(const quota_request& request, bool add, std::span<index_type> quotas,
                      const GoOn& go_on) {
  struct move {
    double gain;
    std::size_t e;
  };
  const auto after = [add](const move& a, const move& b) {
    if (a.gain != b.gain) return add ? a.gain < b.gain : a.gain > b.gain;
    return add ? a.e > b.e : a.e < b.e;
  };
  const auto can_move = [&](std::size_t e) {
    return add ? quotas[e] < request.counts[e] : quotas[e] > 1;
  };
  const auto move_of = [&](std::size_t e) {
    return move{gain_of_pair(*request.forecast, e, add ? quotas[e] : quotas[e] - 1), e};
  };
  const std::span<move> heap = scratch<move, move>(quotas.size());
  std::size_t size = 0;
  for (std::size_t e = 0; e < quotas.size(); ++e) {
    if (can_move(e)) heap[size++] = move_of(e);
  }
  move* const begin = heap.data();
  std::make_heap(begin, begin + size, after);
  while (size > 0 && go_on(heap.front().gain)) {
    std::pop_heap(begin, begin + size, after);
    const std::size_t e = heap[size - 1].e;
    quotas[e] += add ? 1 : -1;
    if (can_move(e)) {
      heap[size - 1] = move_of(e);
      std::push_heap(begin, begin + size, after);
    } else {
      --size;
    }
  }
}

}  // namespace lrmoe::detail
