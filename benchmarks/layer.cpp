// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// lrmoe_bench_layer: times the layer and its five expert operations against one plain dense product
// of the same run.
// Exit code: 0 measured, 1 error or a run that did not do what was asked, 2 bad usage.

#include <cstdio>
#include <deque>
#include <exception>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <omp.h>

#include <lrmoe/estimator/any_estimator.hpp>
#include <lrmoe/estimator/exact.hpp>
#include <lrmoe/estimator/top.hpp>
#include <lrmoe/estimator/uniform.hpp>
#include <lrmoe/lrmoe.hpp>
#include <lrmoe/version.hpp>

#include "support/dense_product.hpp"
#include "support/harness.hpp"
#include "support/layer_options.hpp"
#include "support/layer_problem.hpp"
#include "support/npy.hpp"
#include "support/profile.hpp"
#include "support/results.hpp"

namespace {

using bench::json;
using bench::options;

/// The benchmark for one element type.
template <class Element>
class layer_benchmark {
 public:
  using real = lrmoe::accumulate_t<Element>;
  using estimator = lrmoe::any_estimator<lrmoe::exact, lrmoe::pps, lrmoe::top,
                                         lrmoe::top_plus_sampled, lrmoe::uniform>;
  using policies =
      lrmoe::policies<lrmoe::softmax_top_k, lrmoe::fixed_fraction, lrmoe::lrm_score, estimator>;
  using layer = lrmoe::moe_layer<Element, bench::host_backend, policies>;
  using index_type = lrmoe::index_type;

  /// Series of a layer's case.
  static constexpr std::size_t forward_series = 0;
  static constexpr std::size_t full_series = 1;
  static constexpr std::size_t pack_series = 2;

  static constexpr std::int64_t scratch_rows = 512;  // of each thread, for time_pack

  explicit layer_benchmark(const options& chosen)
      : options_(chosen),
        problem_(chosen.shape, chosen.tokens),
        layer_(context_, chosen.shape),
        harness_(chosen.warm_ups, chosen.repetitions),
        pack_scratch_("pack_scratch", scratch_rows * context_.space.concurrency(), chosen.shape.D) {
    for (const auto& name : chosen.routings)
      routings_.emplace_back(bench::skew{name}, problem_.T, problem_.shape.E, problem_.shape.K);
  }

  void measure() {
    add_dense();
    for (const auto& routing : routings_) add_layers(routing);
    if (options_.products) {
      make_product_buffers();
      for (const auto& routing : routings_) add_products(routing);
    }
    harness_.run();
    check_finite();
  }

  /// Inputs and results of one exact step, for a program that does the same in another way.
  void write_tensors() {
    const std::filesystem::path folder = options_.tensor_folder;
    std::filesystem::create_directories(folder);
    const auto& routing = routings_.front();
    layer_.policies().estimator = lrmoe::exact{};
    layer_.forward(0, problem_.x, routing.logits, problem_.weights(), problem_.out);
    layer_.backward(problem_.d_out, problem_.weights(), problem_.dx, problem_.d_logits,
                    problem_.gradients());
    check_finite();
    if constexpr (std::is_same_v<Element, real>) {
      bench::write_npy(folder / "x.npy", problem_.x);
      bench::write_npy(folder / "logits.npy", routing.logits);
      bench::write_npy(folder / "gate_up.npy", problem_.gate_up);
      bench::write_npy(folder / "down.npy", problem_.down);
      bench::write_npy(folder / "d_out.npy", problem_.d_out);
      bench::write_npy(folder / "out.npy", problem_.out);
      bench::write_npy(folder / "dx.npy", problem_.dx);
      bench::write_npy(folder / "d_logits.npy", problem_.d_logits);
      bench::write_npy(folder / "d_gate_up.npy", problem_.d_gate_up);
      bench::write_npy(folder / "d_down.npy", problem_.d_down);
    }
    bench::result_file(folder / "layer.json")
        .write({{"shape", options_.path()},
                {"routing", routing.kind.name},
                {"top_k", problem_.shape.K}});
  }

