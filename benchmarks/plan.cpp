// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// lrmoe_bench_plan: times the controller, from the counts of all ranks to quotas and their shares, and
// the rebalancer, from kept pairs of replicas to moves, on one core.
// Exit code: 0 measured, 1 error or a plan that breaks its laws, 2 bad usage.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include <lrmoe/control/controller.hpp>
#include <lrmoe/quota/annealed.hpp>
#include <lrmoe/quota/error_bounded.hpp>
#include <lrmoe/quota/memory_network.hpp>
#include <lrmoe/quota/peak_capped.hpp>
#include <lrmoe/quota/shared_threshold.hpp>
#include <lrmoe/quota/tile_rounded.hpp>
#include <lrmoe/quota/time_optimal.hpp>
#include <lrmoe/quota/with_floor.hpp>
#include <lrmoe/rebalance/rebalance.hpp>
#include <lrmoe/rebalance/rebalance_certificate.hpp>
#include <lrmoe/version.hpp>

#include "support/harness.hpp"
#include "support/results.hpp"
#include "support/skew.hpp"

namespace {

using bench::json;
using lrmoe::index_type;

struct options {
  std::int64_t ranks = 64;
  std::int64_t experts = 128;
  std::int64_t top_k = 8;
  std::int64_t tokens = 4096;
  std::int64_t slots = 4;
  std::int64_t matrices = 1000;
  std::uint64_t seed = 1;
  std::string json_file;

  std::string path() const { return fmt::format("R={}/E={}", ranks, experts); }
};

void declare_options(CLI::App& app, options& o) {
  app.description(
      "Times the controller on one core: from the counts of all ranks to the plan of one layer "
      "call,\n"
      "for every quota policy and for count matrices of five families: uniform; zipf0.6 and "
      "zipf1.2\n"
      "with another ranking in each matrix; one_hot, where every token picks the same expert; "
      "drifting,\n"
      "zipf0.6 whose ranking changes a little from matrix to matrix. Policies take turns on each "
      "matrix.\n"
      "Then times the rebalancer on the pairs that error_bounded keeps, on replicas of the experts "
      "that\n"
      "had most pairs in this matrix or in the one before of the family, in turns.");
  app.set_version_flag("--version", "lrmoe_bench_plan " LRMOE_VERSION_STRING);
  app.option_defaults()->always_capture_default();
  app.get_formatter()->column_width(32);
  const auto count = [&](const std::string& flag, std::int64_t& value, const std::string& text) {
    return app.add_option(flag, value, text)
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
        ->type_name("INT");
  };
  count("--ranks", o.ranks, "ranks R");
  count("--experts", o.experts, "experts E");
  count("--top-k", o.top_k, "experts K of a token, at most --experts");
  count("--tokens", o.tokens, "tokens T of each rank");
  count("--slots", o.slots, "slots of each rank; experts with most pairs fill those left over");
  count("--matrices", o.matrices, "count matrices of all families together");
  app.add_option("--seed", o.seed, "of the random counts and sizes")->type_name("INT");
  app.add_option("--json", o.json_file, "also write the results to this file")->type_name("FILE");
  app.add_flag_callback(
         "--quick",
         [&o]() {
           o.ranks = 8;
           o.experts = 16;
           o.top_k = 2;
           o.tokens = 512;
           o.matrices = 25;
         },
         "a few small matrices, to see that everything works; other flags override it")
      ->trigger_on_parse();
}

std::string conflict(const options& o) {
  if (o.top_k > o.experts) {
    return fmt::format(
        "--top-k {} is more than --experts {}: a token cannot choose an expert twice", o.top_k,
        o.experts);
  }
  if (o.ranks * o.slots < o.experts) {
    return fmt::format("--ranks {} times --slots {} cannot hold --experts {}", o.ranks, o.slots,
                       o.experts);
  }
  if (o.ranks * o.slots > std::int64_t{1} << 20) {
    return fmt::format("--ranks {} times --slots {} exceed 2^20 slots", o.ranks, o.slots);
  }
  if (o.ranks * o.tokens > std::int64_t{1} << 30) {
    return fmt::format("--ranks {} times --tokens {} exceed 2^30 tokens in one call", o.ranks,
                       o.tokens);
  }
  if (o.ranks * o.experts > std::int64_t{1} << 24) {
    return fmt::format("--ranks {} times --experts {} exceed 2^24 counts in one matrix", o.ranks,
                       o.experts);
  }
  return {};
}

const std::vector<std::string> families{"uniform", "zipf0.6", "zipf1.2", "one_hot", "drifting"};

/// Draws the counts of one call after the other.
class count_matrices {
 public:
  explicit count_matrices(const options& o) : options_(o), engine_(o.seed) {}

