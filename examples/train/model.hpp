// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention.hpp"
#include "cross_entropy.hpp"
#include "embedding.hpp"
#include "moe_block.hpp"
#include "rms_norm.hpp"
#include "stopwatch.hpp"

namespace train {

struct model_shape {
  std::int64_t vocabulary = 256;
  std::int64_t context = 0;
  std::int64_t layers = 0;
  std::int64_t width = 0;
  std::int64_t heads = 0;
  lrmoe::layer_shape moe{};
  double balance = 0.0;  // coefficient of the load-balancing loss
};

/// What MoE layers may use, and what they take the machine to be capable of.
struct moe_limits {
  std::int64_t memory_bytes = 0;  // 0: no limit
  lrmoe::machine_rates rates{};
  expert_settings experts{};
  place_maker place = make_place<host_place>;
};

/// Decoder-only language model.
///   x = embedding(tokens)
///   for each block: x += attention(norm(x)); x += experts(norm(x))
///   logits = norm(x) embeddingᵀ
/// All buffers are made for the largest batch at the start; smaller ones use their first rows.
/// With several ranks each has its own sequences, and all calls are collective.
class language_model {
 public:
  language_model(parameter_list& parameters, const model_shape& shape, const moe_policies& policies,
                 moe_limits limits, std::int64_t max_sequences,
                 communicator ranks = lrmoe::single_rank{})
      : shape_(shape),
        environment_(std::move(ranks)),
        table_(parameters, "embedding", shape.vocabulary, shape.width, 0.02),
        final_norm_(parameters, "final_norm", shape.width, max_sequences * shape.context),
        normed_("final_normed", max_sequences * shape.context, shape.width),
        logits_("logits", max_sequences * shape.context, shape.vocabulary),
        losses_("losses", max_sequences * shape.context),
        dstream_("dstream", max_sequences * shape.context, shape.width),
        dnormed_("dnormed", max_sequences * shape.context, shape.width),
        moe_time_([this] { return rank_seconds_now(environment_.ranks); }) {
    const std::int64_t R = environment_.ranks.size();
    if (limits.experts.slots == 0 || R == 1) limits.experts.slots = (shape.moe.E + R - 1) / R;
    environment_.rates = limits.rates;
    place_ = limits.place(environment_);
    place_->memory().set_budget_bytes(limits.memory_bytes);
    const std::int64_t rows = max_sequences * shape.context;
    const double input_deviation = 1.0 / std::sqrt(static_cast<double>(shape.width));
    // Outputs that are added to the stream start smaller, the more of them there are.
    const double output_share = 1.0 / std::sqrt(2.0 * static_cast<double>(shape.layers));
    for (std::int64_t i = 0; i < shape.layers; ++i) {
      const std::string name = "block" + std::to_string(i);
      blocks_.emplace_back(new block{
          rms_norm(parameters, name + ".attention_norm", shape.width, rows),
          attention(parameters, name + ".attention", shape.width, shape.heads, shape.context,
                    max_sequences, input_deviation, input_deviation * output_share),
          rms_norm(parameters, name + ".moe_norm", shape.width, rows),
          moe_block(parameters, name + ".moe", environment_, *place_, shape.moe, policies,
                    limits.experts, shape.balance, static_cast<std::uint32_t>(i), rows,
                    output_share),
          matrix(name + "::input", rows, shape.width), matrix(name + "::normed", rows, shape.width),
          matrix(name + "::middle", rows, shape.width),
          matrix(name + "::middle_normed", rows, shape.width)});
    }
    output_ = matrix("output", rows, shape.width);
  }

  language_model(const language_model&) = delete;
  language_model& operator=(const language_model&) = delete;

  /// Mean loss of a batch, of all ranks; nothing is kept for backward.
  double evaluate(const const_tokens& input, const const_tokens& target) {
    return forward(0, input, target, false);
  }

  /// Mean loss of a batch, of all ranks; adds the gradient of this rank's sequences to that of the
  /// parameters, but overwrites that of experts.
  double train(std::int64_t step, const const_tokens& input, const const_tokens& target) {
    const double loss = forward(step, input, target, true);
    backward(input);
    return loss;
  }

  communicator& ranks() { return environment_.ranks; }
  moe_environment& environment() { return environment_; }

  /// Sum the experts' gradients where their optimizer state is; returns their squared norm.
  double reduce_expert_gradients() {
    double squares = 0.0;
    for (const auto& b : blocks_) squares += b->moe.reduce_gradients();
    return squares;
  }
  void update_experts(const lrmoe::adamw_step& now) {
    for (const auto& b : blocks_) b->moe.update(now);
  }

  /// Plans the MoE layers for a batch by a forward pass, and changes nothing.
  void plan(std::int64_t step, const const_tokens& input, const const_tokens& target) {
    forward(step, input, target, true);
  }

  /// The MoE layer of each block.
  std::vector<expert_layer*> moe_layers() {
    std::vector<expert_layer*> layers;
    for (const auto& b : blocks_) layers.push_back(&b->moe.experts());
    return layers;
  }

  std::vector<moe_block*> moe_blocks() {
    std::vector<moe_block*> all;
    for (const auto& b : blocks_) all.push_back(&b->moe);
    return all;
  }

