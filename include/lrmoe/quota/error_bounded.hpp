// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include <lrmoe/quota/exchange_by_gain.hpp>

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

    detail::take_gains_above(request, tau, quotas);
    double variance = 0;
    for (std::size_t e = 0; e < quotas.size(); ++e) {
      variance += forecast.added_variance(static_cast<std::int64_t>(e), quotas[e]);
    }
    const bool add = variance > bound;
    detail::exchange_by_gain(request, add, quotas, [&](double gain) {
      if (add ? variance <= bound : variance + gain > bound) return false;
      variance += add ? -gain : gain;
      return true;
    });
  }
};

}  // namespace lrmoe