  /// n[s][e] of the next call: of every expert at most T, in sum T K of every source. Sources differ
  /// from the shares they have in common by a few dozen per cent.
  std::vector<index_type> next(const std::string& family) {
    const auto E = static_cast<std::size_t>(options_.experts);
    const std::vector<double> common = popularity(family);
    std::vector<index_type> counts(static_cast<std::size_t>(options_.ranks) * E);
    std::normal_distribution<double> normal;
    for (std::size_t s = 0; s < static_cast<std::size_t>(options_.ranks); ++s) {
      index_type* const row = &counts[s * E];
      std::vector<double> weights(E);
      for (std::size_t e = 0; e < E; ++e) weights[e] = common[e] * std::exp(0.3 * normal(engine_));
      const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
      const auto T = static_cast<double>(options_.tokens);
      std::int64_t left = options_.tokens * options_.top_k;
      for (std::size_t e = 0; e < E; ++e) {
        const double mean =
            static_cast<double>(options_.tokens * options_.top_k) * weights[e] / sum;
        row[e] =
            static_cast<index_type>(std::clamp(mean + std::sqrt(mean) * normal(engine_), 0.0, T));
        if (family == "one_hot" && e == 0) row[e] = static_cast<index_type>(options_.tokens);
        left -= row[e];
      }
      // What is over or missing goes round.
      std::uniform_int_distribution<std::size_t> any(0, E - 1);
      while (left != 0) {
        index_type& n = row[any(engine_)];
        const auto step = static_cast<index_type>(std::max<std::int64_t>(1, std::abs(left) / 64));
        const index_type moved =
            left > 0 ? std::min(step, static_cast<index_type>(T) - n) : -std::min(step, n);
        n += moved;
        left -= moved;
      }
    }
    return counts;
  }

 private:
  std::vector<double> popularity(const std::string& family) {
    const auto E = static_cast<std::size_t>(options_.experts);
    std::vector<double> result(E, 1.0);
    if (family == "uniform" || family == "one_hot") return result;
    const double exponent = bench::skew{family == "drifting" ? "zipf0.6" : family}.exponent();
    std::vector<std::size_t> order(E);
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (family == "drifting") {
      std::normal_distribution<double> normal;
      drift_.resize(E);
      for (double& at : drift_) at = 0.98 * at + 0.2 * normal(engine_);
      std::sort(order.begin(), order.end(),
                [&](std::size_t a, std::size_t b) { return drift_[a] > drift_[b]; });
    } else {
      std::shuffle(order.begin(), order.end(), engine_);
    }
    for (std::size_t i = 0; i < E; ++i) {
      result[order[i]] = std::pow(static_cast<double>(i + 1), -exponent);
    }
    return result;
  }

  const options& options_;
  std::mt19937_64 engine_;
  std::vector<double> drift_;
};

/// Sizes of a call as in a trained model: log-normal, and experts differ by a factor of 2.
std::vector<index_type> size_histogram(const options& o, std::mt19937_64& engine) {
  constexpr auto bins = static_cast<std::size_t>(lrmoe::size_bins::count);
  std::vector<index_type> histogram(static_cast<std::size_t>(o.experts) * bins, 0);
  std::normal_distribution<double> normal;
  for (std::size_t e = 0; e < static_cast<std::size_t>(o.experts); ++e) {
    const double scale = -8 + 0.5 * normal(engine);
    for (int pair = 0; pair < 4096; ++pair) {
      const auto size = static_cast<float>(std::exp2(scale + 1.7 * normal(engine)));
      ++histogram[e * bins + static_cast<std::size_t>(lrmoe::size_bins::of(size))];
    }
  }
  return histogram;
}

/// What calls of a Qwen3-30B-A3B layer cost with stated rates; each rank computes E / R experts.
class costs {
 public:
  explicit costs(const options& o) : options_(o), ranks_(static_cast<std::size_t>(o.ranks)) {
    for (std::int64_t e = 0; e < o.experts; ++e) {
      home_.push_back(static_cast<index_type>(e * o.ranks / o.experts));
    }
  }

