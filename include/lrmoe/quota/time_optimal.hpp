// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include <lrmoe/quota/experts_of_ranks.hpp>

namespace lrmoe {

/// The quotas with which training takes least time: steps are shorter, but noise makes more of them
/// necessary (McCandlish et al. 2018, An Empirical Model of Large-Batch Training):
///   minimise (1 + a V / S) max_r t_r
///   t_r = fixed_s[r] + s kept_r + remote_s remote_r
/// kept_r are the kept pairs that rank r computes; remote_r those of them that other ranks route plus
/// those that r routes and others compute. V is the forecast times what forecasts of this history
/// erred by. a is the share of gradient noise in the steps needed: 1 at worst,
/// B_noise / (B + B_noise) with a measured noise scale B_noise for batch B.
///
/// Method    Where the time of computing ranks is bounded by t, V is least with one threshold on each
///           rank, tau_r = max(tau, tau_r(t)): a rank that is in time anyway uses the common tau, any
///           other the one that makes it take t. Candidates are `thresholds` values of tau, spread
///           evenly in log tau from keeping all to one pair of each expert, and `bounds` values of t,
///           spread likewise. The best t is sought with every pair of ranks in time kept, then the
///           best tau with it (which only links gain from), the same in the other order, both in every
///           second candidate, and then both near the better one in turns. In this search, what a rank
///           sends falls in proportion to all remote pairs. Whole pairs: an expert keeps a pair that
///           gains more than tau_r^2; without link time a rank then keeps what more it has time for, and
///           pairs more or less are tried on the slowest ranks. The result is compared with keeping
///           every pair, so by its own forecast this never loses to it.
/// Numerics  without link time within 2 % of the optimum over all quotas; with it within about 10 %, as
///           ranks that send unlike shares of their pairs are not told apart (tests enumerate all
///           quotas of 3 experts with 20 to 60 pairs on 2 ranks)
/// Cost      O(E thresholds + R (thresholds + bounds)), and O(R E) with links
/// Throws    argument_error when no times are known
/// Without a forecast every pair is kept.
struct time_optimal {
  double noise_weight = 1;  ///< a, in [0, 1]

  static constexpr int thresholds = 24;
  static constexpr int bounds = 16;

  void validate() const {
    require(noise_weight >= 0.0 && noise_weight <= 1.0,
            "time_optimal: noise_weight = ", noise_weight,
            " is outside [0, 1]: 1 is the worst case");
  }

  static constexpr bool uses_history() { return true; }

  void assign(const quota_request& request, std::span<index_type> quotas) const {
    check_costs(request);
    std::copy(request.counts.begin(), request.counts.end(), quotas.begin());
    if (request.forecast == nullptr || !(request.forecast->score_total() > 0.0)) return;
    const auto R = static_cast<std::size_t>(request.R);
    const std::span<double> time = detail::scratch<struct exact_tag, double>(R);
    const std::span<float> sends = detail::scratch<struct sends_tag, float>(R);
    computing_times(request, quotas, time);
    send_everything(request, sends);
    for (std::size_t r = 0; r < R; ++r) time[r] += sends[r];
    const double exact = *std::max_element(time.begin(), time.end());
    search(request, sends, quotas);
    if (objective(request, quotas) < exact) return;
    std::copy(request.counts.begin(), request.counts.end(), quotas.begin());
  }

  /// (1 + a V / S) max_r t_r of some quotas, sources in proportion to their pairs. Needs a forecast.
  double objective(const quota_request& request, std::span<const index_type> quotas) const {
    const std::span<double> time =
        detail::scratch<struct time_tag, double>(static_cast<std::size_t>(request.R));
    times(request, quotas, time);
    return (1.0 + noise_factor(request) * request.forecast->noise_ratio(quotas)) *
           *std::max_element(time.begin(), time.end());
  }

 private:
  /// Ranks are padded to whole groups, whose sums a compiler may keep side by side.
  static constexpr std::size_t lanes = 8;

  /// Sums of every rank at some candidates: (candidates, R padded), zero in the padding.
  struct rank_sums {
    float* time;      ///< fixed, its pairs, and their way from other ranks
    float* remote;    ///< kept pairs that come from other ranks
    float* variance;  ///< V
    float* position;  ///< of bounds: how far along the thresholds the rank has to go to be in time
  };

