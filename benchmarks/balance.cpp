// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// lrmoe_bench_balance: what every planner makes of the same routing: peak load, bytes, memory, planning
// time and the modelled time of a step.
// Exit code: 0 measured, 1 error or a plan that breaks its laws, 2 bad usage.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <limits>
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

#include <lrmoe/placement/all_planners.hpp>
#include <lrmoe/placement/home_ranks.hpp>
#include <lrmoe/placement/peak_floor.hpp>
#include <lrmoe/placement/step_time.hpp>
#include <lrmoe/placement/validate_plan.hpp>
#include <lrmoe/version.hpp>

#include "support/harness.hpp"
#include "support/results.hpp"
#include "support/routing_trace.hpp"
#include "support/skew.hpp"

namespace {

using bench::json;
using bench::routing_trace;
using lrmoe::index_type;

struct options {
  std::vector<std::string> traces;
  std::vector<std::string> planners;
  bool synthetic = true;
  std::int64_t scale = 1;
  std::int64_t calls = 40;
  std::int64_t tokens = 4096;
  std::int64_t free_slots = 2;
  std::int64_t width = 2048;
  std::int64_t expert_width = 768;
  std::int64_t ranks_per_node = 8;
  double flops_per_s = 600e12;
  double inside_bytes_per_s = 274e9;
  double across_bytes_per_s = 50e9;
  std::uint64_t seed = 1;
  bool quick = false;
  std::string json_file;
};

void declare_options(CLI::App& app, options& o) {
  app.description(
      "Compares all planners on the same routing: recorded traces and synthetic skew for R=64 "
      "E=128 "
      "K=8\n"
      "and R=8 E=32 K=4: uniform; zipf0.6, zipf1.2, the same ranking in all calls; one_hot, where "
      "every\n"
      "token picks the same expert and K-1 others at random; drifting, zipf0.6 whose ranking "
      "changes.\n"
      "Columns: peak over mean load of ranks (mean over calls); bytes per call between ranks, of "
      "rows and of\n"
      "weights, gradients and optimizer state; bytes that the fullest rank holds of weights, "
      "gradients,\n"
      "optimizer state and saved activations; time to plan and split, median; modelled step.\n"
      "Step model: max over ranks of  pairs x 18 D F / FLOPs per s  +  4 exchanges of rows of 2 D "
      "bytes  +\n"
      "weights (6 D F bytes an expert), gradients (12 D F) and optimizer state (36 D F), each its "
      "larger\n"
      "direction over the link's rate; inside a node and across nodes one after the other, nothing "
      "overlaps.");
  app.set_version_flag("--version", "lrmoe_bench_balance " LRMOE_VERSION_STRING);
  app.option_defaults()->always_capture_default();
  app.get_formatter()->column_width(32);
  const auto count = [&](const std::string& flag, std::int64_t& value, const std::string& text) {
    return app.add_option(flag, value, text)
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
        ->type_name("INT");
  };
  const auto rate = [&](const std::string& flag, double& value, const std::string& text) {
    app.add_option(flag, value, text)->check(CLI::Range(1.0, 1e18))->type_name("NUMBER");
  };
  app.add_option("--trace", o.traces, "files of recorded routing")->type_name("FILE");
  count("--scale", o.scale,
        "multiplies the counts of traces, as if ranks had as many times the tokens");
  app.add_flag("!--no-synthetic", o.synthetic, "leave out synthetic skew");
  app.add_option("--planner", o.planners, "only these and static (default: all)")
      ->type_name("NAME");
  count("--calls", o.calls, "calls of each synthetic trace");
  count("--tokens", o.tokens, "tokens of each rank in synthetic traces");
  app.add_option("--free-slots", o.free_slots, "slots of a rank beyond ceil(E / R)")
      ->check(CLI::Range(0, 1 << 10))
      ->type_name("INT");
  count("--width", o.width, "model width D");
  count("--expert-width", o.expert_width, "expert width F");
  count("--ranks-per-node", o.ranks_per_node, "ranks that form a node");
  rate("--flops", o.flops_per_s, "FLOPs per s of one rank's products");
  rate("--inside", o.inside_bytes_per_s, "bytes per s, one direction, inside a node");
  rate("--across", o.across_bytes_per_s, "bytes per s, one direction, across nodes");
  app.add_option("--seed", o.seed, "of synthetic traces")->type_name("INT");
  app.add_option("--json", o.json_file, "also write the results to this file")->type_name("FILE");
  app.add_flag_callback(
         "--quick",
         [&o]() {
           o.calls = 4;
           o.tokens = 256;
           o.quick = true;
         },
         "a few calls for R=8 E=32, to see that everything works; other flags override it")
      ->trigger_on_parse();
}

/// A trace and what results call it.
struct named_trace {
  std::string name;
  routing_trace routing;
};

/// Counts of one source: weights' shares of the pairs, with noise, of every expert at most T.
void draw_source(std::mt19937_64& engine, const std::vector<double>& weights, std::int64_t T,
                 std::int64_t pairs, index_type* row) {
  const std::size_t E = weights.size();
  std::normal_distribution<double> normal;
  std::vector<double> noisy(E);
  for (std::size_t e = 0; e < E; ++e) noisy[e] = weights[e] * std::exp(0.2 * normal(engine));
  const double sum = std::accumulate(noisy.begin(), noisy.end(), 0.0);
  std::int64_t left = pairs;
  for (std::size_t e = 0; e < E; ++e) {
    row[e] = static_cast<index_type>(
        std::min<double>(static_cast<double>(T), static_cast<double>(pairs) * noisy[e] / sum));
    left -= row[e];
  }
  std::uniform_int_distribution<std::size_t> any(0, E - 1);
  while (left > 0) {
    const std::size_t e = any(engine);
    if (weights[e] == 0.0) continue;
    index_type& n = row[e];
    const auto more =
        std::min<std::int64_t>(std::max<std::int64_t>(1, left / 64), T - std::int64_t{n});
    n += static_cast<index_type>(more);
    left -= more;
  }
}

routing_trace synthetic(const std::string& family, std::int64_t R, std::int64_t E, std::int64_t K,
                        const options& o) {
  routing_trace trace{.R = R, .E = E, .K = K, .tokens = o.tokens, .description = family};
  std::mt19937_64 engine(o.seed);
  const auto experts = static_cast<std::size_t>(E);
  const bool one_hot = family == "one_hot", drifts = family == "drifting";
  const double exponent =
      family == "uniform" || one_hot ? 0.0 : bench::skew{drifts ? "zipf0.6" : family}.exponent();
  std::vector<std::size_t> order(experts);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), engine);
  std::normal_distribution<double> normal;
  std::vector<double> at(experts);
  for (double& place : at) place = normal(engine);
  for (std::int64_t call = 0; call < o.calls; ++call) {
    if (drifts) {
      for (double& place : at) place = 0.98 * place + 0.2 * normal(engine);
      std::sort(order.begin(), order.end(),
                [&](std::size_t a, std::size_t b) { return at[a] > at[b]; });
    }
    std::vector<double> weights(experts);
    for (std::size_t i = 0; i < experts; ++i)
      weights[order[i]] = std::pow(static_cast<double>(i + 1), -exponent);
    if (one_hot) weights[order[0]] = 0;
    std::vector<index_type> counts(static_cast<std::size_t>(R) * experts);
    for (std::int64_t s = 0; s < R; ++s) {
      index_type* const row = counts.data() + s * E;
      draw_source(engine, weights, o.tokens, o.tokens * (one_hot ? K - 1 : K), row);
      if (one_hot) row[order[0]] = static_cast<index_type>(o.tokens);
    }
    trace.add(std::move(counts));
  }
  return trace;
}