  /// Memory holds 60 % and the time budget carries about half of a mean rank's pairs.
  lrmoe::call_costs of(const std::vector<index_type>& counts) {
    std::vector<double> pairs(ranks_.size(), 0.0);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      pairs[static_cast<std::size_t>(home_[i % home_.size()])] += counts[i];
    }
    const double mean = mean_pairs();
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      ranks_[r] = {
          .fixed_s = forward_s * pairs[r],
          .fixed_bytes = 1 << 30,
          .available_bytes = (1 << 30) + static_cast<std::int64_t>(0.6 * mean) * pair_.bytes};
    }
    return {home_, ranks_, pair_};
  }

  /// For the slowest rank, which may well have several times the mean rank's forward pass.
  double step_s() const {
    double slowest = 0;
    for (const auto& rank : ranks_) slowest = std::max(slowest, rank.fixed_s);
    return slowest + 0.5 * mean_pairs() * (pair_.s + 2 * pair_.remote_s);
  }

 private:
  /// Of a rank; enough that one pair of each expert fits.
  double mean_pairs() const {
    return static_cast<double>(std::max(options_.tokens * options_.top_k, 4 * options_.experts));
  }

  static constexpr double width = 2048, expert_width = 768;
  static constexpr double forward_s = 6 * width * expert_width / 600e12;
  static constexpr double link_bytes_per_s = 50e9;

  const options& options_;
  std::vector<index_type> home_;
  std::vector<lrmoe::rank_cost> ranks_;
  // Twice forward's products; a row there and one back; two rows of the expert's width.
  lrmoe::pair_cost pair_{.s = 2 * forward_s,
                         .remote_s = 2 * 2 * width / link_bytes_per_s,
                         .bytes = static_cast<std::int64_t>(2 * 2 * expert_width)};
};

/// Every expert once, and the slots left over to copies of those with most pairs a copy; from most
/// pairs to fewest, each on the rank with fewest pairs that has a slot and, where possible, no copy.
lrmoe::placement replicate_hottest(const options& o, const std::vector<index_type>& counts) {
  const auto R = static_cast<std::size_t>(o.ranks), S = static_cast<std::size_t>(o.slots);
  std::vector<std::int64_t> copies(counts.size(), 1);
  const auto pairs = [&](std::size_t e) {
    return static_cast<double>(counts[e]) / static_cast<double>(copies[e]);
  };
  std::vector<std::size_t> order(counts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  while (order.size() < R * S) {
    std::size_t hottest = counts.size();
    for (std::size_t e = 0; e < counts.size(); ++e) {
      if (copies[e] == o.ranks) continue;
      if (hottest == counts.size() || pairs(e) > pairs(hottest)) hottest = e;
    }
    if (hottest == counts.size()) break;
    ++copies[hottest];
    order.push_back(hottest);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return pairs(a) > pairs(b); });
  std::vector<index_type> slots(R * S, lrmoe::no_expert);
  std::vector<std::size_t> used(R, 0);
  std::vector<double> load(R, 0.0);
  for (const std::size_t e : order) {
    std::size_t best = R;
    bool best_has = false;
    for (std::size_t r = 0; r < R; ++r) {
      if (used[r] == S) continue;
      const auto* const held = &slots[r * S];
      const bool has =
          std::find(held, held + used[r], static_cast<index_type>(e)) != held + used[r];
      if (best == R || std::pair(has, load[r]) < std::pair(best_has, load[best])) {
        best = r;
        best_has = has;
      }
    }
    slots[best * S + used[best]++] = static_cast<index_type>(e);
    load[best] += pairs(e);
  }
  return {o.ranks, o.slots, o.experts, slots};
}

/// Rebalances the kept pairs of one plan after the other.
class rebalance_benchmark {
 public:
  explicit rebalance_benchmark(const options& o) : options_(o) {}