  void print_table() const {
    std::size_t width = 0;
    for (const auto& one : series_) width = std::max(width, one.name.size());
    fmt::print("{:{}} {:>9} {:>21} {:>9} {:>7} {:>7} {:>9} {:>7}\n", "", width, "ms",
               "(min .. max)", "GFLOP/s", "/dense", "/exact", "/balanced", "select");
    const auto ratio = [](std::optional<double> value) {
      return value ? fmt::format("{:.3f}", *value) : std::string("-");
    };
    for (const auto& one : series_) {
      const bench::spread time = harness_.seconds(one.measured_case, one.index);
      fmt::print("{:{}} {:9.3f} {:>21} {:9.1f} {:>7} {:>7} {:>9} {:>7}\n", one.name, width,
                 time.median * 1e3,
                 fmt::format("({:.3f} .. {:.3f})", time.min * 1e3, time.max * 1e3), rate(one),
                 ratio(dense_ratio(one)), ratio(time_ratio(one, one.exact)),
                 ratio(time_ratio(one, one.balanced)), ratio(selection_share(one)));
    }
  }

  void print_profiles() const {
    for (const auto& one : layer_cases_) {
      const double total = one.measured_seconds;
      fmt::print("\n{}\n{:>10} {:>7} {:>7}  {}\n", one.name, "ms a step", "share", "calls",
                 "label");
      double inside = 0;
      one.times.visit([&](const bench::profile::node& node, int depth) {
        if (depth == 0) inside += node.seconds;
        fmt::print("{:10.3f} {:6.2f}% {:7.1f}  {:{}}{}\n",
                   node.seconds * 1e3 / harness_.repetitions(), 100 * node.seconds / total,
                   static_cast<double>(node.calls) / harness_.repetitions(), "", 2 * depth,
                   node.label);
      });
      fmt::print("{:10.3f} {:6.2f}%          outside all regions\n",
                 (total - inside) * 1e3 / harness_.repetitions(), 100 * (total - inside) / total);
    }
  }

  bench::result_set results() const {
    bench::result_set set;
    for (const auto& one : series_) {
      const bench::spread time = harness_.seconds(one.measured_case, one.index);
      json fields{{"repetitions", harness_.repetitions()}, {"type", options_.type}};
      if (one.is_rate) {
        const double flops = *one.flops * 1e-9;
        fields.update(
            {{"min", flops / time.max}, {"max", flops / time.min}, {"ms", time.median * 1e3}});
        set.add(one.name, rate(one), "GFLOP/s",
                &one == &series_.front() ? "" : series_.front().name, fields);
        continue;
      }
      const std::string& baseline = one.name == one.exact ? one.balanced : one.exact;
      fields.update({{"min", time.min * 1e3},
                     {"max", time.max * 1e3},
                     {"gflop_per_s", rate(one)},
                     {"ratio_to_dense_rate", *dense_ratio(one)},
                     {"ratio_to_balanced", nullptr},
                     {"estimator", one.estimator}});
      if (const auto balanced = time_ratio(one, one.balanced))
        fields["ratio_to_balanced"] = *balanced;
      if (const auto share = selection_share(one)) {
        fields.update({{"saved_activation_bytes", one.layer->saved_bytes},
                       {"selection_share", *share},
                       {"selection_ms", selection_seconds(*one.layer) * 1e3},
                       {"pack_ms", pack_seconds(one) * 1e3}});
      }
      set.add(one.name, time.median * 1e3, "ms", baseline == one.name ? "" : baseline, fields);
    }
    return set;
  }

 private:
  /// What is learned about a layer while it is measured.
  struct layer_case {
    std::string name;
    bench::profile times{};
    double measured_seconds = 0;
    double forward_flops = 0;
    double full_flops = 0;
    std::int64_t saved_bytes = 0;  ///< activations kept from forward to backward
  };

