// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <sys/resource.h>

#include <lrmoe/exchange/sum_array.hpp>

#include "../../benchmarks/support/routing_trace.hpp"
#include "adamw.hpp"
#include "calibration.hpp"
#include "checkpoint.hpp"
#include "log.hpp"
#include "model.hpp"
#include "moe_policies.hpp"
#include "noise_scale.hpp"
#include "options.hpp"
#include "plan_table.hpp"
#include "progress.hpp"
#include "schedule.hpp"
#include "stop_signal.hpp"
#include "text_data.hpp"

namespace train {

/// Largest memory the process has held so far.
inline std::int64_t process_peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

/// One training run: data, model, optimizer, log and checkpoints.
class trainer {
 public:
  /// The ranks of a run make one trainer each, and call it together.
  explicit trainer(const options& o, communicator ranks = lrmoe::single_rank{})
      : trainer(o, std::move(ranks), place_of(o.backend)) {}

  /// With MoE layers that compute elsewhere than o.backend says.
  trainer(const options& o, communicator ranks, place_maker place)
      : options_(o),
        data_(shared_data(o, ranks)),
        parameters_(o.seed),
        own_batch_((o.used_batch() + ranks.size() - 1) / ranks.size()),
        model_(parameters_, shape_of(o), policies_of(o), limits_of(o, place), own_batch_,
               std::move(ranks)),
        schedule_{o.learning_rate, o.used_warmup(), o.used_steps()},
        input_("input", own_batch_ * o.context),
        target_("target", own_batch_ * o.context),
        settings_(settings_of(o, data_)),
        screen_(o.quiet || !first(), std::max<std::int64_t>(1, o.used_steps() / 20)) {
    routing_.R = this->ranks().size();
    routing_.E = o.experts;
    routing_.K = o.top_k;
    routing_.tokens = own_batch_ * o.context;
    routing_.layers = o.layers;
    if (!o.plan_only) open_output();
  }

  /// Prints the plan of the first step, of every MoE layer, and changes nothing.
  void print_plan() {
    load_batch(0);
    model_.plan(0, input_, target_);
    if (!first()) return;
    std::int64_t block = 0;
    for (const auto* layer : model_.moe_layers())
      print_layer_plan(block++, *layer, model_.moe_memory());
  }

  /// Trains to the last step, or to `until`, or to the current step's end once a stop is asked for,
  /// and writes a checkpoint. Returns true when the run is complete.
  bool run(std::int64_t until = std::numeric_limits<std::int64_t>::max()) {
    const double start = seconds_now();
    const double wall_before = state_.wall_seconds;
    const std::int64_t steps = options_.used_steps();
    while (state_.step < std::min(steps, until) && !stop_requested()) {
      one_step();
      state_.wall_seconds = wall_before + seconds_now() - start;
      if (state_.step % options_.validate_every == 0 || state_.step == steps) validate();
      if (options_.checkpoint_every > 0 && state_.step % options_.checkpoint_every == 0)
        write_checkpoint();
    }
    state_.wall_seconds = wall_before + seconds_now() - start;
    write_checkpoint();
    if (state_.step < steps) {
      screen_.say(
          fmt::format("stopped after step {} of {}; checkpoint {} written, continue with "
                      "--resume",
                      state_.step, steps, checkpoint_path()));
      return false;
    }
    write_routing();
    const json line = summary();
    if (log_) log_->write(line);
    print_summary();
    return true;
  }

  bool first() { return ranks().rank() == 0; }

  const parameter_list& parameters() const { return parameters_; }

  /// The results of a complete run, as the log's last line has them.
  json summary() {
    json line{{"type", "summary"},
              {"step", state_.step},
              {"final_val_loss", state_.last_validation},
              {"final_val_loss_smoothed", state_.smoothed},
              {"target_loss", options_.target_loss > 0.0 ? json(options_.target_loss) : json()},
              {"moe_s_to_target", optional_json(state_.moe_seconds_to_target)},
              {"steps_to_target", optional_json(state_.steps_to_target)},
              {"moe_s_cumulative", state_.moe_seconds},
              {"wall_s", state_.wall_seconds},
              {"tokens", state_.step * tokens_per_step()},
              {"parameters", total_parameters()},
              {"process_peak_bytes", process_peak_bytes()},
              {"moe_peak_bytes", model_.moe_memory().peak_bytes()},
              {"backend", name_of(backend_names, options_.backend)},
              {"ranks", ranks().size()},
              {"planner", options_.planner},
              {"used_batch", options_.used_batch()},
              {"used_steps", options_.used_steps()},
              {"threads", space().concurrency()}};
    line["settings"] = settings_;
    return line;
  }

