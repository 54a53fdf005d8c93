// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <lrmoe/control/plan.hpp>
#include <lrmoe/control/score_history.hpp>
#include <lrmoe/control/source_shares.hpp>
#include <lrmoe/control/variance_forecast.hpp>
#include <lrmoe/quota/quota.hpp>

namespace lrmoe {

/// What calls of one layer cost on each rank.
struct call_costs {
  std::span<const index_type> home;  ///< (E)  rank that computes expert e
  std::span<const rank_cost> ranks;  ///< (R)
  pair_cost pair;
};

/// Turns the counts of all ranks into a plan with a quota policy, and remembers what calls showed.
/// A plan is a function of its arguments and the history alone, so ranks that feed their controllers
/// the same numbers hold the same plans.
class controller {
 public:
  /// Plan one call.
  ///   L[e] = sum_s n[s][e];  q = quota(L), or L when every pair is kept;  q[s][e] by largest remainder
  /// Shapes    source_counts (R, E)
  /// Ensures   the plan stays valid until the next call; once sizes were seen nothing is allocated
  /// Throws    argument_error for extents that do not fit, counts below 0 or beyond 2^31 - 1 in sum,
  ///           and quotas outside [0, L]; what the policy throws. The last plan is then gone.
  template <quota Quota>
  const plan& make(std::uint64_t step, std::int64_t R, std::int64_t E,
                   std::span<const index_type> source_counts, const call_costs& costs,
                   const Quota& policy, bool keep_all) {
    check_extents(R, E, source_counts, costs);
    plan_.R = R;
    plan_.E = E;
    plan_.source_counts.assign(source_counts.begin(), source_counts.end());
    plan_.noise_forecast = 0;
    count();
    plan_.quotas.resize(static_cast<std::size_t>(E));
    plan_.source_quotas.resize(static_cast<std::size_t>(R * E));
    if (keep_all) {
      plan_.quotas = plan_.counts;
      plan_.source_quotas = plan_.source_counts;
      return plan_;
    }
    const bool forecasts = policy.uses_history() && !history_.empty() && history_.E() == E;
    variance_forecast& forecast = shared_forecast();
    if (forecasts) forecast.update(history_, plan_.counts);
    const quota_request request{.step = step,
                                .R = R,
                                .E = E,
                                .counts = plan_.counts,
                                .source_counts = plan_.source_counts,
                                .home = costs.home,
                                .ranks = costs.ranks,
                                .pair = costs.pair,
                                .forecast = forecasts ? &forecast : nullptr};
    policy.assign(request, plan_.quotas);
    for (std::size_t e = 0; e < plan_.quotas.size(); ++e) {
      require(plan_.quotas[e] >= 0 && plan_.quotas[e] <= plan_.counts[e],
              "controller: the policy gave expert ", e, " a quota of ", plan_.quotas[e],
              ", outside [0, ", plan_.counts[e], "], its pairs: correct the policy's assign()");
    }
    if (forecasts) plan_.noise_forecast = forecast.noise_ratio(plan_.quotas);
    split_by_source(R, E, plan_.source_counts, plan_.quotas, plan_.source_quotas);
    return plan_;
  }

  const plan& last() const { return plan_; }
  score_history& history() { return history_; }
  const score_history& history() const { return history_; }

 private:
  static void check_extents(std::int64_t R, std::int64_t E,
                            std::span<const index_type> source_counts, const call_costs& costs) {
    require(R >= 1 && E >= 1, "controller: R = ", R, " ranks and E = ", E,
            " experts must be at least 1");
    require(source_counts.size() == static_cast<std::size_t>(R * E),
            "controller: ", source_counts.size(), " counts for R = ", R, " and E = ", E,
            ": pass (R, E)");
    require(costs.home.size() == static_cast<std::size_t>(E), "controller: ", costs.home.size(),
            " home ranks for E = ", E, " experts: pass one of each");
    require(costs.ranks.size() == static_cast<std::size_t>(R), "controller: costs of ",
            costs.ranks.size(), " ranks for R = ", R, ": pass one of each");
    for (const index_type rank : costs.home) {
      require(rank >= 0 && rank < R, "controller: home rank ", rank, " is outside [0, R = ", R,
              ")");
    }
  }

  /// One for all layers of a thread: it holds hundreds of KiB that only one call needs, and what the
  /// last layer wrote is still in cache.
  static variance_forecast& shared_forecast() {
    thread_local variance_forecast forecast;
    return forecast;
  }

  void count() {
    sums_.assign(static_cast<std::size_t>(plan_.E), 0);
    index_type least = 0;
    const index_type* row = plan_.source_counts.data();
    for (std::int64_t s = 0; s < plan_.R; ++s, row += plan_.E) {
      for (std::size_t e = 0; e < sums_.size(); ++e) {
        sums_[e] += row[e];
        least = std::min(least, row[e]);
      }
    }
    require(least >= 0, "controller: a count is ", least, ": counts must not be negative");
    plan_.counts.resize(sums_.size());
    for (std::size_t e = 0; e < sums_.size(); ++e) {
      require(sums_[e] <= std::numeric_limits<index_type>::max(), "controller: expert ", e, " has ",
              sums_[e], " pairs on all ranks, more than 2^31 - 1: use fewer tokens a call");
      plan_.counts[e] = static_cast<index_type>(sums_[e]);
    }
  }

  plan plan_;
  score_history history_;
  std::vector<std::int64_t> sums_;  // (E)
};

}  // namespace lrmoe