  /// One line of the table: a series of a measured case.
  struct measured_series {
    std::string name;
    std::size_t measured_case = 0;
    std::size_t index = 0;
    const double* flops = nullptr;
    bool is_rate = false;    ///< the result is its rate, else its time
    std::string exact{};     ///< series that the time is compared with: the exact layer,
    std::string balanced{};  ///< and the same with balanced routing
    std::string estimator{};
    const layer_case* layer = nullptr;
  };

  void add_dense() {
    const std::int64_t P = problem_.T * problem_.shape.K;
    const std::int64_t D = problem_.shape.D;
    const std::int64_t F = problem_.shape.F;
    const bench::matrix<real> a("dense_a", P, D), b("dense_b", D, 2 * F), c("dense_c", P, 2 * F);
    bench::fill_normal(a, 8, 1.0);
    bench::fill_normal(b, 9, 1.0);
    const std::string name = std::is_same_v<real, double> ? "dense/double" : "dense/float";
    const auto number = harness_.add(name, [a, b, c](int /*repetition*/) {
      const bench::stopwatch time;
      bench::dense_product<real, bench::host_device>(a, b, c);
      Kokkos::fence();
      return std::vector<double>{time.seconds()};
    });
    product_flops_.push_back(4.0 * static_cast<double>(P) * static_cast<double>(D) *
                             static_cast<double>(F));
    series_.push_back(
        {.name = name, .measured_case = number, .flops = &product_flops_.back(), .is_rate = true});
  }

  void add_layers(const bench::routed_tokens<real>& routing) {
    for (const double keep : options_.keeps) {
      if (keep == 1.0) {
        add_layer(routing, keep, "exact", lrmoe::exact{});
        continue;
      }
      for (const auto& name : options_.estimators) {
        if (name == "pps") add_layer(routing, keep, name, lrmoe::pps{});
        if (name == "top") add_layer(routing, keep, name, lrmoe::top{});
        if (name == "uniform") add_layer(routing, keep, name, lrmoe::uniform{});
        if (name == "top_plus_sampled") add_layer(routing, keep, name, lrmoe::top_plus_sampled{});
      }
      for (const auto& saved : options_.saved) {
        if (saved == "recompute")
          add_layer(routing, keep, "pps", lrmoe::pps{}, lrmoe::saved_activations::recompute);
        if (saved == "proxy")
          add_layer(routing, keep, "pps", lrmoe::pps{}, lrmoe::saved_activations::proxy);
      }
    }
  }

  void add_layer(const bench::routed_tokens<real>& routing, double keep,
                 const std::string& estimator_name, const estimator& chosen,
                 lrmoe::saved_activations saved = lrmoe::saved_activations::save) {
    // Default rules go without saying.
    std::string rule = estimator_name == "exact" || estimator_name == "pps"
                           ? fmt::format("keep={}", keep)
                           : fmt::format("keep={}/estimator={}", keep, estimator_name);
    if (saved == lrmoe::saved_activations::recompute) rule += "/save=recompute";
    if (saved == lrmoe::saved_activations::proxy) rule += "/save=proxy";
    const auto prefix = [&](const std::string& kind) {
      return fmt::format("layer/{}/{}/", options_.path(), kind);
    };
    auto& mine = layer_cases_.emplace_back();
    mine.name = prefix(routing.kind.name) + rule;
    const lrmoe::fixed_fraction quota{.keep = keep};
    std::int64_t kept = 0;
    for (const auto count : routing.counts) kept += quota.of(static_cast<index_type>(count));
    const auto number = harness_.add(
        mine.name, [this, &routing, &mine, quota, chosen, saved, kept](int repetition) {
          layer_.policies().saved = saved;
          return step(routing, mine, quota, chosen, kept, repetition);
        });

    const auto add = [&](const std::string& part, std::size_t index, const double& flops) {
      series_.push_back({.name = mine.name + "/" + part,
                         .measured_case = number,
                         .index = index,
                         .flops = &flops,
                         .exact = prefix(routing.kind.name) + "keep=1/" + part,
                         .balanced = prefix("balanced") + rule + "/" + part,
                         .estimator = estimator_name,
                         .layer = index == full_series ? &mine : nullptr});
    };
    add("forward", forward_series, mine.forward_flops);
    add("full", full_series, mine.full_flops);
  }