 private:
  communicator& ranks() { return model_.ranks(); }

  std::int64_t total_parameters() const {
    const model_shape shape = shape_of(options_);
    return parameters_.dense_size() + shape.layers * shape.moe.E * 3 * shape.moe.D * shape.moe.F;
  }

  /// Sequences of each batch that a rank trains on, one behind the other.
  std::int64_t first_sequence(std::int64_t count) {
    return share_begin(count, ranks().rank(), ranks().size());
  }
  std::int64_t last_sequence(std::int64_t count) {
    return share_begin(count, ranks().rank() + 1, ranks().size());
  }

  static json settings_of(const options& o, const text_data& data) {
    json settings = o.settings();
    settings["data_bytes"] = data.size();
    settings["data_checksum"] = fmt::format("{:016x}", data.content_checksum());
    return settings;
  }

  /// The text, once it is certain that all ranks go through the same calls.
  static text_data shared_data(const options& o, communicator& ranks) {
    text_data data = lrmoe::agree(ranks, [&] { return text_data(o.data, o.context); });
    const json settings = settings_of(o, data);
    lrmoe::named_settings named;
    for (const auto& [name, value] : settings.items()) named.emplace_back(name, value.dump());
    named.emplace_back("backend", name_of(backend_names, o.backend));
    named.emplace_back("planner", o.planner);
    named.emplace_back("slots", std::to_string(o.used_slots()));
    named.emplace_back("rebalance", std::to_string(o.rebalance));
    named.emplace_back("sharded optimizer", std::to_string(o.sharded_state));
    named.emplace_back("link", std::to_string(o.link_bytes_per_s));
    named.emplace_back("calibration", o.calibration);
    named.emplace_back("checkpoint every", std::to_string(o.checkpoint_every));
    named.emplace_back("resume", std::to_string(o.resume));
    named.emplace_back("plan only", std::to_string(o.plan_only));
    lrmoe::require_same_settings(ranks, std::move(named));
    return data;
  }

  /// Ranks stop together.
  bool stop_requested() {
    return lrmoe::sum_over_ranks(ranks(), std::int64_t{stop_signal::requested()}) > 0;
  }

  /// What changes from step to step besides the parameters.
  struct state {
    std::int64_t step = 0;  // steps done
    double moe_seconds = 0.0;
    double wall_seconds = 0.0;
    double last_validation = 0.0;
    double smoothed = 0.0;
    std::int64_t validations = 0;
    std::optional<double> moe_seconds_to_target;
    std::optional<std::int64_t> steps_to_target;
  };

  template <class T>
  static json optional_json(const std::optional<T>& value) {
    return value ? json(*value) : json();
  }

  /// A biased rule has no noise ratio.
  static std::string or_dash(double value) {
    return std::isnan(value) ? "-" : fmt::format("{:.2f}", value);
  }

  static model_shape shape_of(const options& o) {
    return {256,      o.context, o.layers,
            o.width,  o.heads,   {o.width, o.expert_width, o.experts, o.top_k},
            o.balance};
  }

  static moe_limits limits_of(const options& o, place_maker place) {
    moe_limits limits;
    limits.place = place;
    if (!o.calibration.empty()) limits.rates = read_calibration(o.calibration);
    if (o.link_bytes_per_s > 0) {
      limits.rates.inside.bytes_per_s = static_cast<double>(o.link_bytes_per_s);
      limits.rates.across.bytes_per_s = static_cast<double>(o.link_bytes_per_s);
    }
    limits.memory_bytes = static_cast<std::int64_t>(
        std::min<std::uint64_t>(o.memory_budget_bytes, std::numeric_limits<std::int64_t>::max()));
    limits.experts.slots = o.used_slots();
    limits.experts.optimizer.weight_decay = o.weight_decay;
    if (o.sharded_state) limits.experts.state = lrmoe::sharded_state{};
    return limits;
  }