  static void check_costs(const quota_request& request) {
    const auto is_time = [](double s) { return s >= 0.0 && std::isfinite(s); };
    const pair_cost& pair = request.pair;
    require(is_time(pair.s) && is_time(pair.remote_s), "time_optimal: a kept pair takes ", pair.s,
            " s and ", pair.remote_s, " s on links: times must be finite and not negative");
    double known = pair.s;
    for (const rank_cost& rank : request.ranks) {
      require(is_time(rank.fixed_s), "time_optimal: a rank takes ", rank.fixed_s,
              " s without kept pairs: times must be finite and not negative");
      known += rank.fixed_s;
    }
    require(
        known > 0.0, "time_optimal: no times are known, fixed_s and s are 0: calibrate this ",
        "machine, or pass relative costs (fixed_s = pairs of the rank, s = 2: forward has 1 part ",
        "of the products, backward 2)");
  }

  double noise_factor(const quota_request& request) const {
    return noise_weight * request.forecast->noise_correction();
  }

  static double remote_share(const quota_request& request, std::size_t e) {
    const auto home = static_cast<std::size_t>(request.home[e]);
    const double L = request.counts[e];
    return L == 0 ? 0.0 : (L - request.source_counts[home * request.counts.size() + e]) / L;
  }

  /// Without what ranks send.
  static void computing_times(const quota_request& request, std::span<const index_type> quotas,
                              std::span<double> time) {
    const pair_cost& pair = request.pair;
    for (std::size_t r = 0; r < time.size(); ++r) time[r] = request.ranks[r].fixed_s;
    for (std::size_t e = 0; e < quotas.size(); ++e) {
      time[static_cast<std::size_t>(request.home[e])] +=
          quotas[e] * (pair.s + pair.remote_s * remote_share(request, e));
    }
  }

  static void times(const quota_request& request, std::span<const index_type> quotas,
                    std::span<double> time) {
    computing_times(request, quotas, time);
    const std::size_t E = quotas.size();
    const pair_cost& pair = request.pair;
    if (pair.remote_s == 0.0) return;
    const std::span<float> fraction = detail::scratch<struct fraction_tag, float>(E);
    for (std::size_t e = 0; e < E; ++e) {
      fraction[e] = request.counts[e] == 0
                        ? 0.0F
                        : static_cast<float>(quotas[e]) / static_cast<float>(request.counts[e]);
    }
    for (std::size_t r = 0; r < time.size(); ++r) {
      time[r] += pair.remote_s * sent(request, r, fraction);
    }
  }

  /// Pairs that rank r routes and others compute, times the fraction kept of each expert's. In eight
  /// fixed partial sums, which a compiler may compute side by side.
  static double sent(const quota_request& request, std::size_t r, std::span<const float> fraction) {
    const std::size_t E = fraction.size();
    const index_type* const n = &request.source_counts[r * E];
    const auto self = static_cast<index_type>(r);
    float sums[8] = {};
    std::size_t e = 0;
    for (; e + 8 <= E; e += 8) {
      for (std::size_t i = 0; i < 8; ++i) {
        const index_type pairs = request.home[e + i] == self ? 0 : n[e + i];
        sums[i] += static_cast<float>(pairs) * fraction[e + i];
      }
    }
    double sum = 0;
    for (; e < E; ++e) sum += request.home[e] == self ? 0.0 : double(n[e]) * fraction[e];
    for (const float part : sums) sum += part;
    return sum;
  }

  /// Time that every rank spends on sending pairs to others, were all kept.
  static void send_everything(const quota_request& request, std::span<float> sends) {
    std::fill(sends.begin(), sends.end(), 0.0F);
    if (request.pair.remote_s == 0.0) return;
    const std::span<float> whole = detail::scratch<struct whole_tag, float>(request.counts.size());
    std::fill(whole.begin(), whole.end(), 1.0F);
    for (std::size_t r = 0; r < sends.size(); ++r) {
      sends[r] = static_cast<float>(request.pair.remote_s * sent(request, r, whole));
    }
  }