  /// One step of the layer; its results say whether it did the work it is timed for.
  std::vector<double> step(const bench::routed_tokens<real>& routing, layer_case& mine,
                           const lrmoe::fixed_fraction& quota, const estimator& chosen,
                           std::int64_t kept, int repetition) {
    layer_.policies().quota = quota;
    layer_.policies().estimator = chosen;
    if (repetition == 0) mine.times.clear();
    lrmoe::backward_report report;
    std::vector<double> seconds(3);
    {
      const bench::profile::recording recording(mine.times);
      const bench::stopwatch time;
      layer_.forward(static_cast<std::uint64_t>(repetition + options_.warm_ups), problem_.x,
                     routing.logits, problem_.weights(), problem_.out);
      context_.space.fence("bench: forward");
      seconds[forward_series] = time.seconds();
      report = layer_.backward(problem_.d_out, problem_.weights(), problem_.dx, problem_.d_logits,
                               problem_.gradients());
      context_.space.fence("bench: backward");
      seconds[full_series] = time.seconds();
    }
    if (repetition >= 0) mine.measured_seconds += seconds[full_series];
    mine.saved_bytes = layer_.planned_memory()[lrmoe::memory_category::saved_activations];
    mine.forward_flops = problem_.forward_flops();
    mine.full_flops = mine.forward_flops + report.routed.flops + report.shared.flops;

    seconds[pack_series] = time_pack(report.pairs_kept);

    const auto& offsets = layer_.last_order().offsets;
    for (std::size_t e = 0; e < routing.counts.size(); ++e) {
      const index_type count = offsets(e + 1) - offsets(e);
      if (count != routing.counts[e]) {
        throw std::runtime_error(fmt::format("{}: expert {} got {} pairs instead of {}", mine.name,
                                             e, count, routing.counts[e]));
      }
    }
    if (report.pairs_kept != kept) {
      throw std::runtime_error(fmt::format("{}: backward kept {} pairs, its quotas allow {}",
                                           mine.name, report.pairs_kept, kept));
    }
    return seconds;
  }

  /// Seconds to copy the kept rows of the last backward as its operations do: rows of dO for two of
  /// them, rows of x for one, each thread into scratch of its own.
  double time_pack(std::int64_t kept) {
    const auto K = static_cast<index_type>(problem_.shape.K);
    const std::int64_t D = problem_.shape.D;
    const auto order = layer_.last_order();
    const auto rows = layer_.last_selection().rows;
    const bench::vector<index_type> tokens("tokens", kept);
    for (std::int64_t m = 0; m < kept; ++m) tokens(m) = order.pair_of_row(rows(m)) / K;
    const auto scratch = pack_scratch_;
    const bench::stopwatch time;
    for (const auto& source : {problem_.d_out, problem_.d_out, problem_.x}) {
      Kokkos::parallel_for(
          "bench::pack", Kokkos::RangePolicy<Kokkos::OpenMP>(0, kept), [=](const std::int64_t m) {
            const Element* from = &source(tokens(m), 0);
            real* to = &scratch(omp_get_thread_num() * scratch_rows + m % scratch_rows, 0);
            for (std::int64_t d = 0; d < D; ++d) to[d] = static_cast<real>(from[d]);
          });
    }
    Kokkos::fence();
    return time.seconds();
  }

  void make_product_buffers() {
    const auto& [D, F, E, K, F_shared] = problem_.shape;
    const std::int64_t P = problem_.T * K;
    pre_ = bench::matrix<Element>("pre", P, 2 * F);
    hidden_ = bench::matrix<Element>("hidden", P, F);
    d_pre_ = bench::matrix<Element>("d_pre", P, 2 * F);
    rows_ = bench::matrix<Element>("rows", P, D);
    norms_ = bench::vector<float>("norms", P);
    row_weights_ = bench::vector<real>("row_weights", P);
    d_row_weights_ = bench::vector<real>("d_row_weights", P);
    bench::fill_normal(pre_, 10, 1.0);
    bench::fill_normal(hidden_, 11, 1.0);
    bench::fill_normal(d_pre_, 12, 1.0);
    Kokkos::deep_copy(row_weights_, real(1) / static_cast<real>(K));
  }

