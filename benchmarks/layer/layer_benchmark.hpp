// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <lrmoe/estimator/any_estimator.hpp>
#include <lrmoe/estimator/exact.hpp>
#include <lrmoe/estimator/top.hpp>
#include <lrmoe/estimator/uniform.hpp>
#include <lrmoe/lrmoe.hpp>

#include "../support/call_counts.hpp"
#include "../support/dense_product.hpp"
#if LRMOE_HAS_CUDA_BACKEND
#include "../support/gpu.hpp"
#endif
#include "../support/harness.hpp"
#include "../support/layer_options.hpp"
#include "../support/layer_problem.hpp"
#include "../support/npy.hpp"
#include "../support/profile.hpp"
#include "../support/results.hpp"
#include "host_packing.hpp"
#include "products_alone.hpp"

namespace bench {

/// The benchmark for one element type and backend.
template <class Element, class Backend>
class layer_benchmark {
 public:
  using real = lrmoe::accumulate_t<Element>;
  using estimator = lrmoe::any_estimator<lrmoe::exact, lrmoe::pps, lrmoe::top,
                                         lrmoe::top_plus_sampled, lrmoe::uniform>;
  using policies =
      lrmoe::policies<lrmoe::softmax_top_k, lrmoe::fixed_fraction, lrmoe::lrm_score, estimator>;
  using layer_type = lrmoe::moe_layer<Element, Backend, policies>;
  using index_type = lrmoe::index_type;
  using space_type = typename Backend::execution_space;
  using device = typename Backend::device_type;
  using timer = work_timer<space_type>;
  using routed = routed_tokens<real, device>;
  template <class T>
  using vector = bench::vector<T, device>;
  template <class T>
  using matrix = bench::matrix<T, device>;

  static constexpr bool on_gpu =
      !Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename space_type::memory_space>::accessible;

  /// Series of a layer's case.
  static constexpr std::size_t forward_series = 0;
  static constexpr std::size_t full_series = 1;
  static constexpr std::size_t pack_series = 2;  // on the host

  static constexpr int profiled_steps = 3;  // of each layer, on a GPU

  /// Rates are given in billions of operations a second on the host, in trillions on a GPU.
  static constexpr double rate_unit = on_gpu ? 1e-12 : 1e-9;
  static constexpr const char* rate_name = on_gpu ? "TFLOP/s" : "GFLOP/s";

  explicit layer_benchmark(const options& chosen)
      : options_(chosen),
        warm_ups_(chosen.warm_ups_or_default()),
        problem_(chosen.shape, chosen.tokens),
        layer_(context_, chosen.shape),
        timer_(context_.space),
        harness_(warm_ups_, chosen.repetitions, cold_start(context_.space)) {
    for (const auto& name : chosen.routings)
      routings_.emplace_back(skew{name}, problem_.T, problem_.shape.E, problem_.shape.K);
  }

  void measure() {
    if (!on_gpu) {
      pack_scratch_ = matrix<real>("pack_scratch", pack_scratch_rows * context_.space.concurrency(),
                                   problem_.shape.D);
    }
    add_dense();
    for (const auto& routing : routings_) add_layers(routing);
    if (options_.products) {
      make_product_buffers();
      for (const auto& routing : routings_) add_products(routing);
      add_products_alone();
    }
    harness_.run();
    for (auto& one : layer_cases_) observe(one);
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
    const auto write = [&](const char* name, const auto& view) {
      if (view.size() > 0) write_npy(folder / (name + std::string(".npy")), host_copy(view));
    };
    write("x", problem_.x);
    write("logits", routing.logits);
    write("gate_up", problem_.gate_up);
    write("down", problem_.down);
    write("shared_gate_up", problem_.shared_gate_up);
    write("shared_down", problem_.shared_down);
    write("d_out", problem_.d_out);
    write("out", problem_.out);
    write("dx", problem_.dx);
    write("d_logits", problem_.d_logits);
    write("d_gate_up", problem_.d_gate_up);
    write("d_down", problem_.d_down);
    write("d_shared_gate_up", problem_.d_shared_gate_up);
    write("d_shared_down", problem_.d_shared_down);
    result_file(folder / "layer.json")
        .write({{"shape", options_.path()},
                {"routing", routing.kind.name},
                {"type", options_.type},
                {"top_k", problem_.shape.K},
                {"shared_expert", problem_.shape.F_shared > 0}});
  }