  void search(const quota_request& request, std::span<const float> all_sends,
              std::span<index_type> quotas) const {
    const auto R = static_cast<std::size_t>(request.R);
    const std::size_t E = quotas.size();
    const std::size_t padded = (R + lanes - 1) / lanes * lanes;
    // Columns, too, spread over the cache, which powers of two in bytes would not.
    const std::size_t stride = padded + lanes;
    const variance_forecast& forecast = *request.forecast;
    const detail::experts_of_ranks experts(request);

    double least = std::numeric_limits<double>::max(), most = 0;
    for (std::size_t e = 0; e < E; ++e) {
      const auto steps = forecast.steps(static_cast<std::int64_t>(e));
      if (steps.empty()) continue;
      least = std::min<double>(least, steps.front().size);
      most = std::max(most, steps.back().first);
    }
    double grid[thresholds], inverse[thresholds], bound[bounds];
    spread(least, most, grid);
    int bins[thresholds];  // sizes below each threshold are those of lower bins
    for (int j = 0; j < thresholds; ++j) {
      inverse[j] = 1.0 / grid[j];
      bins[j] = size_bins::of(static_cast<float>(grid[j]));
      if (size_bins::middle(bins[j]) < grid[j]) ++bins[j];
    }

    const std::span<float> storage =
        detail::scratch<struct table_tag, float>(stride * (3 * thresholds + 4 * bounds + 1));
    std::fill(storage.begin(), storage.end(), 0.0F);
    float* next = storage.data();
    const auto take = [&](int candidates) {
      float* const taken = next;
      next += static_cast<std::size_t>(candidates) * stride;
      return taken;
    };
    const rank_sums at{take(thresholds), take(thresholds), take(thresholds), nullptr};
    const rank_sums late{take(bounds), take(bounds), take(bounds), take(bounds)};
    float* const sends = take(1);
    std::copy(all_sends.begin(), all_sends.end(), sends);

    // Every rank's sums at every threshold.
    const std::span<double> rows = detail::scratch<struct rows_tag, double>(3 * R * thresholds);
    std::fill(rows.begin(), rows.end(), 0.0);
    double highest = 0, lowest = 0, all_remote = 0;
    for (std::size_t r = 0; r < R; ++r) {
      double* const time = &rows[3 * r * thresholds];
      std::fill_n(time, thresholds, request.ranks[r].fixed_s);
      for (const std::size_t e : experts.of(static_cast<std::int64_t>(r))) {
        tabulate(request, e, grid, inverse, bins, time);
      }
      highest = std::max(highest, time[0]);
      lowest = std::max(lowest, time[thresholds - 1]);
      all_remote += time[thresholds];
    }
    spread(highest, lowest, bound);
    const double relative = 1.0 / forecast.score_total();
    for (std::size_t r = 0; r < R; ++r) {
      const double* const time = &rows[3 * r * thresholds];
      const double *const remote = time + thresholds, *const variance = remote + thresholds;
      for (std::size_t j = 0; j < thresholds; ++j) {
        at.time[j * stride + r] = static_cast<float>(time[j]);
        at.remote[j * stride + r] = static_cast<float>(remote[j]);
        at.variance[j * stride + r] = static_cast<float>(variance[j] * relative);
      }
      std::size_t j = 0;  // the first threshold that is in time
      for (std::size_t i = 0; i < bounds; ++i) {
        while (j < thresholds && time[j] > bound[i]) ++j;
        const std::size_t to = std::min<std::size_t>(j, thresholds - 1), from = j == 0 ? 0 : j - 1;
        const double part = to == from ? 0.0 : (time[from] - bound[i]) / (time[from] - time[to]);
        const auto between = [&](const double* row) {
          return row[from] + part * (row[to] - row[from]);
        };
        late.time[i * stride + r] = static_cast<float>(between(time));
        late.remote[i * stride + r] = static_cast<float>(between(remote));
        late.variance[i * stride + r] = static_cast<float>(between(variance) * relative);
        late.position[i * stride + r] = static_cast<float>(static_cast<double>(from) + part);
      }
    }
    const bool linked = request.pair.remote_s > 0.0;

    // Objective with common threshold j and bound i on the time of computing ranks.
    const double factor = noise_factor(request);
    const auto evaluate = [&](int j, int i) {
      const auto jj = static_cast<std::size_t>(j) * stride,
                 ii = static_cast<std::size_t>(i) * stride;
      const auto here = static_cast<float>(j);
      float variance[lanes] = {}, remote[lanes] = {}, slowest[lanes] = {};
      for (std::size_t r = 0; r < padded; r += lanes) {
        for (std::size_t k = 0; k < lanes; ++k) {
          const std::size_t a = jj + r + k, b = ii + r + k;
          const bool is_late = late.position[b] > here;
          const float v = at.variance[a], w = late.variance[b];
          const float m = at.remote[a], n = late.remote[b];
          variance[k] += is_late ? w : v;
          remote[k] += is_late ? n : m;
        }
      }
      double noise = 0, far = 0;
      for (std::size_t k = 0; k < lanes; ++k) {
        noise += variance[k];
        far += remote[k];
      }
      const auto sending = static_cast<float>(all_remote > 0.0 ? far / all_remote : 0.0);
      for (std::size_t r = 0; r < padded; r += lanes) {
        for (std::size_t k = 0; k < lanes; ++k) {
          const std::size_t a = jj + r + k, b = ii + r + k;
          const float t = at.time[a], u = late.time[b];
          const float now = (late.position[b] > here ? u : t) + sending * sends[r + k];
          slowest[k] = slowest[k] > now ? slowest[k] : now;
        }
      }
      return (1.0 + factor * noise) * *std::max_element(slowest, slowest + lanes);
    };

    struct candidate {
      int j, i;
      double value;
    };
    const auto search_thresholds = [&](candidate best, int begin, int end, int step = 1) {
      const int i = best.i;
      for (int j = std::max(begin, 0); j < std::min(end, thresholds); j += step) {
        const double value = evaluate(j, i);
        if (value < best.value) best = {j, i, value};
      }
      return best;
    };
    const auto search_bounds = [&](candidate best, int begin, int end, int step = 1) {
      const int j = best.j;
      for (int i = std::max(begin, 0); i < std::min(end, bounds); i += step) {
        const double value = evaluate(j, i);
        if (value < best.value) best = {j, i, value};
      }
      return best;
    };
    const candidate start{0, 0, evaluate(0, 0)};
    candidate best = search_bounds(start, 0, bounds);
    // Only links gain from pairs of ranks that are in time anyway.
    if (linked) {
      best = search_thresholds(best, 0, thresholds, 2);
      const candidate other =
          search_bounds(search_thresholds(start, 0, thresholds, 2), 0, bounds, 2);
      if (other.value < best.value) best = other;
      for (double before = 0; before != best.value;) {
        before = best.value;
        best = search_bounds(best, best.i - 4, best.i + 5);
        best = search_thresholds(best, best.j - 4, best.j + 5);
      }
    }

    // Whole pairs.
    for (std::size_t r = 0; r < R; ++r) {
      const double position = late.position[static_cast<std::size_t>(best.i) * stride + r];
      const double tau = threshold_at(grid, std::max(position, static_cast<double>(best.j)));
      for (const std::size_t e : experts.of(static_cast<std::int64_t>(r))) {
        const index_type L = request.counts[e];
        if (L == 0) continue;
        quotas[e] = forecast.whole_quota(static_cast<std::int64_t>(e), tau, L);
      }
    }
    if (!linked && request.pair.s > 0.0) settle(request, experts, quotas);
  }

