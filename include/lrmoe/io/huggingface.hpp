// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <string>
#include <vector>

#include <lrmoe/experts/parameters.hpp>
#include <lrmoe/io/safetensors.hpp>

/// Weights of one MoE block under the names of Hugging Face's Qwen3-MoE and GLM-4.5 models, in files of
/// the safetensors format. A prefix, e.g. "model.layers.3.mlp.", comes before each name. A matrix there
/// multiplies from the right, y = x W^T, so its shape is (outputs, inputs).
///   gate.weight                                      (E, D)      router
///   gate.e_score_correction_bias                     (E)         GLM-4.5's selection bias
///   experts.<e>.{gate,up}_proj.weight                (F, D)      } one by one, as published
///   experts.<e>.down_proj.weight                     (D, F)      }
///   experts.gate_up_proj                             (E, 2F, D)  } stacked, gate before up, as
///   experts.down_proj                                (E, D, F)   } transformers 5 holds them
///   shared_experts.{gate,up}_proj.weight             (F_shared, D)
///   shared_experts.down_proj.weight                  (D, F_shared)
namespace lrmoe::huggingface {

enum class expert_names { one_by_one, stacked };

/// Weights of one block in the layer's layout. Gradients have the same form: with main gradients in it,
/// add_block writes a file of gradients.
template <class Element, class Device>
struct moe_block {
  using accumulate_type = accumulate_t<Element>;
  tensor_view<Element, Device> gate_up;                   // (E, D, 2F)
  tensor_view<Element, Device> down;                      // (E, F, D)
  tensor_view<Element, Device> shared_gate_up{};          // (1, D, 2 F_shared) or empty
  tensor_view<Element, Device> shared_down{};             // (1, F_shared, D) or empty
  matrix_view<accumulate_type, Device> router;            // (E, D): logits = x router^T
  vector_view<accumulate_type, Device> selection_bias{};  // (E) or empty

  expert_weights<Element, Device> weights() const {
    return {gate_up, down, shared_gate_up, shared_down};
  }
};

/// What a file says of one block. K is not in the weights.
struct block_contents {
  std::int64_t D = 0, F = 0, E = 0, F_shared = 0;
  expert_names names = expert_names::one_by_one;
  bool selection_bias = false;
};

namespace detail {

namespace files = safetensors::detail;

inline std::string expert(const std::string& prefix, std::int64_t e, const char* projection) {
  return prefix + "experts." + std::to_string(e) + "." + projection + ".weight";
}
inline std::string shared(const std::string& prefix, const char* projection) {
  return prefix + "shared_experts." + projection + ".weight";
}

/// Matrices (outputs, inputs) of a file side by side as columns of one (inputs, all outputs).
template <class Element>
class transposer {
 public:
  transposer(const safetensors::reader& file, std::int64_t inputs, std::int64_t all_outputs)
      : file_(file), inputs_(inputs), all_outputs_(all_outputs) {}

  void read(const std::string& name, std::int64_t first, std::int64_t outputs, std::int64_t column,
            Element* to) {
    rows_.resize(static_cast<std::size_t>(outputs * inputs_));
    file_.read_part(name, first, std::span<Element>(rows_));
    for (std::int64_t o = 0; o < outputs; ++o)
      for (std::int64_t i = 0; i < inputs_; ++i)
        to[i * all_outputs_ + column + o] = rows_[static_cast<std::size_t>(o * inputs_ + i)];
  }