  std::string checkpoint_path() const { return options_.output + "/checkpoint.bin"; }

  std::string log_path() const {
    return options_.json_log.empty() ? options_.output + "/log.jsonl" : options_.json_log;
  }

  std::int64_t tokens_per_step() const { return options_.used_batch() * options_.context; }

  /// Everything that can go wrong with files goes wrong here, before the first step.
  void open_output() {
    namespace fs = std::filesystem;
    lrmoe::agree(ranks(), [&] {
      if (!first()) return;
      std::error_code code;
      fs::create_directories(options_.output, code);
      require(!code && fs::is_directory(options_.output), "cannot make the output folder {}: {}",
              options_.output, code ? code.message() : "a file of that name is in the way");
      require(::access(options_.output.c_str(), W_OK) == 0,
              "the output folder {} is not writable: {}; choose another --output", options_.output,
              std::strerror(errno));
      require(!options_.resume || fs::exists(checkpoint_path()),
              "nothing to resume: there is no {}; leave out --resume to start", checkpoint_path());
      for (const std::string& file : {checkpoint_path(), log_path()})
        require(options_.resume || options_.overwrite || !fs::exists(file),
                "{} exists: continue that run with --resume, replace it with --overwrite or choose "
                "another --output",
                file);
    });
    if (options_.resume) resume();
    lrmoe::agree(ranks(), [&] {
      if (first()) open_log();
    });
  }

  void open_log() {
    log_.emplace(log_path(), options_.resume ? state_.step : -1);
    if (options_.resume) {
      screen_.say(fmt::format("continuing after step {}", state_.step));
      return;
    }
    std::error_code code;
    std::filesystem::remove(checkpoint_path(), code);
    json line{{"type", "settings"}, {"step", 0}};
    line.update(settings_);
    line["used_batch"] = options_.used_batch();
    line["used_steps"] = options_.used_steps();
    line["threads"] = space().concurrency();
    line["parameters"] = total_parameters();
    line["backend"] = name_of(backend_names, options_.backend);
    line["ranks"] = ranks().size();
    line["planner"] = options_.planner;
    line["slots"] = options_.used_slots();
    log_->write(line);
    screen_.say(fmt::format("{} parameters, {} tokens a step, {} bytes of text, {} threads{}",
                            total_parameters(), tokens_per_step(), data_.size(),
                            space().concurrency(),
                            ranks().size() == 1 ? "" : fmt::format(", {} ranks", ranks().size())));
  }

  void load_batch(std::int64_t step) {
    const std::int64_t begin = first_sequence(options_.used_batch());
    batch_ = last_sequence(options_.used_batch()) - begin;
    for (std::int64_t b = 0; b < batch_; ++b)
      data_.copy(data_.training_start(options_.seed, step, begin + b), b * options_.context, input_,
                 target_);
  }

  /// The first sequences of the buffers.
  const_tokens rows_of(const tokens& buffer, std::int64_t sequences) const {
    return const_tokens(buffer.data(), static_cast<std::size_t>(sequences * options_.context));
  }