  /// Values from first to last, evenly in their logarithms.
  template <std::size_t N>
  static void spread(double first, double last, double (&values)[N]) {
    const double ratio = std::pow(last / first, 1.0 / (N - 1));
    values[0] = first;
    for (std::size_t i = 1; i < N; ++i) values[i] = values[i - 1] * ratio;
    values[N - 1] = last;
  }

  /// Add an expert's sums at every threshold to its rank's: time, remote pairs and V, one row after
  /// the other. It keeps at least one pair.
  static void tabulate(const quota_request& request, std::size_t e,
                       const double (&grid)[thresholds], const double (&inverse)[thresholds],
                       const int (&bins)[thresholds], double* time) {
    const auto expert = static_cast<std::int64_t>(e);
    const auto steps = request.forecast->steps(expert);
    if (steps.empty()) return;
    double *const remote = time + thresholds, *const variance = remote + thresholds;
    const double share = remote_share(request, e);
    const double pair_s = request.pair.s + request.pair.remote_s * share;
    const auto add = [&](int j, double kept, double added) {
      time[j] += kept * pair_s;
      remote[j] += kept * share;
      variance[j] += added;
    };
    int j = 0;
    for (; j < thresholds && grid[j] <= steps.front().size; ++j) add(j, steps.front().kept, 0.0);
    // The largest threshold that keeps a pair: with it, all sizes of an expert of many are below.
    const double last = std::max<double>(steps.back().first, steps.back().size);
    // The last size below each threshold: as many steps on as there are bins between, where all of them
    // are in use, and else less far.
    int bin = size_bins::of(steps.front().size);
    std::size_t i = 0;
    for (; j < thresholds && grid[j] <= last; ++j) {
      i = std::min(i + static_cast<std::size_t>(bins[j] - 1 - bin), steps.size() - 1);
      bin = bins[j] - 1;
      while (!(steps[i].size < grid[j])) --i;
      const auto& step = steps[i];
      add(j, step.above + step.first * inverse[j], step.first * grid[j] - step.second);
    }
    if (j == thresholds) return;
    const double one = request.forecast->added_variance(expert, 1.0);
    for (; j < thresholds; ++j) add(j, 1.0, one);
  }

