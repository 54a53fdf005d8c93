// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <lrmoe/control/score_history.hpp>
#include <lrmoe/types.hpp>

namespace lrmoe {

/// What quotas will add to the variance of dW_down, before any score of this call is known: the counts
/// of this call, spread over sizes a = sqrt(score) as in earlier calls. With threshold tau, pps keeps
/// a pair with probability min(1, a / tau), so that of expert e
///   q_e(tau) = sum min(1, a / tau)         pairs are kept,
///   V_e(tau) = sum_{a < tau} a (tau - a)   is added to an expected squared norm of
///   S_e      = sum a^2.
/// Seen as a function of the quota, V_e is convex and falls, dV_e / dq = -tau^2: the same threshold
/// for all experts spends a total best (Neyman 1934).
/// Every pair of a bin counts with the bin's middle, which is at most 12.5 % off. An expert without
/// history counts with the mean shares of the experts that have some.
///
/// Between two sizes in use, V_e(q) = A^2 / (q - N) - Q with N pairs above, and sums A of a and Q of
/// a^2 below the threshold: all questions are answered from these three sums at every size in use.
/// Storage is kept from call to call, so nothing is allocated once sizes were seen.
class variance_forecast {
 public:
  /// Sums at one size in use.
  struct step {
    double above;   ///< N: pairs larger than this
    double first;   ///< A: sum of sizes up to this one
    double second;  ///< Q: sum of their squares
    float size;     ///< a; a float holds the middles of bins exactly
    float kept;     ///< q_e(tau = size), to find steps by; falls from step to step
  };

  /// Forecast for these counts, (E). Throws argument_error when the history is empty or of another E.
  void update(const score_history& history, std::span<const index_type> counts) {
    const std::size_t E = counts.size();
    require(!history.empty() && history.E() == static_cast<std::int64_t>(E),
            "variance_forecast: the history holds ", history.empty() ? 0 : history.E(),
            " experts, the counts ", E, ": record sizes of this layer first");
    correction_ = history.noise_correction();
    begin_.resize(E + 1);
    pairs_in_bin_.fill(0.0);
    score_total_ = 0;
    const std::span<const double> sizes = size_bins::middles();
    const std::span<const double> inverse = inverse_middles();
    bool have_mean = false;
    std::size_t written = 0;
    for (std::size_t e = 0; e < E; ++e) {
      begin_[e] = written;
      if (counts[e] == 0) continue;
      const auto expert = static_cast<std::int64_t>(e);
      const bool known = history.knows(expert);
      if (!known && !have_mean) {
        average(history);
        have_mean = true;
      }
      const std::span<const float> shares = known ? history.shares(expert) : mean_shares_;
      const auto used =
          known ? history.bins_in_use(expert) : score_history::bin_range{0, size_bins::count};
      const auto first_bin = static_cast<std::size_t>(used.begin);
      const auto end_bin = static_cast<std::size_t>(used.end);
      // Grows while sizes are new, and is never cut.
      if (steps_.size() < written + (end_bin - first_bin)) {
        steps_.resize(std::max(2 * steps_.size(), written + (end_bin - first_bin)));
      }
      const double scale = counts[e] / sum_of(shares.subspan(first_bin, end_bin - first_bin));
      double above = counts[e], first = 0, second = 0;
      step* const begin = &steps_[written];
      step* next = begin;
      for (std::size_t b = first_bin; b < end_bin; ++b) {
        if (shares[b] == 0.0F) continue;
        const double pairs = scale * shares[b], size = sizes[b];
        pairs_in_bin_[b] += pairs;
        above -= pairs;
        first += pairs * size;
        second += pairs * size * size;
        *next++ = {.above = std::max(above, 0.0),
                   .first = first,
                   .second = second,
                   .size = static_cast<float>(size),
                   .kept = static_cast<float>(above + first * inverse[b])};
      }
      begin->kept = static_cast<float>(counts[e]);  // all, without rounding
      (next - 1)->above = 0;
      written = static_cast<std::size_t>(next - steps_.data());
      score_total_ += second;
    }
    begin_[E] = written;
  }

  std::int64_t E() const { return static_cast<std::int64_t>(begin_.size()) - 1; }

  /// Steps of one expert, ascending by size; none without pairs.
  std::span<const step> steps(std::int64_t e) const {
    const auto i = static_cast<std::size_t>(e);
    return std::span(steps_).subspan(begin_[i], begin_[i + 1] - begin_[i]);
  }

  /// S: sum over all pairs of score.
  double score_total() const { return score_total_; }
  /// S_e.
  double score(std::int64_t e) const { return steps(e).empty() ? 0.0 : steps(e).back().second; }

  /// q_e(tau), for tau > 0.
  double kept(std::int64_t e, double tau) const {
    const step* below = last_below(e, tau);
    if (below != nullptr) return below->above + below->first / tau;
    if (steps(e).empty()) return 0.0;
    const step& all = steps(e).front();
    return all.above + all.first / all.size;
  }
  /// V_e(tau).
  double added_variance_at(std::int64_t e, double tau) const {
    const step* below = last_below(e, tau);
    return below == nullptr ? 0.0 : below->first * tau - below->second;
  }
  /// V_e(q): infinite for a quota of 0 when the expert has pairs.
  double added_variance(std::int64_t e, double quota) const {
    const auto all = steps(e);
    // The last size that is kept with a probability below 1.
    const step* const last = last_of(all, [quota](const step& s) { return s.kept > quota; });
    if (last == nullptr) return 0.0;
    if (quota <= 0.0) return std::numeric_limits<double>::infinity();
    return added_variance_after(*last, quota);
  }

