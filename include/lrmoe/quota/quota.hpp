// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <span>

#include <lrmoe/control/variance_forecast.hpp>
#include <lrmoe/types.hpp>

namespace lrmoe {

/// What no quota changes about one rank in one call: its forward pass, its row work, what it holds.
struct rank_cost {
  double fixed_s = 0;            ///< predicted time without any kept pair
  std::int64_t fixed_bytes = 0;  ///< bytes that the call needs without any kept pair
  std::int64_t available_bytes = std::numeric_limits<std::int64_t>::max();  ///< bytes it may use
};

/// What one kept pair adds.
struct pair_cost {
  double s = 0;            ///< time of its backward on the rank that computes it
  double remote_s = 0;     ///< link time at each of its two ranks when they differ
  std::int64_t bytes = 0;  ///< memory on the rank that computes it
};

/// What a quota policy may look at; equal on every rank.
struct quota_request {
  std::uint64_t step = 0;
  std::int64_t R = 1;                         ///< ranks
  std::int64_t E = 0;                         ///< experts
  std::span<const index_type> counts;         ///< (E)     L[e]
  std::span<const index_type> source_counts;  ///< (R, E)  n[s][e]
  std::span<const index_type> home;           ///< (E)     rank that computes expert e
  std::span<const rank_cost> ranks;           ///< (R)
  pair_cost pair;
  /// What quotas will add to the gradient's variance, from earlier calls; null when there were none,
  /// or when the policy does not ask for it.
  const variance_forecast* forecast = nullptr;
};

/// A quota policy decides, from counts, costs and history and before any expert runs, how many pairs
/// of each expert backward may keep.
///   validate()                 throws argument_error when a setting is out of range
///   assign(request, quotas (E))  writes every quota
///   uses_history()             true: wants the forecast, whose histograms cost a small kernel a call
/// Runs on the host, once a call, after the counts of all ranks are known.
/// Laws: 0 <= quotas[e] <= counts[e]; the same request gives the same quotas. A quota of 0 for an
/// expert that has pairs makes every estimator biased: keep at least one unless that is meant.
/// Policies that cap or round wrap another policy and change its quotas, so that they compose:
///   peak_capped<tile_rounded<error_bounded>>
template <class Quota>
concept quota = std::copyable<Quota> &&
    requires(const Quota& q, const quota_request& request, std::span<index_type> quotas) {
  q.validate();
  q.assign(request, quotas);
  { q.uses_history() } -> std::same_as<bool>;
};

}  // namespace lrmoe
