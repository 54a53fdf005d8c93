// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <lrmoe/estimator/any_estimator.hpp>
#include <lrmoe/estimator/exact.hpp>
#include <lrmoe/exchange/any_communicator.hpp>
#include <lrmoe/exchange/collectives.hpp>
#include <lrmoe/exchange/logical.hpp>
#include <lrmoe/lrmoe.hpp>

#include "../support/call_counts.hpp"
#include "../support/dense_product.hpp"
#if LRMOE_HAS_CUDA_BACKEND
#include "../support/gpu.hpp"
#endif
#include "../support/harness.hpp"
#include "../support/layer_problem.hpp"
#include "../support/results.hpp"
#include "options.hpp"
#include "rank_share.hpp"

namespace bench {

/// What a run says of itself besides its options.
struct launch_description {
  std::string command;
  json machine;
  std::string model = "logical";  ///< communicator, as results name it
  std::string device = {};        ///< GPU of this rank

  /// Ranks of one process run one after another, from exchange to exchange.
  bool take_turns() const { return model == "logical"; }
};

/// The benchmark on one rank, for one element type, backend and communicator. All ranks run the same cases.
template <class Element, class Backend, class Communicator>
class ranks_benchmark {
 public:
  using many_backend = lrmoe::with_ranks<Backend, Communicator>;
  using estimator = lrmoe::any_estimator<lrmoe::pps, lrmoe::exact>;
  using policies =
      lrmoe::policies<lrmoe::softmax_top_k, lrmoe::fixed_fraction, lrmoe::lrm_score, estimator>;
  using real = lrmoe::accumulate_t<Element>;
  using device = typename Backend::device_type;
  using space_type = typename Backend::execution_space;
  using timer = work_timer<space_type>;
  using routed = routed_tokens<real, device>;
  using seconds_list = std::vector<double>;

  /// Series of a layer's case.
  static constexpr std::size_t forward_series = 0;
  static constexpr std::size_t full_series = 1;

  ranks_benchmark(const ranks_options& chosen, const launch_description& about, Communicator joined)
      : options_(chosen),
        about_(about),
        warm_ups_(chosen.warm_ups_or_default()),
        context_(std::move(joined)),
        layer_(context_, chosen.shape),
        share_(chosen.shape, chosen.tokens, context_.ranks.rank(),
               layer_.first_placement(slots_of_rank())),
        timer_(context_.space),
        harness_(warm_ups_, chosen.repetitions, settle(), speaks()) {
    for (const auto& name : chosen.routings)
      routings_.emplace_back(skew{name}, chosen.tokens, chosen.shape.E, chosen.shape.K);
    if (chosen.one_rank && speaks()) alone_.emplace(chosen.shape, chosen.tokens);
  }

  bool speaks() const { return context_.ranks.rank() == 0; }

  void measure() {
    if (speaks()) make_dense();
    add_dense();
    for (const auto& routing : routings_)
      for (const double keep : options_.keeps)
        for (const named_update& gradients : options_.updates())
          add_layer(routing, keep, gradients);
    if (options_.exchange && ranks() > 1) add_exchanges();
    harness_.run();
    for (auto& one : cases_) observe(one);
    check_finite();
  }

  void print_table() const {
    fmt::print("{} ranks ({}), {}, dense {:.1f} GFLOP/s\n", ranks(), about_.model, options_.path(),
               dense_rate() * 1e-9);
    fmt::print(
        "{:>10} {:>6} {:>9} {:>9} {:>9} {:>9} {:>21} {:>7} {:>9} {:>8} {:>10} {:>10} {:>6}\n",
        "routing", "keep", "gradients", "one rank", "forward", "full ms", "(min .. max)", "ratio",
        "products", "max load", "forward MB", "bytes/kept", "waits");
    for (const auto& one : cases_) {
      const spread full = time_of(one, full_series);
      const auto alone = alone_time(one, full_series);
      fmt::print(
          "{:>10} {:>6} {:>9} {:>9} {:9.3f} {:9.3f} {:>21} {:>7} {:9.3f} {:8.2f} {:10.1f} {:10.1f} "
          "{:>6}\n",
          one.routing->kind.name, one.keep, one.gradients.name,
          alone ? fmt::format("{:.3f}", alone->median * 1e3) : "-",
          time_of(one, forward_series).median * 1e3, full.median * 1e3,
          fmt::format("({:.3f} .. {:.3f})", full.min * 1e3, full.max * 1e3),
          alone ? fmt::format("{:.3f}", full.median / alone->median) : "-",
          dense_seconds(one.full_flops) * 1e3, load(one),
          static_cast<double>(one.forward_bytes) * 1e-6, bytes_of_pair(one),
          one.full_counts ? fmt::format("{}", one.full_counts->fences) : "-");
    }
    for (const auto& one : exchanges_) {
      const spread time = harness_.seconds(one.number);
      fmt::print("{}: {:.3f} ms ({:.3f} .. {:.3f}), {:.1f} GB/s sent by a rank\n", one.name,
                 time.median * 1e3, time.min * 1e3, time.max * 1e3, one.gigabytes / time.median);
    }
  }