  /// Every source sends its pairs of an expert to one replica, the replicas in turns.
  void measure(std::size_t family, const lrmoe::plan& made, bool counted) {
    auto& before = previous_[family];
    const bool late = calls_++ % 2 == 1 && !before.empty();
    const auto where = replicate_hottest(options_, late ? before : made.counts);
    before = made.counts;
    kept_.assign(static_cast<std::size_t>(where.replicas()), 0);
    for (std::size_t s = 0; s < static_cast<std::size_t>(made.R); ++s) {
      for (std::size_t e = 0; e < made.quotas.size(); ++e) {
        const auto first = static_cast<std::size_t>(where.offsets()[e]);
        const std::size_t replicas = where.holders(static_cast<std::int64_t>(e)).size();
        kept_[first + s % replicas] += made.source_quotas[s * made.quotas.size() + e];
      }
    }
    const bench::stopwatch time;
    const auto& result = rebalancer_.balance(where, kept_);
    const double seconds = time.seconds();
    check(where, result);
    if (!counted) return;
    samples[family].push_back(seconds);
    std::vector<std::int64_t> load(static_cast<std::size_t>(options_.ranks), 0);
    std::int64_t total = 0;
    for (std::size_t h = 0; h < kept_.size(); ++h) {
      load[static_cast<std::size_t>(where.ranks()[h])] += kept_[h];
      total += kept_[h];
    }
    const double mean = static_cast<double>(total) / static_cast<double>(options_.ranks);
    peak_before += static_cast<double>(*std::max_element(load.begin(), load.end())) / mean;
    peak_after += static_cast<double>(result.peak) / mean;
    moved += static_cast<double>(result.pairs_moved) / static_cast<double>(total);
  }

  std::vector<std::vector<double>> samples = std::vector<std::vector<double>>(families.size());
  double peak_before = 0, peak_after = 0;  ///< over the mean rank's load, added up
  double moved = 0;                        ///< of kept pairs, added up

 private:
  /// A split that is not optimal is not worth timing.
  void check(const lrmoe::placement& where, const lrmoe::rebalanced& result) const {
    const auto proof = lrmoe::certify_rebalance(where, kept_, {}, result.pairs);
    if (result.peak != proof.peak_bound || result.pairs_moved != proof.moves_bound) {
      throw std::runtime_error(
          fmt::format("rebalance: peak {} with {} pairs moved, where the bounds are {} and {}",
                      result.peak, result.pairs_moved, proof.peak_bound, proof.moves_bound));
    }
  }

  const options& options_;
  lrmoe::rebalancer rebalancer_;
  std::vector<std::vector<index_type>> previous_ =
      std::vector<std::vector<index_type>>(families.size());
  std::vector<index_type> kept_;
  std::int64_t calls_ = 0;
};

class plan_benchmark {
 public:
  explicit plan_benchmark(const options& o) : options_(o), costs_(o), rebalance_(o) {
    std::mt19937_64 engine(o.seed + 1);
    add("fixed_fraction", false, [](double) { return lrmoe::fixed_fraction{0.5}; });
    add("tile_rounded", false, [](double) {
      return lrmoe::tile_rounded<lrmoe::with_floor<>>{.inner = {.inner = {0.5}, .floor = 16}};
    });
    add("peak_capped", false, [](double) {
      return lrmoe::peak_capped<lrmoe::fixed_fraction>{.inner = {0.5}, .slack = 0.25};
    });
    add("memory_network", true,
        [](double step_s) { return lrmoe::memory_network<>{.step_s = step_s}; });
    add("memory_alone", true, [](double) { return lrmoe::memory_network<>{}; });
    add("error_bounded", true, [](double) { return lrmoe::error_bounded{0.25}; });
    add("shared_threshold", true, [](double) { return lrmoe::shared_threshold{0.25}; });
    add("time_optimal", true, [](double) { return lrmoe::time_optimal{}; });
    add("annealed", true, [](double) {
      return lrmoe::annealed<lrmoe::error_bounded, &lrmoe::error_bounded::epsilon>{
          .from = 0.1, .to = 1.0, .end_step = 1000};
    });
    for (int call = 0; call < 20; ++call) {
      const auto histogram = size_histogram(o, engine);
      for (auto& one : policies_) {
        const bench::stopwatch time;
        one.controller.history().record_sizes(histogram);
        record_samples_.push_back(time.seconds());
      }
    }
  }