  void print_table() const {
    std::size_t width = 0;
    for (const auto& one : series_) width = std::max(width, one.name.size());
    fmt::print("{:{}} {:>9} {:>21} {:>9} {:>7} {:>7} {:>9} {:>7}", "", width, "ms", "(min .. max)",
               rate_name, "/dense", "/exact", "/balanced", "select");
    fmt::print("{}\n", on_gpu ? fmt::format(" {:>9} {:>7}", "products", "rest") : std::string());
    const auto ratio = [](std::optional<double> value) {
      return value ? fmt::format("{:.3f}", *value) : std::string("-");
    };
    for (const auto& one : series_) {
      const spread time = harness_.seconds(one.measured_case, one.index);
      fmt::print("{:{}} {:9.3f} {:>21} {:9.1f} {:>7} {:>7} {:>9} {:>7}", one.name, width,
                 time.median * 1e3,
                 fmt::format("({:.3f} .. {:.3f})", time.min * 1e3, time.max * 1e3), rate(one),
                 ratio(dense_ratio(one)), ratio(time_ratio(one, one.exact)),
                 ratio(time_ratio(one, one.balanced)), ratio(selection_share(one)));
      if (on_gpu) {
        const auto products = products_seconds(one);
        fmt::print(" {:>9} {:>7}", products ? fmt::format("{:.3f}", *products * 1e3) : "-",
                   ratio(not_product_share(one)));
      }
      fmt::print("\n");
    }
  }

  void print_profiles() const {
    for (const auto& one : layer_cases_) {
      if (one.profiled == 0) continue;
      const double total = one.profiled_seconds;
      fmt::print("\n{}\n{:>10} {:>7} {:>10} {:>7}  {}\n", one.name, "ms a step", "share", "own ms",
                 "calls", "label");
      double inside = 0;
      one.times.visit([&](const profile::node& node, int depth) {
        if (depth == 0) inside += node.seconds;
        fmt::print("{:10.3f} {:6.2f}% {:10.3f} {:7.1f}  {:{}}{}\n",
                   node.seconds * 1e3 / one.profiled, 100 * node.seconds / total,
                   node.own_seconds() * 1e3 / one.profiled,
                   static_cast<double>(node.calls) / one.profiled, "", 2 * depth, node.label);
      });
      fmt::print("{:10.3f} {:6.2f}% {:19}outside all regions\n",
                 (total - inside) * 1e3 / one.profiled, 100 * (total - inside) / total, "");
    }
  }

  /// What a call does besides kernels, once all buffers are there.
  void print_counts() const {
    for (const auto& one : layer_cases_) {
      const auto& [forward, full, forward_ledger, full_ledger] = one.counts;
      fmt::print(
          "\n{}: {} allocations ({} booked), {} fences, {} copies to the host a step; "
          "forward {}, {} and {}\n",
          one.name, full.allocations, full_ledger, full.fences, full.copies_to_host,
          forward.allocations, forward.fences, forward.copies_to_host);
      for (const auto& [name, count] : full.fences_by_name) fmt::print("{:7}  {}\n", count, name);
    }
  }

