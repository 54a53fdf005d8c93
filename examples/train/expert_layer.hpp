// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <functional>
#include <utility>

#include <lrmoe/layer.hpp>
#include <lrmoe/openmp/backend.hpp>

#include "host.hpp"
#include "moe_policies.hpp"
#include "ranks.hpp"

namespace train {

using moe_backend = lrmoe::with_ranks<lrmoe::openmp::backend<>, communicator>;
using moe_environment = lrmoe::context<moe_backend>;

/// The MoE layer of a block as the rest of the trainer calls it: with views of host memory, wherever it
/// computes. Every function does what lrmoe::moe_layer says under its name; backward overwrites gradients, as
/// a step is one batch.
class expert_layer {
 public:
  using weights_type = lrmoe::expert_weights<float, device>;
  using gradients_type = lrmoe::expert_gradients<float, device>;
  using weight_mover = std::function<void(const lrmoe::placement&)>;

  expert_layer() = default;
  expert_layer(const expert_layer&) = delete;
  expert_layer& operator=(const expert_layer&) = delete;
  virtual ~expert_layer() = default;

  virtual void forward(std::uint64_t step, const const_matrix& x, const const_matrix& logits,
                       const weights_type& weights, const matrix& y, bool training) = 0;
  virtual lrmoe::backward_report backward(const const_matrix& dy, const weights_type& weights,
                                          const matrix& dx, const matrix& dlogits,
                                          const gradients_type& gradients) = 0;
  /// The mover changes the weights that forward was given.
  virtual void set_weight_mover(weight_mover mover) = 0;

  virtual const lrmoe::layer_shape& shape() const = 0;
  virtual lrmoe::placement first_placement(std::int64_t S) const = 0;
  virtual const lrmoe::plan& last_plan() const = 0;
  virtual const lrmoe::placement& last_placement() const = 0;
  virtual std::pair<std::int64_t, std::int64_t> last_pairs_here() const = 0;
  virtual lrmoe::memory_use planned_memory() const = 0;
  virtual double planned_s() const = 0;
  virtual const lrmoe::score_history& history() = 0;
  virtual void set_history(lrmoe::score_history past) = 0;
};

/// An expert_layer around the library's, on any backend: what takes no views.
template <lrmoe::backend Backend>
class expert_layer_on : public expert_layer {
 public:
  expert_layer_on(lrmoe::context<Backend>& environment, const lrmoe::layer_shape& shape,
                  const moe_policies& policies, std::uint32_t layer_id)
      : layer_(environment, shape, policies, layer_id) {}

  const lrmoe::layer_shape& shape() const override { return layer_.shape(); }
  lrmoe::placement first_placement(std::int64_t S) const override {
    return layer_.first_placement(S);
  }
  const lrmoe::plan& last_plan() const override { return layer_.last_plan(); }
  const lrmoe::placement& last_placement() const override { return layer_.last_placement(); }
  std::pair<std::int64_t, std::int64_t> last_pairs_here() const override {
    return layer_.last_pairs_here();
  }
  lrmoe::memory_use planned_memory() const override { return layer_.planned_memory(); }
  double planned_s() const override { return layer_.planned_s(); }
  const lrmoe::score_history& history() override { return layer_.history(); }
  void set_history(lrmoe::score_history past) override { layer_.set_history(std::move(past)); }

 protected:
  lrmoe::moe_layer<float, Backend, moe_policies> layer_;
};

/// On the host, with the caller's own views.
class host_layer final : public expert_layer_on<moe_backend> {
 public:
  using expert_layer_on::expert_layer_on;

  void forward(std::uint64_t step, const const_matrix& x, const const_matrix& logits,
               const weights_type& weights, const matrix& y, bool training) override {
    layer_.forward(step, x, logits, weights, y, training);
  }
  lrmoe::backward_report backward(const const_matrix& dy, const weights_type& weights,
                                  const matrix& dx, const matrix& dlogits,
                                  const gradients_type& gradients) override {
    layer_.backward(dy, weights, dx, dlogits, gradients, lrmoe::gradient_update::overwrite);
    return layer_.report();
  }
  void set_weight_mover(weight_mover mover) override { layer_.set_weight_mover(std::move(mover)); }
};

}  // namespace train
