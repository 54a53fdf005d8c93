// Requests as the controller makes them, with costs and histories of choice, and plain-loop oracles
// of what quotas cost.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include <lrmoe/control/score_history.hpp>
#include <lrmoe/control/source_shares.hpp>
#include <lrmoe/control/variance_forecast.hpp>
#include <lrmoe/quota/quota.hpp>

#include "fixture.hpp"

namespace requests {

using counts_type = std::vector<lrmoe::index_type>;

/// Owns what a quota_request refers to.
struct problem {
  std::int64_t R = 1;
  counts_type source_counts;  // (R, E)
  counts_type home;           // (E)
  std::vector<lrmoe::rank_cost> ranks;
  lrmoe::pair_cost pair;
  std::uint64_t step = 0;
  lrmoe::score_history history{0.0};
  counts_type histogram;  // (E, bins) as recorded last

  counts_type counts{};
  lrmoe::variance_forecast forecast{};

  std::size_t E() const { return home.size(); }

  /// Refers to this object: keep it until the quotas are assigned.
  lrmoe::quota_request request() {
    ranks.resize(static_cast<std::size_t>(R));
    counts.assign(E(), 0);
    for (std::size_t i = 0; i < source_counts.size(); ++i) counts[i % E()] += source_counts[i];
    const bool known = !history.empty();
    if (known) forecast.update(history, counts);
    return {.step = step,
            .R = R,
            .E = static_cast<std::int64_t>(E()),
            .counts = counts,
            .source_counts = source_counts,
            .home = home,
            .ranks = ranks,
            .pair = pair,
            .forecast = known ? &forecast : nullptr};
  }

  template <class Policy>
  counts_type assigned(const Policy& policy) {
    policy.validate();
    const lrmoe::quota_request asked = request();
    // What is not written shows.
    counts_type quotas(E(), -77);
    policy.assign(asked, quotas);
    counts_type again(E(), -78);
    policy.assign(asked, again);
    CHECK(quotas == again);
    return quotas;
  }

