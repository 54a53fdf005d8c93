// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// lrmoe_calibrate: measures the rates of this machine that predictions of time go by, and how good the
// predictions are on shapes that the rates were not fitted to.
// Exit code: 0 predictions within the limit, 1 error or not, 2 bad usage.

#include <cstring>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <lrmoe/control/cost_model.hpp>
#include <lrmoe/lrmoe.hpp>
#include <lrmoe/version.hpp>

#include "support/dense_product.hpp"
#include "support/harness.hpp"
#include "support/layer_problem.hpp"
#include "support/rate_fit.hpp"
#include "support/results.hpp"

namespace {

using bench::json;

struct options {
  bool quick = false;
  int repetitions = 5;
  int threads = 0;
  double limit = 0.2;
  std::string json_file;
};

struct layer_case {
  lrmoe::layer_shape shape;
  std::int64_t T;
  double keep;
  bool fitted;  // else only predicted
  std::string routing = "balanced";

  std::string name() const {
    return fmt::format("T{}-K{}-E{}-D{}-F{}/{}/keep={}", T, shape.K, shape.E, shape.D, shape.F,
                       routing, keep);
  }
};

/// Narrow and wide, few and many pairs an expert, exact and reduced; and between them, others to check.
std::vector<layer_case> cases(bool quick) {
  std::vector<layer_case> all;
  const auto shape = [](std::int64_t D, std::int64_t F, std::int64_t E, std::int64_t K) {
    return lrmoe::layer_shape{.D = D, .F = F, .E = E, .K = K};
  };
  for (const double keep : {1.0, 0.25}) {
    all.push_back({shape(64, 64, 8, 2), 2048, keep, true});
    all.push_back({shape(128, 128, 16, 4), 1024, keep, true});
    all.push_back({shape(64, 64, 16, 4), 1024, keep, false});
    if (quick) continue;
    all.push_back({shape(256, 256, 32, 4), 512, keep, true});
    all.push_back({shape(256, 128, 16, 2), 4096, keep, true});
    all.push_back({shape(512, 512, 32, 4), 512, keep, true});
    all.push_back({shape(512, 512, 16, 2), 2048, keep, true});
    all.push_back({shape(128, 256, 16, 4), 2048, keep, false});
    all.push_back({shape(384, 384, 24, 2), 1536, keep, false});
    all.push_back({shape(512, 512, 32, 4), 4096, keep, false});
    all.push_back({shape(256, 256, 32, 4), 2048, keep, false, "zipf1.2"});
  }
  return all;
}

/// One layer with its data, called once a repetition.
class measured_layer {
 public:
  explicit measured_layer(const layer_case& given)
      : case_(given),
        problem_(given.shape, given.T),
        routing_(bench::skew{given.routing}, given.T, given.shape.E, given.shape.K),
        layer_(context_, given.shape, {.quota = {.keep = given.keep}}) {
    if (given.keep == 1.0) layer_.policies().estimator = lrmoe::exact{};
  }

  double seconds(int repetition) {
    const bench::stopwatch time;
    layer_.forward(static_cast<std::uint64_t>(repetition + 100), problem_.x, routing_.logits,
                   problem_.weights(), problem_.out);
    layer_.backward(problem_.d_out, problem_.weights(), problem_.dx, problem_.d_logits,
                    problem_.gradients());
    report_ = layer_.report();
    return time.seconds();
  }

  /// Prediction with these rates for what the last call did.
  double predicted_s(const lrmoe::machine_rates& rates) const {
    const lrmoe::cost_model model(rates, case_.shape, sizeof(float), sizeof(float));
    std::int64_t in_use = 0;
    for (const auto count : routing_.counts) in_use += count > 0 ? 1 : 0;
    return model.forward_s(case_.T, report_.pairs, in_use) +
           model.backward_fixed_s(case_.T, report_.pairs, in_use) +
           model.kept_pair_s() * static_cast<double>(report_.pairs_kept);
  }

  /// What the prediction consists of, by evaluating it with one rate at a time.
  std::array<double, 3> amounts() const {
    constexpr double never = 1e300;
    const double flops = predicted_s(
        {.product_flops_per_s = 1, .product_half_width = 0, .memory_bytes_per_s = never});
    const double narrow = predicted_s(
        {.product_flops_per_s = 1, .product_half_width = 1, .memory_bytes_per_s = never});
    const double bytes = predicted_s(
        {.product_flops_per_s = never, .product_half_width = 0, .memory_bytes_per_s = 1});
    return {flops, narrow - flops, bytes};
  }

  const layer_case& of() const { return case_; }

 private:
  using estimator = lrmoe::any_estimator<lrmoe::pps, lrmoe::exact>;
  using policies =
      lrmoe::policies<lrmoe::softmax_top_k, lrmoe::fixed_fraction, lrmoe::lrm_score, estimator>;