  result_set results() const {
    result_set set;
    add_dense_to(set);
    for (const auto& one : cases_) {
      add_to(set, one, "forward", forward_series);
      add_to(set, one, "full", full_series);
    }
    for (const auto& one : exchanges_) {
      const spread time = harness_.seconds(one.number);
      set.add(one.name, one.gigabytes / time.median, "GB/s", "",
              {{"repetitions", harness_.repetitions()},
               {"min", one.gigabytes / time.max},
               {"max", one.gigabytes / time.min},
               {"ms", time.median * 1e3}});
    }
    return set;
  }

  /// The document's machine, with every rank's GPU. Collective.
  json machine() {
    json found = about_.machine;
    found["backend"] = options_.backend;
    found["clock"] = timer::clock;
    using name = std::array<char, 128>;
    name mine{};
    about_.device.copy(mine.data(), mine.size() - 1);
    std::vector<name> all(static_cast<std::size_t>(ranks()));
    lrmoe::all_gather(context_.ranks, mine, std::span<name>(all));
    if (!about_.device.empty()) {
      found["gpus"] = json::array();
      for (const name& one : all) found["gpus"].push_back(one.data());
    }
    return found;
  }

 private:
  /// The layer with everything on one rank, beside all others.
  struct one_rank_layer {
    layer_problem<Element, device> problem;
    lrmoe::context<Backend> context;
    lrmoe::moe_layer<Element, Backend, policies> layer;

    one_rank_layer(const lrmoe::layer_shape& shape, std::int64_t tokens)
        : problem(shape, tokens), layer(context, shape) {}
  };

  struct layer_case {
    const routed* routing = nullptr;
    double keep = 1.0;
    named_update gradients = named_updates.front();
    std::string tail;  ///< of its results' names, without forward or full
    std::size_t number = 0;
    std::optional<std::size_t> alone = {};  ///< the case of the layer on one rank
    // By all ranks, in one call:
    std::int64_t forward_bytes = 0, backward_bytes = 0;
    std::int64_t pairs_kept = 0;
    double forward_flops = 0, full_flops = 0;
    std::int64_t most_pairs = 0;  ///< that one rank computes in forward
    std::optional<call_counts> forward_counts = {}, full_counts = {};  ///< of the first rank
  };

  struct exchange_case {
    std::string name;
    std::size_t number = 0;
    double gigabytes = 0;  ///< that a rank sends
  };

  std::int64_t ranks() const { return context_.ranks.size(); }
  std::int64_t slots_of_rank() const { return (options_.shape.E + ranks() - 1) / ranks(); }

  /// Ranks that take turns share a machine, which one of them prepares.
  std::function<void()> settle() const {
    if (about_.take_turns() && !speaks()) return [] {};
    return cold_start(context_.space);
  }

  void wait_for_all() { lrmoe::sum_over_ranks(context_.ranks, 0); }
  template <class T>
  T sum(T value) {
    return lrmoe::sum_over_ranks(context_.ranks, value);
  }