std::vector<named_trace> all_traces(const options& o) {
  std::vector<named_trace> result;
  for (const std::string& file : o.traces) {
    named_trace& one = result.emplace_back(
        named_trace{std::filesystem::path(file).stem().string(), routing_trace::read(file)});
    for (auto& counts : one.routing.calls) {
      for (index_type& n : counts) {
        if (n > std::numeric_limits<index_type>::max() / o.scale)
          throw std::runtime_error(
              fmt::format("--scale {}: a count of {} in '{}' becomes too large", o.scale, n, file));
        n *= static_cast<index_type>(o.scale);
      }
    }
    if (o.scale > 1) one.name += fmt::format("-x{}", o.scale);
  }
  if (!o.synthetic) return result;
  for (const auto& [R, E, K] : {std::array<std::int64_t, 3>{64, 128, 8}, {8, 32, 4}}) {
    if (o.quick && R > 8) continue;
    for (const char* family : {"uniform", "zipf0.6", "zipf1.2", "one_hot", "drifting"})
      result.push_back({fmt::format("{}-R{}-E{}", family, R, E), synthetic(family, R, E, K, o)});
  }
  return result;
}

/// One planner on one trace; means over calls but where said.
struct balance {
  std::string planner, trace;
  std::int64_t R = 0, E = 0;
  double peak = 0;   ///< over the mean load
  double floor = 0;  ///< the same, of transient_floor
  double rows_bytes = 0;
  double weight_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0;
  double copies = 0;        ///< replicas beyond one of each expert
  std::int64_t memory = 0;  ///< of the fullest rank in any call
  double step_s = 0;
  std::vector<double> plan_s{};  ///< of every call