  result_set results() const {
    result_set set;
    for (const auto& one : series_) {
      const spread time = harness_.seconds(one.measured_case, one.index);
      json fields{{"repetitions", harness_.repetitions()}, {"type", options_.type}};
      if (!one.gradients.empty()) fields["gradients"] = one.gradients;
      if (one.is_rate) {
        const double work = *one.flops * rate_unit;
        fields.update(
            {{"min", work / time.max}, {"max", work / time.min}, {"ms", time.median * 1e3}});
        set.add(one.name, rate(one), rate_name,
                &one == &series_.front() ? "" : series_.front().name, fields);
        continue;
      }
      const std::string& baseline = one.name == one.exact ? one.balanced : one.exact;
      fields.update({{"min", time.min * 1e3},
                     {"max", time.max * 1e3},
                     {"gflop_per_s", *one.flops * 1e-9 / time.median},
                     {"ratio_to_dense_rate", *dense_ratio(one)},
                     {"ratio_to_balanced", nullptr},
                     {"estimator", one.estimator}});
      if (const auto balanced = time_ratio(one, one.balanced))
        fields["ratio_to_balanced"] = *balanced;
      if (const auto products = products_seconds(one)) {
        fields.update(
            {{"products_ms", *products * 1e3}, {"not_product_share", *not_product_share(one)}});
      }
      const auto& counts = one.layer->counts;
      const bool full = one.index == full_series;
      const call_counts& counted = full ? counts.full : counts.forward;
      fields.update(
          {{"allocations_per_call", counted.allocations},
           {"booked_allocations_per_call", full ? counts.full_ledger : counts.forward_ledger},
           {"host_synchronisations_per_call", counted.fences},
           {"copies_to_host_per_call", counted.copies_to_host}});
      if (full) fields["saved_activation_bytes"] = one.layer->saved_bytes;
      if (const auto share = selection_share(one)) {
        fields.update({{"selection_share", *share},
                       {"selection_ms", selection_seconds(*one.layer) * 1e3},
                       {"pack_ms", pack_seconds(one) * 1e3}});
      }
      set.add(one.name, time.median * 1e3, "ms", baseline == one.name ? "" : baseline, fields);
    }
    return set;
  }

  /// How the products of the layer are computed, in words; empty where there is one way.
  std::string products_report() {
    if constexpr (requires { context_.operations.product().report(); })
      return context_.operations.product().report();
    return {};
  }

 private:
  /// Counts of one call in steady state; full is forward and backward.
  struct steady_counts {
    call_counts forward{}, full{};
    std::int64_t forward_ledger = 0, full_ledger = 0;
  };

  /// A layer with its settings, and what is learned about it while it is measured.
  struct layer_case {
    std::string name;
    const routed* routing = nullptr;
    lrmoe::fixed_fraction quota{};
    estimator chosen{};
    lrmoe::saved_activations saved = lrmoe::saved_activations::save;
    named_update gradients = named_updates.front();
    std::int64_t kept = 0;
    profile times{};
    double profiled_seconds = 0;
    int profiled = 0;  ///< steps in times
    double forward_flops = 0;
    double full_flops = 0;
    std::int64_t saved_bytes = 0;  ///< activations kept from forward to backward
    steady_counts counts{};
    std::optional<std::size_t> products_case{};
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
    std::string gradients{};  ///< what is done with them, where there are any
    const layer_case* layer = nullptr;
  };

  void add_dense() {
    using baseline = dense_baseline<Element, space_type>;
    using element = typename baseline::element;
    const std::int64_t P = problem_.T * problem_.shape.K;
    const std::int64_t D = problem_.shape.D;
    const std::int64_t F = problem_.shape.F;
    const matrix<element> a("dense_a", P, D), b("dense_b", D, 2 * F), c("dense_c", P, 2 * F);
    fill_normal(a, 8, 1.0);
    fill_normal(b, 9, 1.0);
    const std::string name = "dense/" + type_name<element>();
    const auto product = std::make_shared<baseline>(context_.space);
    const auto number = harness_.add(name, [this, product, a, b, c](int /*repetition*/) {
      timer_.start();
      product->template multiply<device>(a, b, c);
      timer_.mark();
      return timer_.seconds();
    });
    product_flops_.push_back(4.0 * static_cast<double>(P) * static_cast<double>(D) *
                             static_cast<double>(F));
    series_.push_back(
        {.name = name, .measured_case = number, .flops = &product_flops_.back(), .is_rate = true});
  }