  /// Squared norm of dW_down of all blocks, of what this rank owns.
  double moe_down_squared_norm() const {
    double sum = 0.0;
    for (const auto& b : blocks_) sum += b->moe.down_squared_norm();
    return sum;
  }

  /// What the MoE layers did in the last train(), summed.
  lrmoe::backward_report moe_report() const {
    lrmoe::backward_report total;
    for (const auto& b : blocks_) total += b->moe.report();
    return total;
  }
  double balance_loss() const {
    double total = 0.0;
    for (const auto& b : blocks_) total += b->moe.balance_loss();
    return total;
  }

  /// From now on the experts' weights keep their values and get no gradients.
  void freeze_experts() {
    for (const auto& b : blocks_) b->moe.freeze_experts();
  }

  /// Time spent in everything that belongs to the MoE layers.
  stopwatch& moe_time() { return moe_time_; }

  /// Memory of the MoE layers where they compute.
  const lrmoe::ledger& moe_memory() const { return place_->memory(); }

 private:
  struct block {
    rms_norm attention_norm;
    attention mixer;
    rms_norm moe_norm;
    moe_block moe;
    matrix input;          // (T, D)
    matrix normed;         // (T, D)
    matrix middle;         // (T, D) after attention
    matrix middle_normed;  // (T, D)
  };

  static std::int64_t rows_of(const const_tokens& input) {
    return static_cast<std::int64_t>(input.extent(0));
  }

  /// The stream as it enters block i, or after the last block.
  matrix stream(std::size_t i, std::int64_t rows) const {
    return first_rows(i < blocks_.size() ? blocks_[i]->input : output_, rows);
  }

  double forward(std::int64_t step, const const_tokens& input, const const_tokens& target,
                 bool training) {
    const std::int64_t rows = rows_of(input);
    table_.forward(input, stream(0, rows));
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      block& b = *blocks_[i];
      const matrix normed = first_rows(b.normed, rows);
      const matrix middle = first_rows(b.middle, rows);
      const matrix middle_normed = first_rows(b.middle_normed, rows);
      const matrix next = stream(i + 1, rows);

      b.attention_norm.forward(stream(i, rows), normed);
      Kokkos::deep_copy(space(), middle, stream(i, rows));
      b.mixer.forward(normed, middle);

      b.moe_norm.forward(middle, middle_normed);
      moe_time_.measure([&] { b.moe.forward(step, middle_normed, next, training); });
      add("train::model::residual", middle, next);
    }
    const matrix normed = first_rows(normed_, rows);
    const matrix logits = first_rows(logits_, rows);
    final_norm_.forward(stream(blocks_.size(), rows), normed);
    table_.head_forward(normed, logits);
    all_rows_ = lrmoe::sum_over_ranks(environment_.ranks, rows);
    cross_entropy(logits, target, losses_, training, all_rows_);
    space().fence("train::model: losses are read");
    double sum = 0.0;
    for (std::int64_t t = 0; t < rows; ++t) sum += losses_(t);
    return lrmoe::sum_over_ranks(environment_.ranks, sum) / static_cast<double>(all_rows_);
  }

  void backward(const const_tokens& input) {
    const std::int64_t rows = rows_of(input);
    const matrix dstream = first_rows(dstream_, rows);
    const matrix dnormed = first_rows(dnormed_, rows);
    table_.head_backward(first_rows(normed_, rows), first_rows(logits_, rows), dnormed);
    Kokkos::deep_copy(space(), dstream, 0.0f);
    final_norm_.backward(stream(blocks_.size(), rows), dnormed, dstream);
    for (std::size_t i = blocks_.size(); i-- > 0;) {
      block& b = *blocks_[i];
      moe_time_.measure(
          [&] { b.moe.backward(first_rows(b.middle_normed, rows), dstream, dnormed, all_rows_); });
      b.moe_norm.backward(first_rows(b.middle, rows), dnormed, dstream);
      b.mixer.backward(first_rows(b.normed, rows), dstream, dnormed);
      b.attention_norm.backward(stream(i, rows), dnormed, dstream);
    }
    table_.backward(input, dstream);
  }

  /// y += x
  static void add(const std::string& label, const const_matrix& x, const matrix& y) {
    for_chunks(label, static_cast<std::int64_t>(x.size()), 8192,
               [=](std::int64_t, std::int64_t begin, std::int64_t end) {
                 const float* from = x.data();
                 float* to = y.data();
#pragma omp simd
                 for (std::int64_t i = begin; i < end; ++i) to[i] += from[i];
               });
  }

  model_shape shape_;
  moe_environment environment_;
  std::unique_ptr<layer_place> place_;
  embedding table_;
  std::vector<std::unique_ptr<block>> blocks_;
  rms_norm final_norm_;
  matrix output_;  // (T, D) the stream after the last block
  matrix normed_;  // (T, D)
  matrix logits_;  // (T, V), their gradient once the loss is known
  Kokkos::View<double*, Kokkos::LayoutRight, device> losses_;  // (T)
  matrix dstream_;                                             // (T, D)
  matrix dnormed_;                                             // (T, D)
  std::int64_t all_rows_ = 0;  // T of all ranks, in the last forward
  stopwatch moe_time_;
};

}  // namespace train