  /// Pairs kept, and with them times, are linear in 1 / tau between two sizes.
  static double threshold_at(const double (&grid)[thresholds], double position) {
    const auto i = static_cast<std::size_t>(position);
    const double part = position - static_cast<double>(i);
    return part == 0.0 ? grid[i]
                       : 1.0 / (1.0 / grid[i] + part * (1.0 / grid[i + 1] - 1.0 / grid[i]));
  }

  static double gain(const variance_forecast& forecast, std::size_t e, index_type q) {
    const auto expert = static_cast<std::int64_t>(e);
    return forecast.added_variance(expert, q) - forecast.added_variance(expert, q + 1);
  }

  /// Without link time: let every rank keep what it has time for while the slowest works; then see
  /// whether a pair less, or a pair more, on all of the slowest ranks is better, and again.
  void settle(const quota_request& request, const detail::experts_of_ranks& experts,
              std::span<index_type> quotas) const {
    const auto R = static_cast<std::size_t>(request.R);
    const std::size_t none = quotas.size();
    const variance_forecast& forecast = *request.forecast;
    const double s = request.pair.s;
    const std::span<double> time = detail::scratch<struct settle_tag, double>(R);
    times(request, quotas, time);
    double slowest = *std::max_element(time.begin(), time.end());

    // Of rank r's experts the one whose next pair gains most, or whose last one gains least.
    double change = 0;
    const auto best_to_give = [&](std::size_t r) {
      std::size_t best = none;
      for (const std::size_t e : experts.of(static_cast<std::int64_t>(r))) {
        if (quotas[e] == request.counts[e]) continue;
        const double here = gain(forecast, e, quotas[e]);
        if (best == none || here > change) best = e, change = here;
      }
      return best;
    };
    const auto best_to_take = [&](std::size_t r) {
      std::size_t best = none;
      for (const std::size_t e : experts.of(static_cast<std::int64_t>(r))) {
        if (quotas[e] <= 1) continue;
        const double here = gain(forecast, e, quotas[e] - 1);
        if (best == none || here < change) best = e, change = here;
      }
      return best;
    };
    for (std::size_t r = 0; r < R; ++r) {
      while (time[r] + s <= slowest) {
        const std::size_t e = best_to_give(r);
        if (e == none) break;
        ++quotas[e];
        time[r] += s;
      }
    }

    const double factor = noise_factor(request);
    double noise = forecast.noise_ratio(quotas);
    const std::span<std::size_t> changed = detail::scratch<struct changed_tag, std::size_t>(R);
    // Of all ranks within a pair of the slowest at once, then of the very slowest.
    for (const double reach : {s, 0.0}) {
      for (const index_type step : {-1, 1}) {
        bool better = true;
        for (std::size_t turn = 0; better && turn < 2 * R; ++turn) {
          double limit = slowest + s;
          if (step > 0 && reach == 0.0) {
            // The least time in which some rank keeps a pair more.
            for (std::size_t r = 0; r < R; ++r) {
              if (time[r] + s < limit && best_to_give(r) != none) limit = time[r] + s;
            }
          }
          std::size_t count = 0;
          double new_noise = noise, new_slowest = 0;
          for (std::size_t r = 0; r < R; ++r) {
            double now = time[r];
            if (step > 0 ? now + s <= limit : now > slowest - reach || now == slowest) {
              const std::size_t e = step > 0 ? best_to_give(r) : best_to_take(r);
              if (e != none) {
                changed[count++] = e;
                new_noise -= step * change / forecast.score_total();
                now += step * s;
              }
            }
            new_slowest = std::max(new_slowest, now);
          }
          better = count > 0 &&
                   (1.0 + factor * new_noise) * new_slowest < (1.0 + factor * noise) * slowest;
          if (!better) continue;
          for (const std::size_t e : changed.first(count)) {
            quotas[e] += step;
            time[static_cast<std::size_t>(request.home[e])] += step * s;
          }
          noise = new_noise;
          slowest = new_slowest;
        }
      }
    }
  }
};

}  // namespace lrmoe