  /// Of expert e with L > 0 pairs: what it keeps at tau in whole pairs, at least one, and a pair more if
  /// that gains more than tau^2.
  index_type whole_quota(std::int64_t e, double tau, index_type L) const {
    const step* const below = last_below(e, tau);
    if (below == nullptr) return L;
    const auto q = static_cast<index_type>(
        std::clamp(below->above + below->first / tau, 1.0, static_cast<double>(L)));
    if (q == L) return q;
    const double gain = added_variance_near(e, below, q) - added_variance_near(e, below, q + 1);
    return gain > tau * tau ? q + 1 : q;
  }

  /// V of all experts with these quotas, (E), over S; 0 without pairs.
  double noise_ratio(std::span<const index_type> quotas) const {
    if (!(score_total_ > 0.0)) return 0.0;
    double sum = 0;
    for (std::size_t e = 0; e < quotas.size(); ++e) {
      sum += added_variance(static_cast<std::int64_t>(e), quotas[e]);
    }
    return sum / score_total_;
  }

  /// The threshold common to all experts at which V is this much, > 0.
  double common_threshold(double variance) const {
    const std::span<const double> sizes = size_bins::middles();
    double first = 0, second = 0;
    for (std::size_t b = 0; b < pairs_in_bin_.size(); ++b) {
      if (first > 0.0 && first * sizes[b] - second >= variance) break;
      first += pairs_in_bin_[b] * sizes[b];
      second += pairs_in_bin_[b] * sizes[b] * sizes[b];
    }
    return first > 0.0 ? (variance + second) / first : sizes.front();
  }

  /// The threshold common to all experts at which so many pairs are kept; 0 when all are.
  double threshold_keeping(double pairs) const {
    const std::span<const double> sizes = size_bins::middles();
    double above = 0, first = 0;
    for (const double n : pairs_in_bin_) above += n;
    if (pairs >= above) return 0.0;
    for (std::size_t b = 0; b < pairs_in_bin_.size(); ++b) {
      // With the threshold at this size or above, N + A / tau are kept.
      if (first > 0.0 && above + first / sizes[b] <= pairs) break;
      above -= pairs_in_bin_[b];
      first += pairs_in_bin_[b] * sizes[b];
    }
    return first / std::max(pairs - above, std::numeric_limits<double>::min());
  }

  /// What forecasts of this history err by: true noise over forecast noise of late.
  double noise_correction() const { return correction_; }

 private:
  /// In fixed partial sums, which do not wait for each other.
  static double sum_of(std::span<const float> values) {
    double sums[4] = {};
    std::size_t i = 0;
    for (; i + 4 <= values.size(); i += 4) {
      for (std::size_t k = 0; k < 4; ++k) sums[k] += values[i + k];
    }
    for (; i < values.size(); ++i) sums[0] += values[i];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }

  void average(const score_history& history) {
    mean_shares_.fill(0.0F);
    for (std::int64_t e = 0; e < history.E(); ++e) {
      if (!history.knows(e)) continue;
      const auto shares = history.shares(e);
      for (std::size_t b = 0; b < mean_shares_.size(); ++b) mean_shares_[b] += shares[b];
    }
  }

  const step* last_below(std::int64_t e, double tau) const {
    return last_of(steps(e), [tau](const step& s) { return s.size < tau; });
  }

  /// V_e(q) when the last size that is kept with a probability below 1 is this one.
  static double added_variance_after(const step& s, double quota) {
    return std::max(s.first / (quota - s.above) * s.first - s.second, 0.0);
  }

  /// V_e(q), found from a step close to it, for q > 0.
  double added_variance_near(std::int64_t e, const step* near, double quota) const {
    const auto all = steps(e);
    auto i = static_cast<std::size_t>(near - all.data());
    while (i + 1 < all.size() && all[i + 1].kept > quota) ++i;
    while (i > 0 && !(all[i].kept > quota)) --i;
    return all[i].kept > quota ? added_variance_after(all[i], quota) : 0.0;
  }

  /// The last of the leading steps that pass, or null. A bisection without branches, as no processor
  /// could foresee them.
  template <class Passes>
  static const step* last_of(std::span<const step> all, const Passes& passes) {
    if (all.empty()) return nullptr;
    const step* at = all.data();
    for (std::size_t left = all.size(); left > 1;) {
      const std::size_t half = left / 2;
      at += half * static_cast<std::size_t>(passes(at[half]));
      left -= half;
    }
    return passes(*at) ? at : nullptr;
  }

  static const std::array<double, size_bins::count>& inverse_middles() {
    static const auto table = [] {
      auto values = size_bins::middles();
      for (double& value : values) value = 1.0 / value;
      return values;
    }();
    return table;
  }

  std::vector<step> steps_;                              // of expert e: [begin_[e], begin_[e+1])
  std::vector<std::size_t> begin_;                       // (E+1)
  std::array<double, size_bins::count> pairs_in_bin_{};  // of all experts
  std::array<float, size_bins::count> mean_shares_{};    // up to a factor
  double score_total_ = 0;
  double correction_ = 1;
};

}  // namespace lrmoe