  /// All ranks begin a step together, with nothing under way.
  void start() {
    context_.space.fence("bench: before a step");
    wait_for_all();
    timer_.start();
  }
  /// Where ranks take turns, a part of a step ends when it has ended on all.
  void mark() {
    if (about_.take_turns()) wait_for_all();
    timer_.mark();
  }
  /// A step takes what its slowest rank takes.
  seconds_list slowest() {
    const seconds_list mine = timer_.seconds();
    seconds_list all(mine.size() * static_cast<std::size_t>(ranks()));
    lrmoe::all_gather(context_.ranks, std::span<const double>(mine), std::span<double>(all));
    seconds_list most(mine.size());
    for (std::size_t i = 0; i < all.size(); ++i)
      most[i % mine.size()] = std::max(most[i % mine.size()], all[i]);
    return most;
  }

  static policies policies_for(double keep) {
    policies chosen{.quota = {.keep = keep}};
    if (keep == 1.0) chosen.estimator = lrmoe::exact{};
    return chosen;
  }

  /// One plain product of the rows that a rank has when all have the same, on the first rank alone.
  void make_dense() {
    using baseline = dense_baseline<Element, space_type>;
    using element = typename baseline::element;
    const auto& [D, F, E, K, F_shared] = options_.shape;
    const std::int64_t rows = std::max<std::int64_t>(1, options_.tokens * K / ranks());
    const matrix<element, device> a("dense_a", rows, D), b("dense_b", D, 2 * F),
        c("dense_c", rows, 2 * F);
    fill_normal(a, 8, 1.0);
    fill_normal(b, 9, 1.0);
    const auto product = std::make_shared<baseline>(context_.space);
    dense_ = [product, a, b, c] { product->template multiply<device>(a, b, c); };
    dense_flops_ =
        4.0 * static_cast<double>(rows) * static_cast<double>(D) * static_cast<double>(F);
    dense_name_ = "dense/" + type_name<element>();
  }

  void add_dense() {
    harness_.add("dense", [this](int /*repetition*/) {
      if (!dense_) return seconds_list{0.0};
      timer_.start();
      dense_();
      timer_.mark();
      return timer_.seconds();
    });
  }
  double dense_rate() const { return dense_flops_ / harness_.seconds(0).median; }
  /// Seconds that ranks with the same work each need for its products at the dense product's rate.
  double dense_seconds(double flops) const {
    return flops / static_cast<double>(ranks()) / dense_rate();
  }

  void add_layer(const routed& routing, double keep, const named_update& gradients) {
    auto& mine = cases_.emplace_back();
    mine.routing = &routing;
    mine.keep = keep;
    mine.gradients = gradients;
    mine.tail =
        fmt::format("{}/{}/keep={}{}", options_.path(), routing.kind.name, keep, gradients.path());
    if (options_.one_rank)
      mine.alone = harness_.add("layer/" + mine.tail, [this, &mine](int repetition) {
        return alone_ ? step_alone(mine, repetition) : seconds_list{0.0, 0.0};
      });
    mine.number = harness_.add(name_of(mine),
                               [this, &mine](int repetition) { return step(mine, repetition); });
  }

  std::string name_of(const layer_case& one) const {
    return fmt::format("ranks/{}/R={}/{}", about_.model, ranks(), one.tail);
  }

  std::uint64_t step_number(int repetition) const {
    return static_cast<std::uint64_t>(repetition + warm_ups_);
  }

  seconds_list step_alone(const layer_case& one, int repetition) {
    auto& [problem, context, layer] = *alone_;
    layer.policies() = policies_for(one.keep);
    timer_.start();
    layer.forward(step_number(repetition), problem.x, one.routing->logits, problem.weights(),
                  problem.out);
    timer_.mark();
    layer.backward(problem.d_out, problem.weights(), problem.dx, problem.d_logits,
                   problem.gradients(), one.gradients.update);
    timer_.mark();
    return timer_.seconds();
  }

