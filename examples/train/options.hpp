// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <lrmoe/estimator/gradient_scope.hpp>
#include <lrmoe/memory/saved_activations.hpp>
#include <lrmoe/scoring/any_scorer.hpp>

#include "checkpoint.hpp"

namespace train {

/// Where the MoE layers compute.
enum class backend_choice { host, cuda };
/// How a run saves MoE-layer time; a run with `exact` saves none.
enum class method { exact, lrmoe, smaller_batch, fewer_steps, frozen_experts };
enum class estimator_choice { pps, pps_shuffled, top, top_plus_sampled, uniform, uniform_unscaled };
enum class controller_choice {
  fixed_fraction,
  shared_threshold,
  error_bounded,
  time_optimal,
  annealed,
  memory_network
};

/// Names on the command line and in logs.
template <class Choice>
using names = std::vector<std::pair<std::string, Choice>>;
inline const names<backend_choice> backend_names{{"host", backend_choice::host},
                                                 {"cuda", backend_choice::cuda}};
inline const names<method> method_names{{"exact", method::exact},
                                        {"lrmoe", method::lrmoe},
                                        {"smaller-batch", method::smaller_batch},
                                        {"fewer-steps", method::fewer_steps},
                                        {"frozen-experts", method::frozen_experts}};
inline const names<estimator_choice> estimator_names{
    {"pps", estimator_choice::pps},
    {"pps-shuffled", estimator_choice::pps_shuffled},
    {"top", estimator_choice::top},
    {"top-plus-sampled", estimator_choice::top_plus_sampled},
    {"uniform", estimator_choice::uniform},
    {"uniform-unscaled", estimator_choice::uniform_unscaled}};
inline const names<controller_choice> controller_names{
    {"fixed-fraction", controller_choice::fixed_fraction},
    {"shared-threshold", controller_choice::shared_threshold},
    {"error-bounded", controller_choice::error_bounded},
    {"time-optimal", controller_choice::time_optimal},
    {"annealed", controller_choice::annealed},
    {"memory-network", controller_choice::memory_network}};
inline const names<lrmoe::saved_activations> saved_names{
    {"save", lrmoe::saved_activations::save},
    {"recompute", lrmoe::saved_activations::recompute},
    {"proxy", lrmoe::saved_activations::proxy}};
inline const names<lrmoe::router_gradient> router_gradient_names{
    {"kept", lrmoe::router_gradient::kept},
    {"exact", lrmoe::router_gradient::exact},
    {"sketch", lrmoe::router_gradient::sketch}};
inline const names<lrmoe::scorer_kind> scorer_names{
    {"lrm", lrmoe::scorer_kind::lrm},
    {"routing_weight", lrmoe::scorer_kind::routing_weight},
    {"gradient_norm", lrmoe::scorer_kind::gradient_norm},
    {"random", lrmoe::scorer_kind::random}};

template <class Choice>
std::string name_of(const names<Choice>& all, Choice choice) {
  for (const auto& [name, value] : all)
    if (value == choice) return name;
  return "?";
}

struct options {
  std::vector<std::string> data;
  std::string output;
  std::string json_log;  // empty: OUTPUT/log.jsonl
  std::string json;      // empty: none

  backend_choice backend = backend_choice::host;
  train::method method = method::exact;
  estimator_choice estimator = estimator_choice::pps;
  lrmoe::scorer_kind scorer = lrmoe::scorer_kind::lrm;
  controller_choice controller = controller_choice::fixed_fraction;
  double keep = 0.25;
  double epsilon = 0.25;
  double noise_weight = 1.0;
  double step_budget_ms = 0.0;            // 0: none
  std::uint64_t memory_budget_bytes = 0;  // 0: none
  std::uint64_t link_bytes_per_s = 0;     // 0: the calibration's
  std::string calibration;                // empty: default rates
  lrmoe::saved_activations saved = lrmoe::saved_activations::save;
  double dx_share = 1.0;
  double dw_share = 1.0;
  lrmoe::router_gradient router_gradient = lrmoe::router_gradient::kept;
  std::int64_t sketch_size = 8;
  std::string planner = "static";
  std::int64_t slots = 0;  // 0: as many as static ownership needs, and one more for other planners
  bool sharded_state = false;
  bool rebalance = true;
  std::string record_routing;  // empty: no trace
  std::int64_t record_steps = 30;
  bool plan_only = false;
  std::uint64_t seed = 0;

  std::int64_t steps = 300;
  std::int64_t batch = 32;
  std::int64_t context = 128;
  std::int64_t layers = 2;
  std::int64_t width = 64;
  std::int64_t expert_width = 64;
  std::int64_t experts = 16;
  std::int64_t top_k = 4;
  std::int64_t heads = 2;

  double learning_rate = 5e-3;
  std::int64_t warmup = -1;  // below 0: a tenth of the steps
  double weight_decay = 0.1;
  double clip = 1.0;
  double balance = 0.01;
  double target_loss = 0.0;  // 0: none

  std::int64_t validate_every = 20;
  std::int64_t validation_sequences = 128;
  std::int64_t checkpoint_every = 0;  // 0: only at the end and on a stop
  bool resume = false;
  bool overwrite = false;
  std::int64_t threads = 0;  // 0: all
  std::int64_t ranks = 1;    // in this process, or processes of mpirun
  double timeout_s = 300.0;  // of waiting for another process
  bool quiet = false;