 private:
  const safetensors::reader& file_;
  std::int64_t inputs_, all_outputs_;
  std::vector<Element> rows_;
};

/// fill(plane, pointer) for each plane of a new tensor, in host memory, then to the device.
template <class Element, class Device, class Fill>
tensor_view<Element, Device> filled(const char* label, std::int64_t planes, std::int64_t rows,
                                    std::int64_t columns, const Fill& fill) {
  const tensor_view<Element, Device> to(
      Kokkos::view_alloc(Kokkos::WithoutInitializing, std::string(label)),
      static_cast<std::size_t>(planes), static_cast<std::size_t>(rows),
      static_cast<std::size_t>(columns));
  const std::int64_t size = rows * columns;
  std::vector<Element> plane(files::on_host<decltype(to)> ? 0 : static_cast<std::size_t>(size));
  for (std::int64_t p = 0; p < planes; ++p) {
    if constexpr (files::on_host<decltype(to)>) {
      fill(p, to.data() + p * size);
    } else {
      fill(p, plane.data());
      Kokkos::deep_copy(files::part(to, p * size, size), files::host_row(plane.data(), size));
    }
  }
  return to;
}

/// Writes columns [column, column + outputs) of planes (inputs, all outputs) as matrices
/// (outputs, inputs): one plane as a matrix, or all as (planes, outputs, inputs).
template <class View>
void add_transposed(safetensors::writer& file, const std::string& name, const View& host,
                    std::int64_t plane, std::int64_t column, std::int64_t outputs, bool all) {
  using Element = typename View::non_const_value_type;
  const auto planes = static_cast<std::int64_t>(host.extent(0));
  const auto inputs = static_cast<std::int64_t>(host.extent(1));
  std::vector<std::int64_t> shape{outputs, inputs};
  if (all) shape.insert(shape.begin(), planes);
  file.add_produced<Element>(
      name, std::move(shape), [=](std::int64_t first, std::span<Element> to) {
        for (std::size_t n = 0; n < to.size(); ++n) {
          const std::int64_t at = first + static_cast<std::int64_t>(n);
          const std::int64_t row = at / inputs;
          to[n] = host(plane + row / outputs, at % inputs, column + row % outputs);
        }
      });
}

}  // namespace detail

/// Extents and names of the block at a prefix.
/// Checked   that all weights are there and their shapes fit each other
/// Throws    file_error that names the tensor
inline block_contents find_block(const safetensors::reader& file, const std::string& prefix) {
  const auto require_file = [&](bool condition, const auto&... parts) {
    detail::files::require_file(condition, file.path(), parts...);
  };
  const auto require_ffn = [&](const std::string& gate, const std::string& up,
                               const std::string& down, std::int64_t D, std::int64_t F) {
    file.require_shape(gate, {F, D});
    file.require_shape(up, {F, D});
    file.require_shape(down, {D, F});
  };
  const auto outputs = [&](const std::string& name) {
    const auto& shape = file.info(name).shape;
    return shape.empty() ? std::int64_t{0} : shape.front();
  };
  block_contents found;
  const auto& router = file.info(prefix + "gate.weight").shape;
  require_file(router.size() == 2 && router[0] > 0 && router[1] > 0, "tensor '", prefix,
               "gate.weight' is no matrix (E, D) of a router");
  found.E = router[0];
  found.D = router[1];
  const std::string stacked = prefix + "experts.gate_up_proj";
  if (file.contains(stacked)) {
    found.names = expert_names::stacked;
    const auto& shape = file.info(stacked).shape;
    require_file(shape.size() == 3 && shape[0] == found.E && shape[1] > 0 && shape[1] % 2 == 0 &&
                     shape[2] == found.D,
                 "tensor '", stacked, "' has shape ", detail::files::text_of(shape), ", expected (",
                 found.E, ", 2F, ", found.D, "): E and D by the router");
    found.F = shape[1] / 2;
    file.require_shape(prefix + "experts.down_proj", {found.E, found.D, found.F});
  } else {
    found.F = outputs(detail::expert(prefix, 0, "gate_proj"));
    require_file(found.F > 0, "the experts at '", prefix, "' have no width");
    for (std::int64_t e = 0; e < found.E; ++e)
      require_ffn(detail::expert(prefix, e, "gate_proj"), detail::expert(prefix, e, "up_proj"),
                  detail::expert(prefix, e, "down_proj"), found.D, found.F);
    require_file(!file.contains(detail::expert(prefix, found.E, "gate_proj")), "the router at '",
                 prefix, "' knows ", found.E, " experts, and there are more");
  }
  require_file(!file.contains(prefix + "shared_expert.gate_proj.weight"), "the block at '", prefix,
               "' has a gated shared expert, as Qwen2-MoE: this layer has none");
  if (file.contains(detail::shared(prefix, "gate_proj"))) {
    found.F_shared = outputs(detail::shared(prefix, "gate_proj"));
    require_ffn(detail::shared(prefix, "gate_proj"), detail::shared(prefix, "up_proj"),
                detail::shared(prefix, "down_proj"), found.D, found.F_shared);
  }
  found.selection_bias = file.contains(prefix + "gate.e_score_correction_bias");
  if (found.selection_bias) file.require_shape(prefix + "gate.e_score_correction_bias", {found.E});
  return found;
}

/// Reads a block, whichever of the two names its experts have.
/// Numerics  as safetensors::reader; router and selection bias as accumulate_t
/// Cost      one pass over the file; host memory of one expert beside the views themselves
/// Throws    file_error
template <class Element, class Device>
moe_block<Element, Device> read_block(const safetensors::reader& file, const std::string& prefix) {
  const auto [D, F, E, F_shared, names, selection_bias] = find_block(file, prefix);
  const bool stacked = names == expert_names::stacked;
  moe_block<Element, Device> block;
  detail::transposer<Element> to_gate_up(file, D, 2 * F), to_down(file, F, D);
  const std::int64_t width = F, model_width = D;
  block.gate_up = detail::filled<Element, Device>(
      "lrmoe::huggingface::gate_up", E, D, 2 * F, [&](std::int64_t e, Element* to) {
        if (stacked) {
          to_gate_up.read(prefix + "experts.gate_up_proj", e * 2 * width * model_width, 2 * width,
                          0, to);
        } else {
          to_gate_up.read(detail::expert(prefix, e, "gate_proj"), 0, width, 0, to);
          to_gate_up.read(detail::expert(prefix, e, "up_proj"), 0, width, width, to);
        }
      });
  block.down = detail::filled<Element, Device>(
      "lrmoe::huggingface::down", E, F, D, [&](std::int64_t e, Element* to) {
        to_down.read(
            stacked ? prefix + "experts.down_proj" : detail::expert(prefix, e, "down_proj"),
            stacked ? e * model_width * width : 0, model_width, 0, to);
      });
  if (F_shared > 0) {
    const std::int64_t shared_width = F_shared;
    detail::transposer<Element> to_shared(file, D, 2 * F_shared), to_shared_down(file, F_shared, D);
    block.shared_gate_up = detail::filled<Element, Device>(
        "lrmoe::huggingface::shared_gate_up", 1, D, 2 * F_shared, [&](std::int64_t, Element* to) {
          to_shared.read(detail::shared(prefix, "gate_proj"), 0, shared_width, 0, to);
          to_shared.read(detail::shared(prefix, "up_proj"), 0, shared_width, shared_width, to);
        });
    block.shared_down = detail::filled<Element, Device>(
        "lrmoe::huggingface::shared_down", 1, F_shared, D, [&](std::int64_t, Element* to) {
          to_shared_down.read(detail::shared(prefix, "down_proj"), 0, model_width, 0, to);
        });
  }
  const auto experts = static_cast<std::size_t>(E);
  block.router = decltype(block.router)(
      Kokkos::view_alloc(Kokkos::WithoutInitializing, "lrmoe::huggingface::router"), experts,
      static_cast<std::size_t>(D));
  file.read(prefix + "gate.weight", block.router);
  if (selection_bias) {
    block.selection_bias = decltype(block.selection_bias)(
        Kokkos::view_alloc(Kokkos::WithoutInitializing, "lrmoe::huggingface::selection_bias"),
        experts);
    file.read(prefix + "gate.e_score_correction_bias", block.selection_bias);
  }
  return block;
}

/// Adds a block to a file to be written: experts and shared expert as Element, router and selection bias
/// as accumulate_t, so reading it again gives the same bits.
/// Order     a block in device memory is copied to the host here; one in host memory is read by write()
/// Throws    argument_error for extents that do not fit each other or a prefix used before
template <class Element, class Device>
void add_block(safetensors::writer& file, const std::string& prefix,
               const moe_block<Element, Device>& block, expert_names names) {
  const auto extent = [](const auto& view, int i) {
    return static_cast<std::int64_t>(view.extent(i));
  };
  const std::int64_t E = extent(block.router, 0), D = extent(block.router, 1);
  const std::int64_t F = extent(block.down, 1), F_shared = extent(block.shared_down, 1);
  require(E > 0 && D > 0, "huggingface: the router has extents ", E, " x ", D,
          ": give add_block a whole block");
  block.weights().validate(layer_shape{.D = D, .F = F, .E = E, .K = 1, .F_shared = F_shared}, E);
  require(block.selection_bias.extent(0) == 0 || extent(block.selection_bias, 0) == E,
          "huggingface: selection_bias has ", block.selection_bias.extent(0),
          " entries, expected E = ", E, " or none");
  const auto on_host = [](const auto& view) {
    return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
  };
  const auto gate_up = on_host(block.gate_up);
  const auto down = on_host(block.down);
  if (names == expert_names::stacked) {
    detail::add_transposed(file, prefix + "experts.gate_up_proj", gate_up, 0, 0, 2 * F, true);
    detail::add_transposed(file, prefix + "experts.down_proj", down, 0, 0, D, true);
  } else {
    for (std::int64_t e = 0; e < E; ++e) {
      detail::add_transposed(file, detail::expert(prefix, e, "gate_proj"), gate_up, e, 0, F, false);
      detail::add_transposed(file, detail::expert(prefix, e, "up_proj"), gate_up, e, F, F, false);
      detail::add_transposed(file, detail::expert(prefix, e, "down_proj"), down, e, 0, D, false);
    }
  }
  if (F_shared > 0) {
    const auto shared_gate_up = on_host(block.shared_gate_up);
    const auto shared_down = on_host(block.shared_down);
    detail::add_transposed(file, detail::shared(prefix, "gate_proj"), shared_gate_up, 0, 0,
                           F_shared, false);
    detail::add_transposed(file, detail::shared(prefix, "up_proj"), shared_gate_up, 0, F_shared,
                           F_shared, false);
    detail::add_transposed(file, detail::shared(prefix, "down_proj"), shared_down, 0, 0, D, false);
  }
  file.add(prefix + "gate.weight", block.router);
  if (block.selection_bias.extent(0) > 0)
    file.add(prefix + "gate.e_score_correction_bias", block.selection_bias);
}

}  // namespace lrmoe::huggingface