  void measure() {
    const bool watched = isatty(STDERR_FILENO) != 0;
    count_matrices matrices(options_);
    for (std::int64_t i = -1; i < options_.matrices; ++i) {
      const std::size_t family =
          static_cast<std::size_t>(std::max<std::int64_t>(i, 0)) % families.size();
      if (watched && i % 10 == 0) {
        std::fprintf(stderr, "\r\033[Kmatrix %ld/%ld", static_cast<long>(i),
                     static_cast<long>(options_.matrices));
      }
      const auto counts = matrices.next(families[family]);
      const auto call = costs_.of(counts);
      const double step_s = costs_.step_s();
      const lrmoe::plan* last = nullptr;
      // In turns, so that every policy comes first, with the counts out of cache, as often.
      for (std::size_t turn = 0; turn < policies_.size(); ++turn) {
        auto& one = policies_[(turn + static_cast<std::size_t>(i + 1)) % policies_.size()];
        const double seconds =
            one.plan(one.controller, static_cast<std::uint64_t>(std::max<std::int64_t>(i, 0)),
                     counts, call, step_s);
        check(one.name, one.controller.last());
        if (one.name == "error_bounded") last = &one.controller.last();
        if (i < 0) continue;  // the first call of each policy allocates
        one.samples[family].push_back(seconds);
        one.kept += static_cast<double>(one.controller.last().pairs_kept()) /
                    static_cast<double>(one.controller.last().pairs());
      }
      rebalance_.measure(family, *last, i >= 0);
    }
    if (watched) std::fprintf(stderr, "\r\033[K");
  }

  void print_table() const {
    fmt::print("microseconds, median / worst of {} calls\n{:16} {:>7} {:>15}", options_.matrices,
               options_.path(), "kept", "all");
    for (const auto& family : families) fmt::print(" {:>15}", family);
    fmt::print("\n");
    const auto cell = [](const bench::spread& time) {
      return fmt::format(" {:>15}",
                         fmt::format("{:.1f} / {:.1f}", time.median * 1e6, time.max * 1e6));
    };
    const auto row = [&](const std::string& name, const std::string& share, const auto& families) {
      fmt::print("{:16} {:>7}{}", name, share, cell(bench::spread_of(all(families))));
      for (const auto& samples : families) fmt::print("{}", cell(bench::spread_of(samples)));
      fmt::print("\n");
    };
    for (const auto& one : policies_) {
      row(one.name, fmt::format("{:.1f}%", kept(one) * 100), one.samples);
    }
    row("rebalance", "", rebalance_.samples);
    fmt::print("{:16} {:>7}{}\n", "record_sizes", "", cell(bench::spread_of(record_samples_)));
    fmt::print(
        "rebalance takes the peak rank from {:.2f} to {:.2f} of the mean, moving {:.1f}% of kept "
        "pairs\n",
        mean(rebalance_.peak_before), mean(rebalance_.peak_after), mean(rebalance_.moved) * 100);
  }

  bench::result_set results() const {
    bench::result_set set;
    for (const auto& one : policies_) {
      add_times(set, fmt::format("plan/{}/{}", one.name, options_.path()), one.samples,
                {{"goal", one.optimises ? 200.0 : 50.0}, {"kept", kept(one)}});
    }
    add_times(set, fmt::format("rebalance/{}", options_.path()), rebalance_.samples,
              {{"goal", 200.0},
               {"slots", options_.slots},
               {"peak_over_mean_before", mean(rebalance_.peak_before)},
               {"peak_over_mean", mean(rebalance_.peak_after)},
               {"moved", mean(rebalance_.moved)}});
    const bench::spread time = bench::spread_of(record_samples_);
    set.add(fmt::format("history/record_sizes/E={}", options_.experts), time.median * 1e6, "us", "",
            {{"worst", time.max * 1e6}, {"min", time.min * 1e6}});
    return set;
  }