  void add_layers(const routed& routing) {
    for (const double keep : options_.keeps)
      for (const named_update& gradients : options_.updates()) add_layers(routing, keep, gradients);
  }

  void add_layers(const routed& routing, double keep, const named_update& gradients) {
    using saving = lrmoe::saved_activations;
    const auto add = [&](const std::string& name, const estimator& chosen, saving saved) {
      add_layer(routing, keep, name, chosen, saved, gradients);
    };
    if (keep == 1.0) return add("exact", lrmoe::exact{}, saving::save);
    for (const auto& name : options_.estimators) {
      if (name == "pps") add(name, lrmoe::pps{}, saving::save);
      if (name == "top") add(name, lrmoe::top{}, saving::save);
      if (name == "uniform") add(name, lrmoe::uniform{}, saving::save);
      if (name == "top_plus_sampled") add(name, lrmoe::top_plus_sampled{}, saving::save);
    }
    for (const auto& saved : options_.saved) {
      if (saved == "recompute") add("pps", lrmoe::pps{}, saving::recompute);
      if (saved == "proxy") add("pps", lrmoe::pps{}, saving::proxy);
    }
  }

  void add_layer(const routed& routing, double keep, const std::string& estimator_name,
                 const estimator& chosen, lrmoe::saved_activations saved,
                 const named_update& gradients) {
    // Default rules go without saying.
    std::string rule = estimator_name == "exact" || estimator_name == "pps"
                           ? fmt::format("keep={}", keep)
                           : fmt::format("keep={}/estimator={}", keep, estimator_name);
    if (saved == lrmoe::saved_activations::recompute) rule += "/save=recompute";
    if (saved == lrmoe::saved_activations::proxy) rule += "/save=proxy";
    rule += gradients.path();
    const auto prefix = [&](const std::string& kind) {
      return fmt::format("layer/{}/{}/", options_.path(), kind);
    };
    auto& mine = layer_cases_.emplace_back();
    mine.name = prefix(routing.kind.name) + rule;
    mine.routing = &routing;
    mine.quota = {.keep = keep};
    mine.chosen = chosen;
    mine.saved = saved;
    mine.gradients = gradients;
    for (const auto count : routing.counts)
      mine.kept += mine.quota.of(static_cast<index_type>(count));
    const auto number = harness_.add(
        mine.name, [this, &mine](int repetition) { return measure_step(mine, repetition); });

    const auto add = [&](const std::string& part, std::size_t index, const double& flops) {
      series_.push_back(
          {.name = mine.name + "/" + part,
           .measured_case = number,
           .index = index,
           .flops = &flops,
           .exact = prefix(routing.kind.name) + "keep=1" + gradients.path() + "/" + part,
           .balanced = prefix("balanced") + rule + "/" + part,
           .estimator = estimator_name,
           .gradients = gradients.name,
           .layer = &mine});
    };
    add("forward", forward_series, mine.forward_flops);
    add("full", full_series, mine.full_flops);
  }

  /// A repetition of a layer's case. On the host callbacks cost nothing, so every one is profiled.
  std::vector<double> measure_step(layer_case& mine, int repetition) {
    std::optional<profile::recording> recording;
    if (!on_gpu && repetition >= 0) recording.emplace(mine.times);
    std::vector<double> seconds = step(mine, repetition);
    recording.reset();
    if (on_gpu) return seconds;
    if (repetition >= 0) {
      mine.profiled_seconds += seconds[full_series];
      ++mine.profiled;
    }
    seconds.push_back(time_pack(mine.kept));
    return seconds;
  }