  double bytes() const { return rows_bytes + weight_bytes + gradient_bytes + optimizer_bytes; }
};

lrmoe::placement_costs costs_of(const options& o) {
  const std::int64_t weights = 3 * o.width * o.expert_width;
  return {.pair_s = 6.0 * static_cast<double>(weights) / o.flops_per_s,
          .row_bytes = 2 * o.width,
          .weight_bytes = 2 * weights,
          .gradient_bytes = 4 * weights,
          .optimizer_bytes = 12 * weights,
          .pair_memory_bytes = 4 * o.expert_width};
}

/// Bytes of experts and saved activations on the fullest rank.
std::int64_t fullest_rank(const lrmoe::placement_request& request,
                          const lrmoe::planner_attributes& attributes,
                          const lrmoe::placement& where, std::span<const std::int64_t> loads) {
  std::vector<std::int64_t> held(static_cast<std::size_t>(request.R), 0), owned = held;
  for (const index_type rank : where.ranks()) ++held[static_cast<std::size_t>(rank)];
  for (const index_type rank : request.home) ++owned[static_cast<std::size_t>(rank)];
  const auto& costs = request.costs;
  std::int64_t most = 0;
  for (std::size_t r = 0; r < held.size(); ++r) {
    std::int64_t bytes =
        held[r] * (costs.weight_bytes + costs.gradient_bytes) + loads[r] * costs.pair_memory_bytes;
    switch (attributes.optimizer) {
      case lrmoe::optimizer_place::with_expert:
        bytes += held[r] * costs.optimizer_bytes;
        break;
      case lrmoe::optimizer_place::at_home:
        bytes += owned[r] * costs.optimizer_bytes;
        break;
      case lrmoe::optimizer_place::sharded:
        bytes += request.E * costs.optimizer_bytes / request.R;
        break;
    }
    most = std::max(most, bytes);
  }
  return most;
}

