// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <array>
#include <string_view>

#include <lrmoe/detail/views.hpp>

namespace lrmoe {

/// Weights of one layer, owned by the caller. The shared expert's are empty without one. With several ranks
/// the first two hold the S slots of this rank instead of all E experts.
template <class Element, class Device>
struct expert_weights {
  tensor_view<const Element, Device> gate_up;           // (E, D, 2F): W_gate then W_up by columns
  tensor_view<const Element, Device> down;              // (E, F, D)
  tensor_view<const Element, Device> shared_gate_up{};  // (1, D, 2 F_shared)
  tensor_view<const Element, Device> shared_down{};     // (1, F_shared, D)

  /// Throws argument_error when an extent differs from the layer's.
  void validate(const layer_shape& shape, std::int64_t slots) const {
    const auto& [D, F, E, K, F_shared] = shape;
    detail::require_extents("moe_layer", "gate_up weights", gate_up, slots, D, 2 * F);
    detail::require_extents("moe_layer", "down weights", down, slots, F, D);
    if (F_shared == 0) return;
    detail::require_extents("moe_layer", "shared gate_up weights", shared_gate_up, 1, D,
                            2 * F_shared);
    detail::require_extents("moe_layer", "shared down weights", shared_down, 1, F_shared, D);
  }

  /// Throws argument_error when an output shares memory with the weights.
  template <class Output>
  void require_disjoint(std::string_view name, const Output& output) const {
    detail::require_disjoint("moe_layer", name, output, "gate_up weights", gate_up);
    detail::require_disjoint("moe_layer", name, output, "down weights", down);
    detail::require_disjoint("moe_layer", name, output, "shared gate_up weights", shared_gate_up);
    detail::require_disjoint("moe_layer", name, output, "shared down weights", shared_down);
  }
};

/// Main gradients of one layer, owned by the caller and added to or overwritten (gradient_update). An empty
/// view means that this gradient is not wanted: its product is skipped.
template <class Accumulate, class Device>
struct expert_gradients {
  tensor_view<Accumulate, Device> gate_up{};         // (E, D, 2F)
  tensor_view<Accumulate, Device> down{};            // (E, F, D)
  tensor_view<Accumulate, Device> shared_gate_up{};  // (1, D, 2 F_shared)
  tensor_view<Accumulate, Device> shared_down{};     // (1, F_shared, D)

  struct named {
    std::string_view name;
    tensor_view<Accumulate, Device> view;
  };
  std::array<named, 4> all() const {
    return {{{"gate_up gradient", gate_up},
             {"down gradient", down},
             {"shared gate_up gradient", shared_gate_up},
             {"shared down gradient", shared_down}}};
  }

  /// Throws argument_error when an extent of a wanted gradient differs from the layer's.
  void validate(const layer_shape& shape, std::int64_t slots) const {
    const auto& [D, F, E, K, F_shared] = shape;
    const auto check = [](const named& gradient, std::int64_t groups, std::int64_t rows,
                          std::int64_t columns) {
      if (gradient.view.size() == 0) return;
      detail::require_extents("moe_layer", gradient.name, gradient.view, groups, rows, columns);
    };
    const auto [routed_gate_up, routed_down, of_shared_gate_up, of_shared_down] = all();
    check(routed_gate_up, slots, D, 2 * F);
    check(routed_down, slots, F, D);
    check(of_shared_gate_up, 1, D, 2 * F_shared);
    check(of_shared_down, 1, F_shared, D);
  }
};

}  // namespace lrmoe