  void one_step() {
    Kokkos::Profiling::ScopedRegion region("train::step");
    const double start = seconds_now();
    if (options_.method == method::frozen_experts && state_.step >= options_.used_warmup())
      model_.freeze_experts();
    // What validations and checkpoints send does not count.
    const std::int64_t bytes_sent_before = ranks().bytes_sent();
    load_batch(state_.step);
    parameters_.zero_gradients();
    const double moe_before = model_.moe_time().seconds();
    const double loss =
        model_.train(state_.step, rows_of(input_, batch_), rows_of(target_, batch_));
    const double own_moe_seconds = model_.moe_time().seconds() - moe_before;
    record_routing();
    sum_dense_gradients();
    const double norm =
        std::sqrt(squared_gradient_norm(parameters_) + model_.reduce_expert_gradients());
    require(std::isfinite(loss) && std::isfinite(norm),
            "step {}: the loss is {} and the gradient's norm {}: lower --learning-rate; the last "
            "checkpoint is as it was",
            state_.step + 1, loss, norm);
    const lrmoe::adamw_step now{.step = state_.step + 1,
                                .rate = schedule_.rate(state_.step),
                                .gradient_scale = lrmoe::clip_scale(norm, options_.clip)};
    adamw_step(parameters_, {.weight_decay = options_.weight_decay}, now);
    model_.update_experts(now);
    space().fence("train::step: end");
    const double step_seconds = seconds_now() - start;

    ++state_.step;
    const step_of_ranks all =
        gather_step(own_moe_seconds, ranks().bytes_sent() - bytes_sent_before);
    state_.moe_seconds += all.slowest_s;
    const lrmoe::backward_report& moe = all.report;
    noise_scale_.add(moe.certified, all.down_squared_norm);
    const double tokens_per_second = static_cast<double>(tokens_per_step()) / step_seconds;
    if (!first()) return;
    json line{{"type", "step"},
              {"step", state_.step},
              {"loss", loss},
              {"learning_rate", now.rate},
              {"gradient_norm", norm},
              {"step_ms", step_seconds * 1e3},
              {"tokens_per_s", tokens_per_second},
              {"moe_ms", all.slowest_s * 1e3},
              {"moe_s_cumulative", state_.moe_seconds},
              {"kept_fraction", moe.kept_fraction()},
              {"noise_ratio", moe.noise_ratio()},
              {"worst_case_time_ratio", moe.worst_case_time_ratio()},
              {"relative_error", noise_scale_.relative_error()},
              {"bias_bound", moe.certified.bias_bound},
              {"gate_up_variance", moe.variance.gate_up},
              {"dx_variance", moe.variance.dx},
              {"noise_scale_tokens", noise_scale_.tokens(tokens_per_step())},
              {"balance_loss", all.balance_loss},
              {"moe_peak_bytes", model_.moe_memory().peak_bytes()},
              {"process_peak_bytes", process_peak_bytes()}};
    if (ranks().size() > 1) {
      line["rank_moe_ms"] = all.moe_ms;
      line["rank_pairs"] = all.pairs;
      line["rank_pairs_kept"] = all.pairs_kept;
      line["rank_bytes_sent"] = all.bytes_sent;
    }
    log_->write(line);
    screen_.update(
        state_.step,
        fmt::format(
            "{}/{} loss {:.3f} val {} | {:.1f}k tok/s | MoE {:.1f} ms, {:.1f} s | kept "
            "{:.0f}% V/S {} time ratio <= {} | {} MiB",
            state_.step, options_.used_steps(), loss,
            state_.validations > 0 ? fmt::format("{:.3f}", state_.smoothed) : std::string("-"),
            tokens_per_second / 1e3, all.slowest_s * 1e3, state_.moe_seconds,
            100.0 * moe.kept_fraction(), or_dash(moe.noise_ratio()),
            or_dash(moe.worst_case_time_ratio()), process_peak_bytes() >> 20));
  }

  void record_routing() {
    if (options_.record_routing.empty() || !first() ||
        state_.step < options_.used_steps() - options_.record_steps)
      return;
    for (const auto* layer : model_.moe_layers()) routing_.add(layer->last_plan().source_counts);
  }

  void write_routing() {
    lrmoe::agree(ranks(), [&] {
      if (options_.record_routing.empty() || !first()) return;
      routing_.description = fmt::format(
          "{} layers of width {} on {} bytes of text, load-balancing loss {}, the last {} of {} "
          "steps",
          options_.layers, options_.width, data_.size(), options_.balance,
          std::ssize(routing_.calls) / options_.layers, options_.used_steps());
      routing_.write(options_.record_routing);
    });
  }

  /// Gradients of what every rank holds: their sum over ranks.
  void sum_dense_gradients() {
    if (ranks().size() == 1) return;
    for (const parameter& p : parameters_)
      if (!p.expert && !p.frozen) lrmoe::sum_array(model_.environment(), p.gradient);
  }

  /// One step of all ranks together.
  struct step_of_ranks {
    lrmoe::backward_report report;  // sums, of what the log shows
    double down_squared_norm = 0.0, balance_loss = 0.0;
    double slowest_s = 0.0;
    std::vector<double> moe_ms;                               // (R) time of this rank's own work
    std::vector<std::int64_t> pairs, pairs_kept, bytes_sent;  // (R) computed; sent in the step
  };