  /// MoE-layer time of lrmoe at this keep fraction over that of exact, in products: the forward
  /// pass and, twice as long, the kept part of the backward pass.
  double time_share() const { return (1.0 + 2.0 * keep) / 3.0; }

  /// Sequences a step, steps and warm-up steps that the method really uses.
  std::int64_t used_batch() const {
    return method == method::smaller_batch ? scaled(batch) : batch;
  }
  std::int64_t used_steps() const { return method == method::fewer_steps ? scaled(steps) : steps; }
  std::int64_t used_warmup() const {
    const std::int64_t wanted = warmup < 0 ? steps / 10 : warmup;
    return method == method::fewer_steps && wanted > 0 ? scaled(wanted) : wanted;
  }

  std::int64_t used_slots() const {
    const std::int64_t owned = (experts + ranks - 1) / ranks;
    return slots > 0 ? slots : owned + (planner == "static" || ranks == 1 ? 0 : 1);
  }

  /// Everything that decides what is learned and measured; equal for a run and its continuation. How many
  /// ranks there are, and which of them hold what, may change in between.
  train::json settings() const {
    return {{"method", name_of(method_names, method)},
            {"estimator", name_of(estimator_names, estimator)},
            {"scorer", name_of(scorer_names, scorer)},
            {"controller", name_of(controller_names, controller)},
            {"keep", keep},
            {"epsilon", epsilon},
            {"noise_weight", noise_weight},
            {"step_budget_ms", step_budget_ms},
            {"memory_budget_bytes", memory_budget_bytes},
            {"save", name_of(saved_names, saved)},
            {"dx_share", dx_share},
            {"dw_share", dw_share},
            {"router_gradient", name_of(router_gradient_names, router_gradient)},
            {"sketch_size", sketch_size},
            {"seed", seed},
            {"steps", steps},
            {"batch", batch},
            {"context", context},
            {"layers", layers},
            {"width", width},
            {"expert_width", expert_width},
            {"experts", experts},
            {"top_k", top_k},
            {"heads", heads},
            {"learning_rate", learning_rate},
            {"warmup", used_warmup()},
            {"weight_decay", weight_decay},
            {"clip", clip},
            {"balance", balance},
            {"target_loss", target_loss},
            {"validate_every", validate_every},
            {"validation_sequences", validation_sequences}};
  }

 private:
  std::int64_t scaled(std::int64_t n) const {
    return std::max<std::int64_t>(1, std::llround(static_cast<double>(n) * time_share()));
  }
};

inline constexpr const char* no_cuda_message =
    "--backend cuda needs a program that was built with CUDA, and this one was not: run "
    "scripts/bootstrap --cuda, cmake --preset cuda-release and cmake --build --preset cuda-release";

/// Rules between flags. Returns what is wrong, or nothing.
inline std::string conflict(const options& o) {
#if !LRMOE_HAS_CUDA_BACKEND
  if (o.backend == backend_choice::cuda) return no_cuda_message;
#endif
  if (o.used_batch() < o.ranks)
    return fmt::format("--ranks {} is more than the {} sequences of a step: raise --batch", o.ranks,
                       o.used_batch());
  if (o.used_slots() * o.ranks < o.experts)
    return fmt::format("--slots {} on --ranks {} cannot hold --experts {}: use at least {}",
                       o.used_slots(), o.ranks, o.experts, (o.experts + o.ranks - 1) / o.ranks);
  if (o.ranks > 1 && (o.dx_share != 1.0 || o.dw_share != 1.0))
    return "--dx-share and --dw-share below 1 need --ranks 1: lower --keep instead";
  if (o.ranks > 1 && o.router_gradient == lrmoe::router_gradient::exact)
    return "--router-gradient exact needs --ranks 1: use sketch";
  if (o.keep <= 0.0)
    return fmt::format("--keep {} is outside (0, 1]: use 1 to keep every pair", o.keep);
  if (o.width % (2 * o.heads) != 0)
    return fmt::format(
        "--width {} is not a multiple of 2 * --heads = {}: rotary positions turn "
        "pairs of elements within each head",
        o.width, 2 * o.heads);
  if (o.top_k > o.experts)
    return fmt::format("--top-k {} is more than --experts {}", o.top_k, o.experts);
  if (o.used_warmup() >= o.used_steps())
    return fmt::format("--warmup {} leaves nothing of --steps {}: lower it", o.used_warmup(),
                       o.used_steps());
  for (const auto& [flag, share] :
       {std::pair{"--dx-share", o.dx_share}, std::pair{"--dw-share", o.dw_share}})
    if (share <= 0.0)
      return fmt::format("{} {} is outside (0, 1]: use 1 for all kept pairs", flag, share);
  if (o.output.empty() && !o.plan_only) return "--output is required";
  if (o.sketch_size > 1024) return fmt::format("--sketch-size {} is more than 1024", o.sketch_size);
  if (o.controller == controller_choice::memory_network && o.memory_budget_bytes == 0 &&
      o.step_budget_ms == 0.0)
    return "--controller memory-network needs a limit: give --memory-budget or --step-budget";
  if (o.resume && o.overwrite) return "--resume and --overwrite exclude each other";
  return {};
}

}  // namespace train
