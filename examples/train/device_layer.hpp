// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <utility>

#include "expert_layer.hpp"

namespace train {

/// A layer that computes in the memory of a device, between host views: every call copies what it reads to
/// the device and what it writes back, weights and gradients included. That shows that the backends train
/// alike; it is not the way to be fast, which is to keep everything on the device.
/// The copies are not in the ledger, as the host's tensors are not: moe_block books weights and gradients.
template <lrmoe::backend Backend>
class device_layer final : public expert_layer_on<Backend> {
  using there = typename Backend::device_type;
  using expert_layer_on<Backend>::layer_;

 public:
  device_layer(lrmoe::context<Backend>& environment, const lrmoe::layer_shape& shape,
               const moe_policies& policies, std::uint32_t layer_id)
      : expert_layer_on<Backend>(environment, shape, policies, layer_id), context_(environment) {}

  void forward(std::uint64_t step, const const_matrix& x, const const_matrix& logits,
               const expert_layer::weights_type& weights, const matrix& y, bool training) override {
    finish_host();
    const auto x_there = x_.copy(context_.space, x);
    const auto logits_there = logits_.copy(context_.space, logits);
    host_weights_ = weights;
    const auto y_there = y_.like(y);
    layer_.forward(step, x_there, logits_there, copy_weights(), y_there, training);
    bring_back(y_there, y);
    context_.space.fence("train::device_layer: y");
  }

  lrmoe::backward_report backward(const const_matrix& dy, const expert_layer::weights_type&,
                                  const matrix& dx, const matrix& dlogits,
                                  const expert_layer::gradients_type& gradients) override {
    finish_host();
    const auto dy_there = dy_.copy(context_.space, dy);
    const auto dx_there = dx_.like(dx);
    const auto dlogits_there = dlogits_.like(dlogits);
    const lrmoe::expert_gradients<float, there> sums{
        .gate_up = gate_up_gradient_.like(const_tensor(gradients.gate_up)),
        .down = down_gradient_.like(const_tensor(gradients.down))};
    layer_.backward(dy_there, weights_there_, dx_there, dlogits_there, sums,
                    lrmoe::gradient_update::overwrite);
    bring_back(dx_there, dx);
    bring_back(dlogits_there, dlogits);
    bring_back(sums.gate_up, gradients.gate_up);
    bring_back(sums.down, gradients.down);
    context_.space.fence("train::device_layer: gradients");
    return layer_.report();
  }

  void set_weight_mover(expert_layer::weight_mover mover) override {
    layer_.set_weight_mover([this, mover = std::move(mover)](const lrmoe::placement& now) {
      // The weights that are still on their way are about to change.
      context_.space.fence("train::device_layer: weights");
      mover(now);
      finish_host();
      copy_weights();
    });
  }

 private:
  /// The device's copy of a host view, in memory that grows when a larger one comes.
  class copied {
   public:
    /// Uninitialised, with the extents of the host's.
    lrmoe::matrix_view<float, there> like(const const_matrix& host) {
      return lrmoe::matrix_view<float, there>(reserve(host.size()), host.extent(0), host.extent(1));
    }
    lrmoe::tensor_view<float, there> like(const const_tensor& host) {
      return lrmoe::tensor_view<float, there>(reserve(host.size()), host.extent(0), host.extent(1),
                                              host.extent(2));
    }
    /// With the host's numbers, once the space has come to the copy.
    template <class HostView>
    auto copy(const typename Backend::execution_space& space, const HostView& host) {
      const auto result = like(host);
      if (host.size() > 0) Kokkos::deep_copy(space, result, host);
      return result;
    }

   private:
    float* reserve(std::size_t size) {
      if (size > storage_.size()) {
        storage_ = {};
        storage_ = lrmoe::vector_view<float, there>(
            Kokkos::view_alloc("train::device_layer", Kokkos::WithoutInitializing), size);
      }
      return storage_.data();
    }
    lrmoe::vector_view<float, there> storage_;
  };

  /// What the host has enqueued is in its memory.
  static void finish_host() { space().fence("train::device_layer: what the host computed"); }

  lrmoe::expert_weights<float, there> copy_weights() {
    weights_there_ = {.gate_up = gate_up_.copy(context_.space, host_weights_.gate_up),
                      .down = down_.copy(context_.space, host_weights_.down)};
    return weights_there_;
  }

  template <class DeviceView, class HostView>
  void bring_back(const DeviceView& from, const HostView& host) {
    if (host.size() > 0) Kokkos::deep_copy(context_.space, host, from);
  }

  lrmoe::context<Backend>& context_;
  expert_layer::weights_type host_weights_;            // of the last forward
  lrmoe::expert_weights<float, there> weights_there_;  // likewise
  copied x_, logits_, y_, dy_, dx_, dlogits_;
  copied gate_up_, down_, gate_up_gradient_, down_gradient_;
};

}  // namespace train