  /// One step of the layer; its results say whether it did the work it is timed for. Returns seconds of
  /// forward, and of forward and backward.
  std::vector<double> step(layer_case& mine, int repetition) {
    choose(mine);
    timer_.start();
    forward(mine, repetition);
    timer_.mark();
    backward(mine);
    timer_.mark();
    const lrmoe::backward_report& report = layer_.report();
    const std::vector<double> seconds = timer_.seconds();
    mine.saved_bytes = layer_.planned_memory()[lrmoe::memory_category::saved_activations];
    mine.forward_flops = problem_.forward_flops();
    mine.full_flops = mine.forward_flops + report.routed.flops + report.shared.flops;
    check_work(mine, report);
    return seconds;
  }

  void choose(const layer_case& mine) {
    layer_.policies().quota = mine.quota;
    layer_.policies().estimator = mine.chosen;
    layer_.policies().saved = mine.saved;
  }
  void forward(const layer_case& mine, int repetition) {
    layer_.forward(static_cast<std::uint64_t>(repetition + warm_ups_), problem_.x,
                   mine.routing->logits, problem_.weights(), problem_.out);
  }
  void backward(const layer_case& mine) {
    layer_.backward(problem_.d_out, problem_.weights(), problem_.dx, problem_.d_logits,
                    problem_.gradients(), mine.gradients.update);
  }

  void check_work(const layer_case& mine, const lrmoe::backward_report& report) const {
    const auto offsets = host_copy(layer_.last_order().offsets);
    const auto& counts = mine.routing->counts;
    for (std::size_t e = 0; e < counts.size(); ++e) {
      const index_type count = offsets(e + 1) - offsets(e);
      if (count != counts[e]) {
        throw std::runtime_error(fmt::format("{}: expert {} got {} pairs instead of {}", mine.name,
                                             e, count, counts[e]));
      }
    }
    if (report.pairs_kept != mine.kept) {
      throw std::runtime_error(fmt::format("{}: backward kept {} pairs, its quotas allow {}",
                                           mine.name, report.pairs_kept, mine.kept));
    }
  }

  /// Steps beside the timed ones, whose callbacks would cost time on a GPU. All sizes have been seen.
  void observe(layer_case& mine) {
    choose(mine);
    count_calls(mine);
    if (!on_gpu || !options_.profile) return;
    const stopwatch time;
    for (int i = 0; i < profiled_steps; ++i) {
      const profile::recording recording(mine.times, true);
      forward(mine, harness_.repetitions() + 1 + i);
      backward(mine);
      context_.space.fence("bench: profiled step");
    }
    mine.profiled_seconds = time.seconds();
    mine.profiled = profiled_steps;
  }

  void count_calls(layer_case& mine) {
    steady_counts& counts = mine.counts;
    const std::int64_t before = context_.memory.allocations();
    {
      const call_counts::recording recording(counts.forward);
      forward(mine, harness_.repetitions());
    }
    counts.forward_ledger = context_.memory.allocations() - before;
    counts.full = counts.forward;
    {
      const call_counts::recording recording(counts.full);
      backward(mine);
    }
    counts.full_ledger = context_.memory.allocations() - before;
  }

  /// The rows that the last backward copied on the host: of dO for two operations, of x for one.
  double time_pack([[maybe_unused]] std::int64_t kept) {
    if constexpr (on_gpu) {
      return 0;
    } else {
      return seconds_to_pack<Element, real>({problem_.d_out, problem_.d_out, problem_.x},
                                            layer_.last_order(), layer_.last_selection().rows, kept,
                                            problem_.shape.K, pack_scratch_);
    }
  }

  void make_product_buffers() {
    const auto& [D, F, E, K, F_shared] = problem_.shape;
    const std::int64_t P = problem_.T * K;
    pre_ = matrix<Element>("pre", P, 2 * F);
    hidden_ = matrix<Element>("hidden", P, F);
    d_pre_ = matrix<Element>("d_pre", P, 2 * F);
    rows_ = matrix<Element>("rows", P, D);
    norms_ = vector<float>("norms", P);
    row_weights_ = vector<real>("row_weights", P);
    d_row_weights_ = vector<real>("d_row_weights", P);
    fill_normal(pre_, 10, 1.0);
    fill_normal(hidden_, 11, 1.0);
    fill_normal(d_pre_, 12, 1.0);
    Kokkos::deep_copy(row_weights_, real(1) / static_cast<real>(K));
  }