  /// The five operations with all pairs of a routing as rows, as the exact layer calls them.
  void add_products(const bench::routed_tokens<real>& routing) {
    using rows = lrmoe::gathered_rows<Element, bench::host_device>;
    const rows x{problem_.x, routing.token_of_row};
    const rows d_out{problem_.d_out, routing.token_of_row};
    const bench::vector<const index_type> offsets = routing.offsets;
    auto& operations = context_.operations;
    const auto& space = context_.space;

    add_product(routing, "gate_up", [=, this, &operations, &space]() {
      return operations.template gate_up<Element>(space, x, offsets, problem_.gate_up, pre_,
                                                  hidden_, norms_);
    });
    add_product(routing, "down", [=, this, &operations, &space]() {
      return operations.template down<Element>(space, rows{hidden_}, offsets, problem_.down, rows_);
    });
    add_product(routing, "down_backward", [=, this, &operations, &space]() {
      return operations.template down_backward<Element>(
          space, {x, rows{pre_}, d_out, offsets, row_weights_, {}}, problem_.down, d_pre_, hidden_,
          d_row_weights_);
    });
    add_product(routing, "gate_up_backward", [=, this, &operations, &space]() {
      return operations.template gate_up_backward<Element>(space, rows{d_pre_}, offsets,
                                                           problem_.gate_up, rows_);
    });
    add_product(routing, "weight_gradient_down", [=, this, &operations, &space]() {
      return operations.template weight_gradient<Element>(space, rows{hidden_}, d_out, offsets,
                                                          problem_.d_down);
    });
    add_product(routing, "weight_gradient_gate_up", [=, this, &operations, &space]() {
      return operations.template weight_gradient<Element>(space, x, rows{d_pre_}, offsets,
                                                          problem_.d_gate_up);
    });
  }

  template <class Operation>
  void add_product(const bench::routed_tokens<real>& routing, const std::string& name,
                   const Operation& operation) {
    const std::string path =
        fmt::format("product/{}/{}/{}", name, options_.path(), routing.kind.name);
    auto& flops = product_flops_.emplace_back();
    const auto number = harness_.add(path, [this, operation, &flops](int /*repetition*/) {
      const bench::stopwatch time;
      flops = operation().flops;
      context_.space.fence("bench: product");
      return std::vector<double>{time.seconds()};
    });
    series_.push_back({.name = path, .measured_case = number, .flops = &flops, .is_rate = true});
  }

  double rate(const measured_series& one) const {
    return *one.flops * 1e-9 / harness_.seconds(one.measured_case, one.index).median;
  }

  std::optional<double> dense_ratio(const measured_series& one) const {
    return rate(one) / rate(series_.front());
  }

  std::optional<double> time_ratio(const measured_series& one, const std::string& name) const {
    for (const auto& other : series_) {
      if (other.name != name || other.is_rate) continue;
      return harness_.seconds(one.measured_case, one.index).median /
             harness_.seconds(other.measured_case, other.index).median;
    }
    return {};
  }

  /// What a reduced layer does beyond an exact one, in seconds of one step: score, draw and certify,
  /// look up what is kept; and copying the kept rows, which happens inside the operations.
  double selection_seconds(const layer_case& one) const {
    return (one.times.seconds_in("lrmoe::moe_layer::select") +
            one.times.seconds_in("lrmoe::moe_layer::certify") +
            one.times.seconds_in("lrmoe::kept_pairs::gather") +
            one.times.seconds_in("lrmoe::kept_pairs::spread")) /
           harness_.repetitions();
  }
  double pack_seconds(const measured_series& one) const {
    return harness_.seconds(one.measured_case, pack_series).median;
  }