  seconds_list step(layer_case& one, int repetition) {
    layer_.policies() = policies_for(one.keep);
    const std::int64_t sent_before = context_.ranks.bytes_sent();
    start();
    forward(one, repetition);
    mark();
    const std::int64_t sent = context_.ranks.bytes_sent() - sent_before;
    backward(one);
    mark();
    const lrmoe::backward_report& report = layer_.report();
    const seconds_list seconds = slowest();
    one.forward_bytes = sum(sent);
    one.backward_bytes = sum(report.bytes_sent);
    one.pairs_kept = sum(report.pairs_kept);
    one.forward_flops = 6.0 * static_cast<double>(options_.tokens * options_.shape.K) *
                        static_cast<double>(options_.shape.D * options_.shape.F);
    one.full_flops = one.forward_flops + sum(static_cast<double>(report.routed.flops));
    std::vector<std::int64_t> pairs(static_cast<std::size_t>(ranks()));
    lrmoe::all_gather(context_.ranks, layer_.last_pairs_here().first,
                      std::span<std::int64_t>(pairs));
    one.most_pairs = *std::max_element(pairs.begin(), pairs.end());
    return seconds;
  }

  void forward(const layer_case& one, int repetition) {
    layer_.forward(step_number(repetition), share_.x, share_.rows_of(one.routing->logits),
                   share_.weights(), share_.out);
  }
  void backward(const layer_case& one) {
    layer_.backward(share_.d_out, share_.weights(), share_.dx, share_.d_logits, share_.gradients(),
                    one.gradients.update);
  }

  /// Counts of one more step, whose callbacks would cost time in a measured one. Ranks of one process
  /// cannot be told apart.
  void observe(layer_case& one) {
    if (about_.take_turns()) return;
    layer_.policies() = policies_for(one.keep);
    {
      const call_counts::recording recording(one.forward_counts.emplace());
      forward(one, harness_.repetitions());
    }
    one.full_counts = one.forward_counts;
    const call_counts::recording recording(*one.full_counts);
    backward(one);
  }

  void add_exchanges() {
    std::vector<std::int64_t> sizes{4LL << 20, 64LL << 20, 512LL << 20};
    if (options_.quick) sizes = {1LL << 16};
    using bytes_view = Kokkos::View<std::byte*, device>;
    const auto most = static_cast<std::size_t>(sizes.back());
    const bytes_view sent("exchange_sent", most), received("exchange_received", most);
    for (const std::int64_t bytes : sizes) {
      std::vector<std::int64_t> offsets;
      for (std::int64_t r = 0; r <= ranks(); ++r) offsets.push_back(bytes / ranks() * r);
      auto& mine = exchanges_.emplace_back();
      mine.name = fmt::format("exchange/{}/R={}/{}", about_.model, ranks(), bytes);
      mine.gigabytes = static_cast<double>(bytes / ranks() * (ranks() - 1)) * 1e-9;
      mine.number = harness_.add(mine.name, [this, sent, received, offsets](int /*repetition*/) {
        start();
        context_.ranks.all_to_all(context_.space, sent.data(), offsets, received.data(), offsets);
        mark();
        return slowest();
      });
    }
  }

  /// A layer that computes NaN is not worth timing.
  void check_finite() {
    const std::int64_t bad = count_not_finite(share_.out) + count_not_finite(share_.dx) +
                             count_not_finite(share_.d_logits) +
                             count_not_finite(share_.d_gate_up) + count_not_finite(share_.d_down);
    // What other ranks found matters as well: then all end here.
    if (const std::int64_t all = sum(bad); all > 0)
      throw std::runtime_error(
          fmt::format("{} values of the results are not finite, {} of them here", all, bad));
  }

  spread time_of(const layer_case& one, std::size_t series) const {
    return harness_.seconds(one.number, series);
  }
  std::optional<spread> alone_time(const layer_case& one, std::size_t series) const {
    if (!one.alone) return {};
    return harness_.seconds(*one.alone, series);
  }
  double load(const layer_case& one) const {
    return static_cast<double>(one.most_pairs * ranks()) /
           static_cast<double>(options_.tokens * options_.shape.K);
  }
  static double bytes_of_pair(const layer_case& one) {
    return static_cast<double>(one.backward_bytes) / static_cast<double>(one.pairs_kept);
  }

  void add_dense_to(result_set& set) const {
    const spread time = harness_.seconds(0);
    const auto rate = [&](double seconds) {
      return dense_flops_ / seconds * (options_.on_gpu() ? 1e-12 : 1e-9);
    };
    set.add(dense_name_, rate(time.median), options_.on_gpu() ? "TFLOP/s" : "GFLOP/s", "",
            {{"repetitions", harness_.repetitions()},
             {"min", rate(time.max)},
             {"max", rate(time.min)},
             {"ms", time.median * 1e3}});
  }