  /// The five operations with all pairs of a routing as rows, as the exact layer calls them.
  void add_products(const routed& routing) {
    using rows = lrmoe::gathered_rows<Element, device>;
    const rows x{problem_.x, routing.token_of_row, routing.row_of_pair};
    const rows d_out{problem_.d_out, routing.token_of_row, routing.row_of_pair};
    const lrmoe::row_groups<device> groups = routing.groups();
    auto& operations = context_.operations;
    const auto& space = context_.space;

    add_product(routing, "gate_up", [=, this, &operations, &space]() {
      return operations.template gate_up<Element>(space, x, groups, problem_.gate_up, pre_, hidden_,
                                                  norms_);
    });
    add_product(routing, "down", [=, this, &operations, &space]() {
      return operations.template down<Element>(space, rows{hidden_}, groups, problem_.down, rows_);
    });
    add_product(routing, "down_backward", [=, this, &operations, &space]() {
      return operations.template down_backward<Element>(
          space, {x, rows{pre_}, d_out, groups, row_weights_, {}}, problem_.down, d_pre_, hidden_,
          d_row_weights_);
    });
    add_product(routing, "gate_up_backward", [=, this, &operations, &space]() {
      return operations.template gate_up_backward<Element>(space, rows{d_pre_}, groups,
                                                           problem_.gate_up, rows_);
    });
    for (const named_update& gradients : options_.updates()) {
      const lrmoe::gradient_update update = gradients.update;
      add_product(
          routing, "weight_gradient_down",
          [=, this, &operations, &space]() {
            return operations.template weight_gradient<Element>(space, rows{hidden_}, d_out, groups,
                                                                problem_.d_down, update);
          },
          &gradients);
      add_product(
          routing, "weight_gradient_gate_up",
          [=, this, &operations, &space]() {
            return operations.template weight_gradient<Element>(space, x, rows{d_pre_}, groups,
                                                                problem_.d_gate_up, update);
          },
          &gradients);
    }
  }

  template <class Operation>
  void add_product(const routed& routing, const std::string& name, const Operation& operation,
                   const named_update* gradients = nullptr) {
    const std::string path = fmt::format("product/{}/{}/{}{}", name, options_.path(),
                                         routing.kind.name, gradients ? gradients->path() : "");
    auto& flops = product_flops_.emplace_back();
    const auto number = harness_.add(path, [this, operation, &flops](int /*repetition*/) {
      timer_.start();
      flops = operation().flops;
      timer_.mark();
      return timer_.seconds();
    });
    series_.push_back({.name = path,
                       .measured_case = number,
                       .flops = &flops,
                       .is_rate = true,
                       .gradients = gradients ? gradients->name : ""});
  }

  /// The products of every layer without its row kernels, where the operations are composed of both.
  void add_products_alone() {
    if constexpr (requires { context_.operations.product(); }) {
      products_alone_.emplace(context_, problem_, pre_, hidden_, d_pre_, rows_);
      for (auto& one : layer_cases_) {
        const auto groups = products_alone_->groups_of(*one.routing, one.quota);
        const bool again = one.saved == lrmoe::saved_activations::recompute;
        const lrmoe::gradient_update update = one.gradients.update;
        one.products_case = harness_.add(one.name + ", products",
                                         [this, groups, again, update](int /*repetition*/) {
                                           timer_.start();
                                           products_alone_->forward(groups);
                                           timer_.mark();
                                           products_alone_->backward(groups, again, update);
                                           timer_.mark();
                                           return timer_.seconds();
                                         });
      }
    }
  }