  std::optional<double> selection_share(const measured_series& one) const {
    if (one.layer == nullptr || one.estimator == "exact") return {};
    return (selection_seconds(*one.layer) + pack_seconds(one)) * harness_.repetitions() /
           one.layer->measured_seconds;
  }

  /// A layer that computes NaN is not worth timing.
  void check_finite() const {
    const auto finite = [](const char* name, const auto& view) {
      std::int64_t bad = 0;
      const auto* data = view.data();
      Kokkos::parallel_reduce(
          "bench::check_finite", Kokkos::RangePolicy<Kokkos::OpenMP>(0, view.size()),
          [=](const std::int64_t i, std::int64_t& sum) {
            sum += std::isfinite(static_cast<real>(data[i])) ? 0 : 1;
          },
          bad);
      if (bad > 0)
        throw std::runtime_error(fmt::format("{} has {} values that are not finite", name, bad));
    };
    finite("out", problem_.out);
    finite("dx", problem_.dx);
    finite("d_logits", problem_.d_logits);
    finite("the gradient of gate_up", problem_.d_gate_up);
    finite("the gradient of down", problem_.d_down);
  }

  options options_;
  bench::layer_problem<Element> problem_;
  std::deque<bench::routed_tokens<real>> routings_;
  lrmoe::context<bench::host_backend> context_;
  layer layer_;
  bench::harness harness_;
  std::vector<measured_series> series_;  // the dense product first
  // Deques, because cases and series refer to their elements.
  std::deque<layer_case> layer_cases_;
  std::deque<double> product_flops_;
  bench::matrix<real> pack_scratch_;
  bench::matrix<Element> pre_, hidden_, d_pre_, rows_;
  bench::vector<float> norms_;
  bench::vector<real> row_weights_, d_row_weights_;
};

template <class Element>
int run(const options& chosen, int argc, char** argv) {
  std::optional<bench::result_file> file;
  if (!chosen.json_file.empty()) file.emplace(chosen.json_file);
  layer_benchmark<Element> benchmark(chosen);
  if (!chosen.tensor_folder.empty()) {
    benchmark.write_tensors();
    return 0;
  }
  benchmark.measure();

  json machine = bench::host_machine();
  machine["threads"] = Kokkos::OpenMP().concurrency();
  machine["blas"] = bench::dense_product_library();
  const std::string commit = bench::source_commit(LRMOE_SOURCE_DIR);
  fmt::print("{}, {} threads, {}, commit {}, {} repetitions\n\n",
             machine["cpu"].is_null() ? "unknown processor" : machine["cpu"].get<std::string>(),
             machine["threads"].get<int>(), machine["blas"].get<std::string>(), commit,
             chosen.repetitions);
  benchmark.print_table();
  if (chosen.profile) benchmark.print_profiles();
  if (file) {
    file->write(benchmark.results().document("lrmoe_bench_layer", bench::command_line(argc, argv),
                                             commit, machine));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("lrmoe_bench_layer");
  options chosen;
  bench::declare_options(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    return app.exit(problem) == 0 ? 0 : 2;
  }
  if (const std::string problem = bench::conflict(chosen); !problem.empty()) {
    fmt::print(stderr, "lrmoe_bench_layer: {}\nRun with --help for more information.\n", problem);
    return 2;
  }
  try {
    Kokkos::InitializationSettings settings;
    // Kokkos would ask for OMP_PROC_BIND, which ties threads that OpenBLAS makes itself to one core.
    settings.set_disable_warnings(true);
    if (chosen.threads > 0) settings.set_num_threads(chosen.threads);
    const Kokkos::ScopeGuard kokkos(settings);
    if (chosen.type == "bf16") return run<lrmoe::bfloat16>(chosen, argc, argv);
    if (chosen.type == "double") return run<double>(chosen, argc, argv);
    return run<float>(chosen, argc, argv);
  } catch (const std::exception& problem) {
    fmt::print(stderr, "lrmoe_bench_layer: {}\n", problem.what());
    return 1;
  }
}