  step_of_ranks gather_step(double own_moe_seconds, std::int64_t own_bytes_sent) {
    struct numbers {
      double moe_s, balance_loss, down_squared_norm;
      lrmoe::certificate certified;
      lrmoe::variance_estimate variance;
      std::int64_t pairs, pairs_kept, pairs_here, kept_here, bytes_sent;
    };
    const lrmoe::backward_report report = model_.moe_report();
    numbers mine{own_moe_seconds,
                 model_.balance_loss(),
                 model_.moe_down_squared_norm(),
                 report.certified,
                 report.variance,
                 report.pairs,
                 report.pairs_kept,
                 0,
                 0,
                 own_bytes_sent};
    for (const auto* layer : model_.moe_layers()) {
      const auto [pairs, kept] = layer->last_pairs_here();
      mine.pairs_here += pairs;
      mine.kept_here += kept;
    }
    std::vector<numbers> of_ranks(static_cast<std::size_t>(ranks().size()));
    lrmoe::all_gather(ranks(), mine, std::span<numbers>(of_ranks));
    step_of_ranks all;
    all.report.unbiased = report.unbiased;
    for (const numbers& one : of_ranks) {
      all.report.certified += one.certified;
      all.report.variance += one.variance;
      all.report.pairs += one.pairs;
      all.report.pairs_kept += one.pairs_kept;
      all.down_squared_norm += one.down_squared_norm;
      all.balance_loss += one.balance_loss;
      all.slowest_s = std::max(all.slowest_s, one.moe_s);
      all.moe_ms.push_back(one.moe_s * 1e3);
      all.pairs.push_back(one.pairs_here);
      all.pairs_kept.push_back(one.kept_here);
      all.bytes_sent.push_back(one.bytes_sent);
    }
    return all;
  }

  /// Loss on fixed validation sequences. The smoothed loss is the mean of the newest loss and the
  /// smoothed loss before it. Time to target is that of the first smoothed loss at or below.
  void validate() {
    Kokkos::Profiling::ScopedRegion region("train::validate");
    const std::int64_t C = options_.context;
    const std::int64_t count = std::min(options_.validation_sequences, data_.validation_blocks());
    double sum = 0.0;
    for (std::int64_t begin = 0; begin < count; begin += options_.used_batch()) {
      const std::int64_t sequences = std::min(options_.used_batch(), count - begin);
      const std::int64_t own = first_sequence(sequences), end = last_sequence(sequences);
      for (std::int64_t i = own; i < end; ++i) {
        const std::int64_t block = (begin + i) * data_.validation_blocks() / count;
        data_.copy(data_.validation_start(block), (i - own) * C, input_, target_);
      }
      sum += static_cast<double>(sequences) *
             model_.evaluate(rows_of(input_, end - own), rows_of(target_, end - own));
    }
    const double loss = sum / static_cast<double>(count);
    state_.smoothed = state_.validations == 0 ? loss : 0.5 * (loss + state_.smoothed);
    state_.last_validation = loss;
    ++state_.validations;
    if (!state_.moe_seconds_to_target && options_.target_loss > 0.0 &&
        state_.smoothed <= options_.target_loss) {
      state_.moe_seconds_to_target = state_.moe_seconds;
      state_.steps_to_target = state_.step;
    }
    if (!first()) return;
    log_->write({{"type", "validation"},
                 {"step", state_.step},
                 {"val_loss", loss},
                 {"val_loss_smoothed", state_.smoothed},
                 {"moe_s_cumulative", state_.moe_seconds},
                 {"sequences", count}});
  }

  void write_checkpoint() {
    const expert_states experts = collect_experts();
    lrmoe::agree(ranks(), [&] {
      if (!first()) return;
      checkpoint::write(checkpoint_path(), settings_,
                        {{"step", state_.step},
                         {"moe_seconds", state_.moe_seconds},
                         {"wall_seconds", state_.wall_seconds},
                         {"last_validation", state_.last_validation},
                         {"smoothed", state_.smoothed},
                         {"validations", state_.validations},
                         {"moe_seconds_to_target", optional_json(state_.moe_seconds_to_target)},
                         {"steps_to_target", optional_json(state_.steps_to_target)},
                         {"noise_scale", noise_scale_.state()},
                         {"score_histories", score_histories()}},
                        parameters_, experts);
    });
  }