  /// Let the history know how many pairs of each expert lie in which bin.
  void record(const counts_type& new_histogram) {
    histogram = new_histogram;
    history.record_sizes(histogram);
  }
};

/// Experts on one rank with these counts.
inline problem on_one_rank(const counts_type& counts) {
  return {.source_counts = counts,
          .home = counts_type(counts.size(), 0),
          .ranks = {},
          .pair = {},
          .histogram = {}};
}

/// Whether 0 <= q <= L, and q >= 1 wherever there are pairs.
inline bool lawful(const counts_type& quotas, const counts_type& counts) {
  for (std::size_t e = 0; e < counts.size(); ++e) {
    if (quotas[e] < std::min(counts[e], 1) || quotas[e] > counts[e]) return false;
  }
  return quotas.size() == counts.size();
}

inline std::int64_t sum(const counts_type& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

/// Random counts of R ranks and E experts at random home ranks; some experts and ranks have none.
inline problem random_problem(fixture::random& draw, std::int64_t R, std::int64_t E, int most) {
  problem made;
  made.R = R;
  for (std::int64_t e = 0; e < E; ++e) {
    made.home.push_back(static_cast<lrmoe::index_type>(draw.integer(0, R - 1)));
  }
  for (std::int64_t s = 0; s < R; ++s) {
    const bool idle = draw.integer(0, 9) == 0;
    for (std::int64_t e = 0; e < E; ++e) {
      const bool none = idle || draw.integer(0, 4) == 0;
      made.source_counts.push_back(none ? 0
                                        : static_cast<lrmoe::index_type>(draw.integer(0, most)));
    }
  }
  made.ranks.resize(static_cast<std::size_t>(R));
  return made;
}

/// Sizes of a trained model, heavy-tailed, some octaves apart between experts.
inline void record_random_sizes(fixture::random& draw, problem& of, int pairs = 200) {
  counts_type histogram(of.E() * lrmoe::size_bins::count, 0);
  for (std::size_t e = 0; e < of.E(); ++e) {
    const double scale = draw.uniform(-8, -2), width = draw.uniform(0.2, 3);
    for (int p = 0; p < pairs; ++p) {
      const double z = draw.uniform(-1, 1) + draw.uniform(-1, 1) + draw.uniform(-1, 1);
      const auto size = static_cast<float>(std::exp2(scale + width * z));
      ++histogram[e * lrmoe::size_bins::count +
                  static_cast<std::size_t>(lrmoe::size_bins::of(size))];
    }
  }
  of.record(histogram);
}

/// V_e(q) from the histogram that the history holds, by bisection for the threshold.
inline double added_variance(const problem& of, std::size_t e, double quota) {
  const double L = of.counts[e];
  if (quota >= L || L == 0) return 0;
  std::vector<double> sizes, pairs;
  double all = 0;
  for (int b = 0; b < lrmoe::size_bins::count; ++b) {
    const auto n = of.histogram[e * lrmoe::size_bins::count + static_cast<std::size_t>(b)];
    if (n == 0) continue;
    sizes.push_back(std::exp2(-48 + b / 4) * (1 + (b % 4 + 0.5) / 4));
    pairs.push_back(n);
    all += n;
  }
  for (double& n : pairs) n *= L / all;
  double low = 0, high = 1e30;
  for (int i = 0; i < 300; ++i) {
    const double tau = low == 0 ? high / 2 : std::sqrt(low * high);
    double kept = 0;
    for (std::size_t b = 0; b < sizes.size(); ++b) kept += pairs[b] * std::min(1.0, sizes[b] / tau);
    if (kept > quota) {
      low = tau;
    } else {
      high = tau;
    }
    if (low == 0 && high < 1e-30) break;
  }
  double variance = 0;
  for (std::size_t b = 0; b < sizes.size(); ++b) {
    if (sizes[b] < high) variance += pairs[b] * sizes[b] * (high - sizes[b]);
  }
  return variance;
}

/// S: sum of scores of all pairs.
inline double score_total(const problem& of) {
  double total = 0;
  for (std::size_t e = 0; e < of.E(); ++e) {
    double all = 0, scores = 0;
    for (int b = 0; b < lrmoe::size_bins::count; ++b) {
      const auto n = of.histogram[e * lrmoe::size_bins::count + static_cast<std::size_t>(b)];
      const double size = std::exp2(-48 + b / 4) * (1 + (b % 4 + 0.5) / 4);
      all += n;
      scores += n * size * size;
    }
    if (all > 0) total += of.counts[e] * scores / all;
  }
  return total;
}

/// Time of every rank with these quotas, with whole shares of sources or in proportion to counts.
inline std::vector<double> times(const problem& of, const counts_type& quotas, bool whole_shares) {
  const auto E = static_cast<std::int64_t>(of.E());
  counts_type shares(of.source_counts.size());
  lrmoe::split_by_source(of.R, E, of.source_counts, quotas, shares);
  std::vector<double> result;
  for (std::int64_t r = 0; r < of.R; ++r) {
    double computed = 0, remote = 0;
    for (std::int64_t s = 0; s < of.R; ++s) {
      for (std::int64_t e = 0; e < E; ++e) {
        const auto i = static_cast<std::size_t>(s * E + e);
        const auto ee = static_cast<std::size_t>(e);
        double share = shares[i];
        if (!whole_shares) {
          share = of.counts[ee] == 0
                      ? 0.0
                      : static_cast<double>(quotas[ee]) * of.source_counts[i] / of.counts[ee];
        }
        const bool mine = of.home[ee] == r;
        if (mine) computed += share;
        if (mine != (s == r)) remote += share;
      }
    }
    const auto& cost = of.ranks[static_cast<std::size_t>(r)];
    result.push_back(cost.fixed_s + of.pair.s * computed + of.pair.remote_s * remote);
  }
  return result;
}

/// Calls visit(quotas) for all whole quotas with min(1, L) <= q <= L.
inline void for_all_quotas(const counts_type& most,
                           const std::function<void(const counts_type&)>& visit) {
  counts_type quotas;
  for (const auto n : most) quotas.push_back(std::min(n, 1));
  for (;;) {
    visit(quotas);
    std::size_t e = 0;
    while (e < quotas.size() && quotas[e] == most[e]) {
      quotas[e] = std::min(most[e], 1);
      ++e;
    }
    if (e == quotas.size()) return;
    ++quotas[e];
  }
}

}  // namespace requests