 private:
  struct measured_policy {
    std::string name;
    bool optimises;
    /// Makes a plan and returns the seconds it took.
    std::function<double(lrmoe::controller&, std::uint64_t step, const std::vector<index_type>&,
                         const lrmoe::call_costs&, double step_s)>
        plan;
    lrmoe::controller controller{};
    std::vector<std::vector<double>> samples = std::vector<std::vector<double>>(families.size());
    double kept = 0;
  };

  template <class Make>
  void add(const std::string& name, bool optimises, const Make& make) {
    const std::int64_t R = options_.ranks, E = options_.experts;
    policies_.push_back({.name = name,
                         .optimises = optimises,
                         .plan = [make, R, E](lrmoe::controller& controller, std::uint64_t step,
                                              const std::vector<index_type>& counts,
                                              const lrmoe::call_costs& call, double step_s) {
                           const auto policy = make(step_s);
                           policy.validate();
                           const bench::stopwatch time;
                           controller.make(step, R, E, counts, call, policy, false);
                           return time.seconds();
                         }});
  }

  /// A plan that breaks its laws is not worth timing.
  static void check(const std::string& name, const lrmoe::plan& made) {
    for (std::size_t e = 0; e < made.quotas.size(); ++e) {
      std::int64_t shares = 0;
      for (std::size_t s = 0; s < static_cast<std::size_t>(made.R); ++s) {
        const std::size_t i = s * made.quotas.size() + e;
        shares += made.source_quotas[i];
        if (made.source_quotas[i] < 0 || made.source_quotas[i] > made.source_counts[i]) {
          throw std::runtime_error(fmt::format("{}: source {} keeps {} of {} pairs of expert {}",
                                               name, s, made.source_quotas[i],
                                               made.source_counts[i], e));
        }
      }
      const index_type least = std::min(made.counts[e], 1);
      if (shares != made.quotas[e] || made.quotas[e] < least || made.quotas[e] > made.counts[e]) {
        throw std::runtime_error(fmt::format("{}: expert {} of {} pairs has quota {}, shares {}",
                                             name, e, made.counts[e], made.quotas[e], shares));
      }
    }
  }

  static void add_times(bench::result_set& set, const std::string& name,
                        const std::vector<std::vector<double>>& samples, json fields) {
    const bench::spread time = bench::spread_of(all(samples));
    fields["worst"] = time.max * 1e6;
    fields["min"] = time.min * 1e6;
    fields["calls"] = all(samples).size();
    fields["families"] = json::object();
    for (std::size_t f = 0; f < families.size(); ++f) {
      const bench::spread part = bench::spread_of(samples[f]);
      fields["families"][families[f]] = {{"median", part.median * 1e6}, {"worst", part.max * 1e6}};
    }
    set.add(name, time.median * 1e6, "us", "", fields);
  }
  static std::vector<double> all(const std::vector<std::vector<double>>& samples) {
    std::vector<double> result;
    for (const auto& part : samples) result.insert(result.end(), part.begin(), part.end());
    return result;
  }
  /// Of what was added up over all matrices.
  double mean(double sum) const { return sum / static_cast<double>(options_.matrices); }
  double kept(const measured_policy& one) const { return mean(one.kept); }

  const options& options_;
  costs costs_;
  rebalance_benchmark rebalance_;
  std::vector<measured_policy> policies_;
  std::vector<double> record_samples_;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("lrmoe_bench_plan");
  options chosen;
  declare_options(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    return app.exit(problem) == 0 ? 0 : 2;
  }
  if (const std::string wrong = conflict(chosen); !wrong.empty()) {
    fmt::print(stderr, "lrmoe_bench_plan: {}\nRun with --help for more information.\n", wrong);
    return 2;
  }
  try {
    std::optional<bench::result_file> file;
    if (!chosen.json_file.empty()) file.emplace(chosen.json_file);
    plan_benchmark benchmark(chosen);
    benchmark.measure();
    benchmark.print_table();
    if (file) {
      file->write(benchmark.results().document("lrmoe_bench_plan", bench::command_line(argc, argv),
                                               bench::source_commit(LRMOE_SOURCE_DIR),
                                               bench::host_machine()));
    }
  } catch (const std::exception& problem) {
    fmt::print(stderr, "lrmoe_bench_plan: {}\n", problem.what());
    return 1;
  }
  return 0;
}
