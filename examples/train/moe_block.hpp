// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <string>

#include <lrmoe/layer.hpp>
#include <lrmoe/memory/expert_memory.hpp>
#include <lrmoe/openmp/backend.hpp>

#include "linear.hpp"
#include "load_balance.hpp"
#include "moe_policies.hpp"

namespace train {

using moe_backend = lrmoe::openmp::backend<>;
using moe_environment = lrmoe::context<moe_backend>;
/// Mixture of experts: the router's projection, which the library leaves to its user, the library's
/// layer, and the load-balancing loss.
///   logits = x W_router;  y = moe_layer(x, logits)
class moe_block {
 public:
  using layer = lrmoe::moe_layer<float, moe_backend, moe_policies>;

  moe_block(parameter_list& parameters, const std::string& name, moe_environment& environment,
            const lrmoe::layer_shape& shape, const moe_policies& policies, double balance,
            std::uint32_t layer_id, std::int64_t max_rows, double output_share)
      : router_(parameters, name + ".router", shape.D, shape.E,
                1.0 / std::sqrt(static_cast<double>(shape.D))),
        gate_up_(parameters.add_random(name + ".gate_up", shape.E * shape.D * 2 * shape.F,
                                       1.0 / std::sqrt(static_cast<double>(shape.D)))),
        down_(parameters.add_random(name + ".down", shape.E * shape.F * shape.D,
                                    output_share / std::sqrt(static_cast<double>(shape.F)))),
        layer_(environment, shape, policies, layer_id),
        balance_(balance),
        balancer_(name + "::balance", max_rows, shape.E),
        logits_(name + "::logits", max_rows, shape.E),
        dlogits_(name + "::dlogits", max_rows, shape.E) {
    const auto view = [](const vector& flat, std::int64_t rows, std::int64_t columns,
                         std::int64_t experts) {
      return tensor(flat.data(), experts, rows, columns);
    };
    weights_ = {view(gate_up_.value, shape.D, 2 * shape.F, shape.E),
                view(down_.value, shape.F, shape.D, shape.E)};
    gradients_ = {view(gate_up_.gradient, shape.D, 2 * shape.F, shape.E),
                  view(down_.gradient, shape.F, shape.D, shape.E)};
    // The ledger sees what the library allocates; the experts' tensors belong to it by meaning.
    const lrmoe::memory_use use = lrmoe::expert_memory<float>(shape, {.experts = shape.E});
    for (const auto category :
         {lrmoe::memory_category::expert_weights, lrmoe::memory_category::gradients,
          lrmoe::memory_category::optimizer}) {
      environment.memory.add(category, use[category]);
    }
  }

  /// x (T, D), y (T, D) overwritten. x stays unchanged until backward.
  void forward(std::int64_t step, const const_matrix& x, const matrix& y, bool training) {
    const matrix logits = first_rows(logits_, static_cast<std::int64_t>(x.extent(0)));
    router_.forward(x, logits);
    layer_.forward(static_cast<std::uint64_t>(step), x, logits, weights_, y, training);
  }

  /// dx (T, D) overwritten.
  void backward(const const_matrix& x, const const_matrix& dy, const matrix& dx) {
    const auto rows = static_cast<std::int64_t>(x.extent(0));
    const matrix dlogits = first_rows(dlogits_, rows);
    report_ = layer_.backward(dy, weights_, dx, dlogits, gradients_);
    balance_loss_ = balance_ == 0.0
                        ? 0.0
                        : balancer_.backward(first_rows(logits_, rows), layer_.last_plan().counts,
                                             balance_, dlogits);
    router_.backward(x, dlogits, dx, 1.0f);
  }

  /// Squared norm of dW_down as accumulated.
  double down_squared_norm() const { return train::squared_norm(down_.gradient); }

  /// Drops the experts' weight gradients: their products are skipped, their weights stay.
  void freeze_experts() {
    gradients_ = {};
    gate_up_.frozen = true;
    down_.frozen = true;
  }

  const layer& experts() const { return layer_; }
  layer& experts() { return layer_; }

  /// Of the last backward.
  const lrmoe::backward_report& report() const { return report_; }
  double balance_loss() const { return balance_loss_; }

 private:
  linear router_;
  parameter& gate_up_;
  parameter& down_;
  layer layer_;
  layer::weights_type weights_;      // gate_up (E, D, 2F), down (E, F, D)
  layer::gradients_type gradients_;  // the same
  double balance_;
  load_balance balancer_;
  matrix logits_;   // (T, E)
  matrix dlogits_;  // (T, E)
  lrmoe::backward_report report_;
  double balance_loss_ = 0.0;
};

}  // namespace train
