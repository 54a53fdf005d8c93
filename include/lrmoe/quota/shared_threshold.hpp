// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <span>

#include <lrmoe/quota/exchange_by_gain.hpp>
#include <lrmoe/quota/fixed_fraction.hpp>

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

    detail::take_gains_above(request, tau, quotas);
    for (const index_type q : quotas) left -= q;
    const bool add = left > 0;
    detail::exchange_by_gain(request, add, quotas, [&](double /*gain*/) {
      if (left == 0) return false;
      left += add ? -1 : 1;
      return true;
    });
  }
};

}  // namespace lrmoe