balance measure(const lrmoe::library_planner& planner, const named_trace& trace, const options& o) {
  const routing_trace& routing = trace.routing;
  const auto attributes = planner.attributes();
  planner.validate();
  const auto layers = static_cast<std::size_t>(routing.layers);
  const auto home = lrmoe::home_ranks(routing.R, routing.E);
  std::vector<lrmoe::load_history> history(layers, lrmoe::load_history(attributes.window));
  std::vector<lrmoe::placement> current(layers);
  lrmoe::placement_plan plan;
  std::vector<index_type> split;
  lrmoe::step_time time;
  balance result{
      .planner = std::string(attributes.name), .trace = trace.name, .R = routing.R, .E = routing.E};
  const double calls = static_cast<double>(std::max<std::size_t>(1, routing.calls.size()));
  for (std::size_t c = 0; c < routing.calls.size(); ++c) {
    const std::size_t layer = c % layers;
    lrmoe::placement_request request{.step = c / layers,
                                     .R = routing.R,
                                     .S = (routing.E + routing.R - 1) / routing.R + o.free_slots,
                                     .E = routing.E,
                                     .source_counts = routing.calls[c],
                                     .history = &history[layer],
                                     .home = home,
                                     .costs = costs_of(o)};
    if (current[layer].R() > 0) request.current = &current[layer];
    request.machine.ranks_per_node = o.ranks_per_node;
    request.machine.inside = {o.inside_bytes_per_s, 3e-6};
    request.machine.across = {o.across_bytes_per_s, 1e-5};
    const bench::stopwatch watch;
    planner.plan(request, plan);
    split.resize(static_cast<std::size_t>(routing.R * plan.replicas.replicas()));
    planner.split(request, plan, split);
    result.plan_s.push_back(watch.seconds());

    // A plan that breaks its laws is not worth a number.
    lrmoe::validate(request, attributes, plan);
    lrmoe::validate_split(request, plan, split);
    time.predict(request, attributes, plan, split);
    std::vector<std::int64_t> loads(static_cast<std::size_t>(routing.E), 0);
    for (std::size_t i = 0; i < routing.calls[c].size(); ++i)
      loads[i % loads.size()] += routing.calls[c][i];
    const auto total = std::accumulate(loads.begin(), loads.end(), std::int64_t{0});
    const double mean = static_cast<double>(total) / static_cast<double>(routing.R);
    std::vector<std::int64_t> free(static_cast<std::size_t>(routing.R), request.S);
    for (const index_type rank : home) --free[static_cast<std::size_t>(rank)];
    const double floor = static_cast<double>(lrmoe::transient_floor(routing.R, loads, home, free));
    result.peak += (total == 0 ? 1.0 : static_cast<double>(time.peak_load()) / mean) / calls;
    result.floor += (total == 0 ? 1.0 : floor / mean) / calls;
    result.rows_bytes += static_cast<double>(time.row_bytes()) / calls;
    const auto moved = [&](lrmoe::moved_state what) {
      return static_cast<double>(time.movement().total(what)) / calls;
    };
    result.weight_bytes += moved(lrmoe::moved_state::weights);
    result.gradient_bytes += moved(lrmoe::moved_state::gradients);
    result.optimizer_bytes += moved(lrmoe::moved_state::optimizer);
    result.copies += static_cast<double>(plan.replicas.replicas() - routing.E) / calls;
    result.memory =
        std::max(result.memory, fullest_rank(request, attributes, plan.replicas, time.loads()));
    result.step_s += time.step_s() / calls;
    current[layer] = plan.replicas;
    history[layer].record(routing.R, routing.E, routing.calls[c]);
  }
  return result;
}

void print_table(const std::vector<balance>& all) {
  std::string trace;
  double own_s = 0;
  constexpr double mib = 1 << 20;
  for (const balance& one : all) {
    if (one.trace != trace) {
      trace = one.trace;
      own_s = one.step_s;
      fmt::print("{}\n{:10} {:>9} {:>7} {:>10} {:>10} {:>10} {:>12} {:>9} {:>7}\n", trace,
                 "planner", "peak/mean", "copies", "rows MiB", "state MiB", "rank MiB", "plan us",
                 "step ms", "ratio");
    }
    const bench::spread plan = bench::spread_of(one.plan_s);
    fmt::print("{:10} {:9.3f} {:7.1f} {:10.1f} {:10.1f} {:10.1f} {:12.1f} {:9.3f} {:7.3f}\n",
               one.planner, one.peak, one.copies, one.rows_bytes / mib,
               (one.bytes() - one.rows_bytes) / mib, static_cast<double>(one.memory) / mib,
               plan.median * 1e6, one.step_s * 1e3, one.step_s / own_s);
  }
}

