// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>

#include <lrmoe/memory/expert_memory.hpp>
#include <lrmoe/optimizer/any_state.hpp>
#include <lrmoe/optimizer/expert_optimizer.hpp>

#include "layer_place.hpp"
#include "linear.hpp"
#include "load_balance.hpp"

namespace train {

/// How experts are held and trained.
struct expert_settings {
  std::int64_t slots = 0;  // of each rank
  lrmoe::any_state state{};
  lrmoe::adamw_settings optimizer{};
};

/// Mixture of experts: the router's projection, which the library leaves to its user, the library's
/// layer, and the load-balancing loss. The layer computes where `place` says, the rest on the host.
///   logits = x W_router;  y = moe_layer(x, logits)
class moe_block {
 public:
  moe_block(parameter_list& parameters, const std::string& name, moe_environment& environment,
            layer_place& place, const lrmoe::layer_shape& shape, const moe_policies& policies,
            const expert_settings& held, double balance, std::uint32_t layer_id,
            std::int64_t max_rows, double output_share)
      : router_(parameters, name + ".router", shape.D, shape.E,
                1.0 / std::sqrt(static_cast<double>(shape.D))),
        layer_(place.make_layer(shape, policies, layer_id)),
        placed_(layer_->first_placement(held.slots)),
        gate_up_(parameters.add_experts(name + ".gate_up", own_slots(environment),
                                        shape.D * 2 * shape.F,
                                        1.0 / std::sqrt(static_cast<double>(shape.D)))),
        down_(parameters.add_experts(name + ".down", own_slots(environment), shape.F * shape.D,
                                     output_share / std::sqrt(static_cast<double>(shape.F)))),
        optimizer_(environment, shape, held.optimizer, held.state),
        balance_(balance),
        balancer_(name + "::balance", max_rows, shape.E),
        logits_(name + "::logits", max_rows, shape.E),
        dlogits_(name + "::dlogits", max_rows, shape.E) {
    const std::int64_t S = held.slots;
    const auto view = [S](const vector& flat, std::int64_t rows, std::int64_t columns) {
      return tensor(flat.data(), S, rows, columns);
    };
    gate_up_slots_ = view(gate_up_.value, shape.D, 2 * shape.F);
    down_slots_ = view(down_.value, shape.F, shape.D);
    weights_ = {gate_up_slots_, down_slots_};
    gradients_ = {view(gate_up_.gradient, shape.D, 2 * shape.F),
                  view(down_.gradient, shape.F, shape.D)};
    optimizer_.initialise(placed_, gate_up_slots_, down_slots_);
    // Takes the optimizer's memory, so that plans under a budget know what is left.
    optimizer_.reduce(gradients_, placed_);
    layer_->set_weight_mover([this](const lrmoe::placement& now) { send_weights(now); });
    // The ledger sees what the library allocates; the slots' tensors belong to it by meaning.
    const lrmoe::memory_use use = lrmoe::expert_memory<float>(shape, {.experts = S});
    for (const auto category :
         {lrmoe::memory_category::expert_weights, lrmoe::memory_category::gradients}) {
      place.memory().add(category, use[category]);
    }
  }

  moe_block(const moe_block&) = delete;
  moe_block& operator=(const moe_block&) = delete;

  /// x (T, D), y (T, D) overwritten. x stays unchanged until backward.
  void forward(std::int64_t step, const const_matrix& x, const matrix& y, bool training) {
    const matrix logits = first_rows(logits_, static_cast<std::int64_t>(x.extent(0)));
    router_.forward(x, logits);
    layer_->forward(static_cast<std::uint64_t>(step), x, logits, weights_, y, training);
  }

  /// dx (T, D) overwritten. all_rows: T of all ranks together
  void backward(const const_matrix& x, const const_matrix& dy, const matrix& dx,
                std::int64_t all_rows) {
    const auto rows = static_cast<std::int64_t>(x.extent(0));
    const matrix dlogits = first_rows(dlogits_, rows);
    report_ = layer_->backward(dy, weights_, dx, dlogits, gradients_);
    balance_loss_ = balance_ == 0.0
                        ? 0.0
                        : balancer_.backward(first_rows(logits_, rows), layer_->last_plan().counts,
                                             all_rows, balance_, dlogits);
    router_.backward(x, dlogits, dx, 1.0f);
  }

  /// Sum the experts' gradients over replicas, each part where its optimizer state is. Returns this layer's
  /// squared norm, of all ranks; 0 for frozen experts. Collective.
  double reduce_gradients() {
    if (gate_up_.frozen) return 0.0;
    return optimizer_.reduce(gradients_, layer_->last_placement());
  }

  /// One step of the experts' optimizer, and the new weights to the slots. Collective.
  void update(const lrmoe::adamw_step& now) {
    if (gate_up_.frozen) return;
    optimizer_.update(now);
    send_weights(layer_->last_placement());
  }

  /// Squared norm of the part of dW_down whose state this rank owns, after reduce_gradients.
  double down_squared_norm() const {
    const std::int64_t border = 2 * layer_->shape().D * layer_->shape().F;
    const vector gradient = optimizer_.gradient();
    double total = 0.0;
    for (std::int64_t e = 0, first = 0; e < layer_->shape().E; ++e) {
      const lrmoe::parameter_range part = optimizer_.owned(e);
      const std::int64_t begin = std::clamp(border - part.begin, std::int64_t{0}, part.size());
      total +=
          squared_norm(Kokkos::subview(gradient, std::pair(first + begin, first + part.size())));
      first += part.size();
    }
    return total;
  }

  using optimizer = lrmoe::expert_optimizer<float, moe_backend, lrmoe::any_state>;
  optimizer& state() { return optimizer_; }

  /// Weights from the optimizer's state, to where experts are now. Collective.
  void send_weights() {
    const lrmoe::placement& last = layer_->last_placement();
    send_weights(last.E() == 0 ? placed_ : last);
  }

  /// Drops the experts' weight gradients: their products are skipped, their weights stay.
  void freeze_experts() {
    gradients_ = {};
    gate_up_.frozen = true;
    down_.frozen = true;
  }

  const expert_layer& experts() const { return *layer_; }
  expert_layer& experts() { return *layer_; }

  /// Of the last backward.
  const lrmoe::backward_report& report() const { return report_; }
  double balance_loss() const { return balance_loss_; }

 private:
  std::span<const lrmoe::index_type> own_slots(const moe_environment& environment) const {
    const auto S = static_cast<std::size_t>(placed_.S());
    return placed_.expert_of_slot().subspan(static_cast<std::size_t>(environment.ranks.rank()) * S,
                                            S);
  }
  void send_weights(const lrmoe::placement& now) {
    optimizer_.send_weights(now, gate_up_slots_, down_slots_);
  }

  linear router_;
  std::unique_ptr<expert_layer> layer_;
  lrmoe::placement placed_;  // at the start
  parameter& gate_up_;
  parameter& down_;
  tensor gate_up_slots_;  // (S, D, 2F)
  tensor down_slots_;     // (S, F, D)
  optimizer optimizer_;
  expert_layer::weights_type weights_;      // gate_up (S, D, 2F), down (S, F, D)
  expert_layer::gradients_type gradients_;  // the same
  double balance_;
  load_balance balancer_;
  matrix logits_;   // (T, E)
  matrix dlogits_;  // (T, E)
  lrmoe::backward_report report_;
  double balance_loss_ = 0.0;
};

}  // namespace train
