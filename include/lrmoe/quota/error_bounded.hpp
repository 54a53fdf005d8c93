// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include <lrmoe/quota/quota.hpp>
#include <lrmoe/quota/scratch.hpp>

namespace lrmoe {

/// The fewest pairs whose forecast variance stays within a bound:
///   minimise sum_e q[e]  subject to  sum_e V_e(q[e]) <= epsilon S,  1 <= q[e] <= L[e]
/// S is about the noise of the batch itself, so epsilon reads "as if the batch were 1 + epsilon times
/// smaller". epsilon is divided by what the history's forecasts erred by (noise_correction), so that
/// the noise achieved, not only the one forecast, tends to the bound.
/// Numerics  optimal in integers: every V_e is convex, so the m steps from q to q + 1 that gain most
///           are the best use of m pairs. Quotas start at one threshold common to all experts and
///           single pairs are then added or taken by gain; of equal gains the lowest expert's.
/// Cost      O(E log E)
/// Without a forecast every pair is kept.
struct error_bounded {
  double epsilon = 0.25;  ///< V / sum s, not negative; 0 keeps every pair

  void validate() const {
    require(epsilon >= 0.0 && std::isfinite(epsilon), "error_bounded: epsilon = ", epsilon,
            " must be a number of at least 0: 0.25 adds a quarter of the batch's own noise");
  }

  static constexpr bool uses_history() { return true; }

  void assign(const quota_request& request, std::span<index_type> quotas) const {
    std::copy(request.counts.begin(), request.counts.end(), quotas.begin());
    if (request.forecast == nullptr || epsilon == 0.0) return;
    const variance_forecast& forecast = *request.forecast;
    const double bound = epsilon / forecast.noise_correction() * forecast.score_total();
    if (!(bound > 0.0)) return;
    const double tau = forecast.common_threshold(bound);

    // All steps that gain more than tau^2, and no other: what the greedy choice has taken when it
    // reaches that gain.
    const auto gain = [&](std::size_t e, index_type q) {
      const auto expert = static_cast<std::int64_t>(e);
      return forecast.added_variance(expert, q) - forecast.added_variance(expert, q + 1);
    };
    double variance = 0;
    for (std::size_t e = 0; e < quotas.size(); ++e) {
      const index_type L = request.counts[e];
      if (L == 0) continue;
      const auto expert = static_cast<std::int64_t>(e);
      auto q = static_cast<index_type>(std::clamp(forecast.kept(expert, tau), 1.0, double(L)));
      while (q < L && gain(e, q) > tau * tau) ++q;
      while (q > 1 && gain(e, q - 1) <= tau * tau) --q;
      quotas[e] = q;
      variance += forecast.added_variance(expert, q);
    }

    struct move {
      double gain;
      std::size_t e;
    };
    const std::span<move> heap = detail::scratch<error_bounded, move>(quotas.size());
    std::size_t size = 0;
    if (variance > bound) {
      const auto later = [](const move& a, const move& b) {
        return a.gain != b.gain ? a.gain < b.gain : a.e > b.e;
      };
      for (std::size_t e = 0; e < quotas.size(); ++e) {
        if (quotas[e] < request.counts[e]) heap[size++] = {gain(e, quotas[e]), e};
      }
      std::make_heap(heap.begin(), heap.begin() + size, later);
      while (variance > bound && size > 0) {
        std::pop_heap(heap.begin(), heap.begin() + size, later);
        const move best = heap[size - 1];
        variance -= best.gain;
        if (++quotas[best.e] < request.counts[best.e]) {
          heap[size - 1] = {gain(best.e, quotas[best.e]), best.e};
          std::push_heap(heap.begin(), heap.begin() + size, later);
        } else {
          --size;
        }
      }
    } else {
      const auto later = [](const move& a, const move& b) {
        return a.gain != b.gain ? a.gain > b.gain : a.e < b.e;
      };
      for (std::size_t e = 0; e < quotas.size(); ++e) {
        if (quotas[e] > 1) heap[size++] = {gain(e, quotas[e] - 1), e};
      }
      std::make_heap(heap.begin(), heap.begin() + size, later);
      while (size > 0 && variance + heap.front().gain <= bound) {
        std::pop_heap(heap.begin(), heap.begin() + size, later);
        const move least = heap[size - 1];
        variance += least.gain;
        if (--quotas[least.e] > 1) {
          heap[size - 1] = {gain(least.e, quotas[least.e] - 1), least.e};
          std::push_heap(heap.begin(), heap.begin() + size, later);
        } else {
          --size;
        }
      }
    }
  }
};

}  // namespace lrmoe