  layer_case case_;
  bench::layer_problem<float> problem_;
  bench::routed_tokens<float> routing_;
  lrmoe::context<bench::host_backend> context_;
  lrmoe::moe_layer<float, bench::host_backend, policies> layer_;
  lrmoe::backward_report report_;
};

/// Bytes a second of copying between two ranks of this process, which is what a link inside it does.
double copy_rate() {
  std::vector<char> from(std::size_t{64} << 20, 1), to(from.size());
  double best = 1e300;
  for (int i = 0; i < 5; ++i) {
    const bench::stopwatch time;
    std::memcpy(to.data(), from.data(), from.size());
    best = std::min(best, time.seconds());
    from[static_cast<std::size_t>(i)] = to[from.size() - 1];
  }
  return static_cast<double>(from.size()) / best;
}

int run(const options& chosen, int argc, char** argv) {
  std::optional<bench::result_file> file;
  if (!chosen.json_file.empty()) file.emplace(chosen.json_file);
  std::vector<std::unique_ptr<measured_layer>> layers;
  bench::harness harness(1, chosen.repetitions);
  for (const auto& one : cases(chosen.quick)) {
    auto& layer = *layers.emplace_back(std::make_unique<measured_layer>(one));
    harness.add(one.name(), [&layer](int repetition) {
      return std::vector<double>{layer.seconds(repetition)};
    });
  }
  harness.run();

  std::vector<bench::timed_work> fitted;
  for (std::size_t i = 0; i < layers.size(); ++i)
    if (layers[i]->of().fitted) fitted.push_back({layers[i]->amounts(), harness.seconds(i).median});
  const auto cost = bench::fit_costs(fitted);
  lrmoe::machine_rates rates;
  if (cost[0] > 0.0) {
    rates.product_flops_per_s = 1.0 / cost[0];
    rates.product_half_width = cost[1] / cost[0];
  }
  if (cost[2] > 0.0) rates.memory_bytes_per_s = 1.0 / cost[2];
  rates.inside.bytes_per_s = copy_rate();
  rates.validate();

  bench::result_set results;
  results.add("rate/product", rates.product_flops_per_s, "FLOP/s");
  results.add("rate/product_half_width", rates.product_half_width, "elements");
  results.add("rate/memory", rates.memory_bytes_per_s, "B/s");
  results.add("rate/inside", rates.inside.bytes_per_s, "B/s");
  fmt::print(
      "products {:.1f} GFLOP/s at wide extents, half of it at width {:.0f}; row work "
      "{:.1f} GB/s; copies {:.1f} GB/s\nlinks between nodes are not measured here: {:.2f} "
      "GB/s, {:.0f} us by default\n\n{:<44} {:>10} {:>10} {:>7}\n",
      rates.product_flops_per_s * 1e-9, rates.product_half_width, rates.memory_bytes_per_s * 1e-9,
      rates.inside.bytes_per_s * 1e-9, rates.across.bytes_per_s * 1e-9,
      rates.across.latency_s * 1e6, "layer", "measured", "predicted", "ratio");
  double worst = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto measured = harness.seconds(i);
    const double predicted = layers[i]->predicted_s(rates);
    const auto& of = layers[i]->of();
    const double ratio = predicted / measured.median;
    if (!of.fitted) worst = std::max(worst, std::abs(ratio - 1.0));
    fmt::print("{:<44} {:>7.2f} ms {:>7.2f} ms {:>7.2f}{}\n", of.name(), measured.median * 1e3,
               predicted * 1e3, ratio, of.fitted ? "  fitted" : "");
    results.add("layer/" + of.name() + "/full", measured.median, "s", {},
                {{"min", measured.min}, {"max", measured.max}});
    results.add("predicted/" + of.name() + "/full", predicted, "s", "layer/" + of.name() + "/full",
                {{"fitted", of.fitted}});
  }
  const bool good = worst <= chosen.limit;
  fmt::print("\npredictions of layers that were not fitted are within {:.0f} % ({} {:.0f} %)\n",
             worst * 100, good ? "limit" : "more than the limit of", chosen.limit * 100);
  if (file) {
    auto document = results.document("lrmoe_calibrate", bench::command_line(argc, argv),
                                     bench::source_commit(LRMOE_SOURCE_DIR), bench::host_machine());
    const auto link = [](const lrmoe::link_rate& of) {
      return json{{"bytes_per_s", of.bytes_per_s}, {"latency_s", of.latency_s}};
    };
    document["rates"] = {{"product_flops_per_s", rates.product_flops_per_s},
                         {"product_half_width", rates.product_half_width},
                         {"memory_bytes_per_s", rates.memory_bytes_per_s},
                         {"inside", link(rates.inside)},
                         {"across", link(rates.across)},
                         {"ranks_per_node", rates.ranks_per_node}};
    file->write(document);
  }
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("lrmoe_calibrate");
  options chosen;
  app.description(
      "Measures one MoE layer in several shapes, fits the rates of this machine to the times, and\n"
      "predicts other shapes with them. The rates in --json are what lrmoe_train --calibration "
      "reads.");
  app.option_defaults()->always_capture_default();
  app.set_version_flag("--version", "lrmoe_calibrate " LRMOE_VERSION_STRING);
  app.add_option("--repetitions", chosen.repetitions, "measurements of each shape")
      ->check(CLI::Range(1, 1000))
      ->type_name("INT");
  app.add_option("--threads", chosen.threads, "threads; 0: OMP_NUM_THREADS, or all cores")
      ->check(CLI::Range(0, 4096))
      ->type_name("INT");
  app.add_option("--limit", chosen.limit, "largest relative error of a prediction for exit code 0")
      ->check(CLI::Range(0.0, 1e6))
      ->type_name("REAL");
  app.add_option("--json", chosen.json_file, "file for rates and results")->type_name("FILE");
  app.add_flag("--quick", chosen.quick, "a few small shapes, to see that it works");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    return app.exit(problem) == 0 ? 0 : 2;
  }
  try {
    Kokkos::InitializationSettings settings;
    settings.set_disable_warnings(true);
    if (chosen.threads > 0) settings.set_num_threads(chosen.threads);
    const Kokkos::ScopeGuard kokkos(settings);
    return run(chosen, argc, argv);
  } catch (const std::exception& problem) {
    fmt::print(stderr, "lrmoe_calibrate: {}\n", problem.what());
    return 1;
  }
}