  double rate(const measured_series& one) const {
    return *one.flops * rate_unit / harness_.seconds(one.measured_case, one.index).median;
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

  std::optional<double> products_seconds(const measured_series& one) const {
    if (one.layer == nullptr || !one.layer->products_case) return {};
    return harness_.seconds(*one.layer->products_case, one.index).median;
  }

  std::optional<double> not_product_share(const measured_series& one) const {
    const auto products = products_seconds(one);
    if (!products) return {};
    return 1.0 - *products / harness_.seconds(one.measured_case, one.index).median;
  }

  /// What a reduced layer does beyond an exact one, in seconds of one step: score, draw and certify,
  /// look up what is kept; and copying the kept rows.
  double selection_seconds(const layer_case& one) const {
    return (one.times.seconds_in("lrmoe::moe_layer::select") +
            one.times.seconds_in("lrmoe::moe_layer::certify") +
            one.times.seconds_in("lrmoe::kept_pairs::gather") +
            one.times.seconds_in("lrmoe::kept_pairs::spread")) /
           one.profiled;
  }
  /// On the host copies happen inside the operations; on a GPU they are kernels.
  double pack_seconds(const measured_series& one) const {
    if (on_gpu)
      return one.layer->times.seconds_in("lrmoe::gather_rows::copy", "lrmoe::moe_layer::backward") /
             one.layer->profiled;
    return harness_.seconds(one.measured_case, pack_series).median;
  }

  std::optional<double> selection_share(const measured_series& one) const {
    if (one.layer == nullptr || one.index != full_series || one.estimator == "exact" ||
        one.layer->profiled == 0)
      return {};
    return (selection_seconds(*one.layer) + pack_seconds(one)) * one.layer->profiled /
           one.layer->profiled_seconds;
  }

  /// A layer that computes NaN is not worth timing.
  void check_finite() const {
    const auto finite = [](const char* name, const auto& view) {
      if (const auto bad = count_not_finite(view); bad > 0)
        throw std::runtime_error(fmt::format("{} has {} values that are not finite", name, bad));
    };
    finite("out", problem_.out);
    finite("dx", problem_.dx);
    finite("d_logits", problem_.d_logits);
    finite("the gradient of gate_up", problem_.d_gate_up);
    finite("the gradient of down", problem_.d_down);
  }

  options options_;
  int warm_ups_;
  layer_problem<Element, device> problem_;
  std::deque<routed> routings_;
  lrmoe::context<Backend> context_;
  layer_type layer_;
  timer timer_;
  harness harness_;
  std::vector<measured_series> series_;  // the dense product first
  // Deques, because cases and series refer to their elements.
  std::deque<layer_case> layer_cases_;
  std::deque<double> product_flops_;
  matrix<real> pack_scratch_;
  matrix<Element> pre_, hidden_, d_pre_, rows_;
  vector<float> norms_;
  vector<real> row_weights_, d_row_weights_;
  std::optional<products_alone<Element, Backend>> products_alone_;
};

/// Measures, prints and writes what the options ask for. `machine` is the document's.
template <class Element, class Backend>
int run_layer_benchmark(const options& chosen, const std::string& command, json machine) {
  std::optional<result_file> file;
  if (!chosen.json_file.empty()) file.emplace(chosen.json_file);
  layer_benchmark<Element, Backend> benchmark(chosen);
  if (!chosen.tensor_folder.empty()) {
    benchmark.write_tensors();
    return 0;
  }
  benchmark.measure();

  const std::string commit = source_commit(LRMOE_SOURCE_DIR);
  machine["backend"] = chosen.backend;
  machine["clock"] = work_timer<typename Backend::execution_space>::clock;
  fmt::print("{}, commit {}, {} repetitions\n\n", summary(machine), commit, chosen.repetitions);
  benchmark.print_table();
  if (chosen.profile) {
    benchmark.print_profiles();
    benchmark.print_counts();
    fmt::print("\n{}", benchmark.products_report());
  }
  if (file)
    file->write(benchmark.results().document("lrmoe_bench_layer", command, commit, machine));
  return 0;
}

/// run_layer_benchmark on the GPU. Throws what lrmoe::cuda::require_device throws.
int run_on_gpu(const options& chosen, const std::string& command);

}  // namespace bench