bench::result_set results_of(const std::vector<balance>& all) {
  bench::result_set set;
  std::vector<std::pair<std::string, std::vector<double>>> plans;
  for (const balance& one : all) {
    const auto name = [&](const std::string& planner, const char* what) {
      return fmt::format("balance/{}/{}/{}", planner, one.trace, what);
    };
    const auto baseline = [&](const char* what) {
      return one.planner == "static" ? std::string() : name("static", what);
    };
    set.add(name(one.planner, "peak"), one.peak, "1", baseline("peak"), {{"floor", one.floor}});
    set.add(name(one.planner, "bytes"), one.bytes(), "B", baseline("bytes"),
            {{"rows", one.rows_bytes},
             {"weights", one.weight_bytes},
             {"gradients", one.gradient_bytes},
             {"optimizer", one.optimizer_bytes},
             {"copies", one.copies}});
    set.add(name(one.planner, "memory"), static_cast<double>(one.memory), "B", baseline("memory"));
    set.add(name(one.planner, "time"), one.step_s, "s", baseline("time"), {{"modelled", true}});
    const std::string plan = fmt::format("plan/{}/R={}/E={}", one.planner, one.R, one.E);
    auto found = std::find_if(plans.begin(), plans.end(),
                              [&](const auto& other) { return other.first == plan; });
    if (found == plans.end()) found = plans.insert(plans.end(), {plan, {}});
    found->second.insert(found->second.end(), one.plan_s.begin(), one.plan_s.end());
  }
  for (const auto& [name, samples] : plans) {
    const bench::spread time = bench::spread_of(samples);
    set.add(name, time.median * 1e6, "us", "",
            {{"worst", time.max * 1e6}, {"min", time.min * 1e6}, {"calls", samples.size()}});
  }
  return set;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("lrmoe_bench_balance");
  options chosen;
  declare_options(app, chosen);
  std::vector<lrmoe::library_planner> planners;
  try {
    app.parse(argc, argv);
    for (const auto& planner : lrmoe::all_planners()) {
      const std::string name(planner.attributes().name);
      if (chosen.planners.empty() || name == "static" ||
          std::find(chosen.planners.begin(), chosen.planners.end(), name) != chosen.planners.end())
        planners.push_back(planner);
    }
    for (const std::string& name : chosen.planners) (void)lrmoe::planner_by_name(name);
  } catch (const CLI::ParseError& problem) {
    return app.exit(problem) == 0 ? 0 : 2;
  } catch (const lrmoe::argument_error& problem) {
    fmt::print(stderr, "lrmoe_bench_balance: --planner: {}\n", problem.what());
    return 2;
  }
  if (!chosen.synthetic && chosen.traces.empty()) {
    fmt::print(stderr, "lrmoe_bench_balance: --no-synthetic needs a --trace\n");
    return 2;
  }
  try {
    std::optional<bench::result_file> file;
    if (!chosen.json_file.empty()) file.emplace(chosen.json_file);
    const bool watched = isatty(STDERR_FILENO) != 0;
    std::vector<balance> all;
    for (const named_trace& trace : all_traces(chosen)) {
      for (const auto& planner : planners) {
        if (watched) fmt::print(stderr, "\r\033[K{} {}", trace.name, planner.attributes().name);
        all.push_back(measure(planner, trace, chosen));
      }
    }
    if (watched) fmt::print(stderr, "\r\033[K");
    print_table(all);
    if (file) {
      file->write(results_of(all).document("lrmoe_bench_balance", bench::command_line(argc, argv),
                                           bench::source_commit(LRMOE_SOURCE_DIR),
                                           bench::host_machine()));
    }
  } catch (const std::exception& problem) {
    fmt::print(stderr, "lrmoe_bench_balance: {}\n", problem.what());
    return 1;
  }
  return 0;
}