  /// The baseline of a layer on all ranks is the one on one rank, without it the exact one on all ranks.
  void add_to(result_set& set, const layer_case& one, const std::string& part,
              std::size_t series) const {
    const auto fields_of = [&](const spread& time) {
      return json{{"repetitions", harness_.repetitions()},
                  {"type", options_.type},
                  {"gradients", one.gradients.name},
                  {"min", time.min * 1e3},
                  {"max", time.max * 1e3}};
    };
    std::string baseline;
    if (const auto alone = alone_time(one, series)) {
      baseline = fmt::format("layer/{}/{}", one.tail, part);
      set.add(baseline, alone->median * 1e3, "ms", "", fields_of(*alone));
    } else if (one.keep != 1.0) {
      baseline = exact_name(one, part);
    }
    const bool full = series == full_series;
    const spread time = time_of(one, series);
    json fields = fields_of(time);
    fields.update({{"threads_of_a_rank", Kokkos::OpenMP().concurrency()},
                   {"max_over_mean_load", load(one)},
                   {"forward_bytes_sent", one.forward_bytes},
                   {"products_ms_at_dense_rate",
                    dense_seconds(full ? one.full_flops : one.forward_flops) * 1e3}});
    if (full)
      fields.update({{"backward_bytes_sent", one.backward_bytes},
                     {"pairs_kept", one.pairs_kept},
                     {"backward_bytes_per_kept_pair", bytes_of_pair(one)}});
    if (const auto& counts = full ? one.full_counts : one.forward_counts)
      fields.update({{"allocations_per_call", counts->allocations},
                     {"host_synchronisations_per_call", counts->fences},
                     {"copies_to_host_per_call", counts->copies_to_host}});
    set.add(fmt::format("{}/{}", name_of(one), part), time.median * 1e3, "ms", baseline, fields);
  }

  std::string exact_name(const layer_case& one, const std::string& part) const {
    for (const auto& other : cases_)
      if (other.routing == one.routing && other.keep == 1.0 &&
          other.gradients.update == one.gradients.update)
        return fmt::format("{}/{}", name_of(other), part);
    return {};
  }

  ranks_options options_;
  launch_description about_;
  int warm_ups_;
  lrmoe::context<many_backend> context_;
  lrmoe::moe_layer<Element, many_backend, policies> layer_;
  rank_share<Element, device> share_;
  std::deque<routed> routings_;
  std::optional<one_rank_layer> alone_;
  timer timer_;
  harness harness_;
  std::function<void()> dense_;
  double dense_flops_ = 0;
  std::string dense_name_;
  // Deques, because the harness's cases refer to their elements.
  std::deque<layer_case> cases_;
  std::deque<exchange_case> exchanges_;
};

/// Measures on this rank; the first one prints and writes what the options ask for.
template <class Element, class Backend, class Communicator>
void run_ranks_benchmark(const ranks_options& chosen, const launch_description& about,
                         Communicator joined) {
  std::optional<result_file> file;
  if (joined.rank() == 0 && !chosen.json_file.empty()) file.emplace(chosen.json_file);
  ranks_benchmark<Element, Backend, Communicator> benchmark(chosen, about, std::move(joined));
  benchmark.measure();
  const json machine = benchmark.machine();
  if (!benchmark.speaks()) return;
  const std::string commit = source_commit(LRMOE_SOURCE_DIR);
  fmt::print("{}, commit {}, {} repetitions\n\n", summary(machine), commit, chosen.repetitions);
  benchmark.print_table();
  if (file)
    file->write(benchmark.results().document("lrmoe_bench_ranks", about.command, commit, machine));
}

/// All ranks in this process.
template <class Element, class Backend, class Communicator>
void run_logical_ranks(const ranks_options& chosen, const launch_description& about) {
  lrmoe::logical::world world(static_cast<int>(chosen.ranks));
  world.run([&](lrmoe::logical::communicator& ranks) {
    run_ranks_benchmark<Element, Backend>(chosen, about, Communicator(std::move(ranks)));
  });
}

}  // namespace bench