  /// The experts of every block on the first rank, as the optimizer's save() orders them: the same for any
  /// number of ranks.
  expert_states collect_experts() {
    expert_states all;
    for (moe_block* block : model_.moe_blocks()) {
      auto& values = all.emplace_back();
      block->state().save(
          [&](lrmoe::optimizer_value, std::int64_t, std::int64_t, std::span<const float> part) {
            values.insert(values.end(), part.begin(), part.end());
          });
    }
    return all;
  }

  /// Every rank reads the file; the first one deals out the experts.
  void resume() {
    expert_states experts(static_cast<std::size_t>(options_.layers),
                          std::vector<float>(static_cast<std::size_t>(
                              9 * options_.experts * options_.width * options_.expert_width)));
    lrmoe::agree(ranks(), [&] {
      restore(checkpoint::read(checkpoint_path(), settings_, parameters_, experts));
    });
    auto values = experts.begin();
    for (moe_block* block : model_.moe_blocks()) {
      const float* next = (values++)->data();
      block->state().restore(
          [&](lrmoe::optimizer_value, std::int64_t, std::int64_t, std::span<float> part) {
            std::copy_n(next, part.size(), part.begin());
            next += part.size();
          });
      block->send_weights();
    }
  }

  /// What the quota policies remember, of every MoE layer.
  json score_histories() {
    json all = json::array();
    for (auto* layer : model_.moe_layers()) {
      const lrmoe::score_history& past = layer->history();
      json experts = json::array();
      for (std::int64_t e = 0; e < past.E(); ++e)
        experts.push_back(past.knows(e) ? json(past.shares(e)) : json::array());
      all.push_back({{"noise_correction", past.noise_correction()}, {"shares", experts}});
    }
    return all;
  }

  void restore(const json& progress) {
    noise_scale_.restore(progress.at("noise_scale"));
    const json& histories = progress.at("score_histories");
    const auto layers = model_.moe_layers();
    for (std::size_t i = 0; i < layers.size(); ++i) {
      std::vector<std::vector<float>> shares = histories.at(i).at("shares");
      layers[i]->set_history(
          lrmoe::score_history::restored(shares, histories.at(i).at("noise_correction")));
    }
    state_.step = progress.at("step");
    state_.moe_seconds = progress.at("moe_seconds");
    state_.wall_seconds = progress.at("wall_seconds");
    state_.last_validation = progress.at("last_validation");
    state_.smoothed = progress.at("smoothed");
    state_.validations = progress.at("validations");
    if (!progress.at("moe_seconds_to_target").is_null()) {
      state_.moe_seconds_to_target = progress.at("moe_seconds_to_target");
      state_.steps_to_target = progress.at("steps_to_target");
    }
  }

  void print_summary() {
    screen_.say(
        fmt::format("validation loss {:.4f} (smoothed {:.4f}) after {} steps, {:.1f} s of "
                    "MoE-layer time, {:.1f} s in all",
                    state_.last_validation, state_.smoothed, state_.step, state_.moe_seconds,
                    state_.wall_seconds));
    if (options_.target_loss <= 0.0) return;
    screen_.say(
        state_.moe_seconds_to_target
            ? fmt::format("smoothed loss {} reached after {:.2f} s of MoE-layer time, step {}",
                          options_.target_loss, *state_.moe_seconds_to_target,
                          *state_.steps_to_target)
            : fmt::format("smoothed loss {} not reached", options_.target_loss));
  }

  options options_;
  text_data data_;
  parameter_list parameters_;
  std::int64_t own_batch_;  // most sequences of a batch that a rank has
  language_model model_;
  schedule schedule_;
  tokens input_;            // (T)
  tokens target_;           // (T)
  std::int64_t batch_ = 0;  // sequences of this rank in the step
  bench::routing_trace routing_;
  json settings_;
  progress screen_;
  noise_scale noise_scale_;
  state state_;
  std::optional<json_log> log_;
};

}  // namespace train
