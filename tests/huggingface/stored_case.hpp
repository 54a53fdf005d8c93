// A configuration of Hugging Face's MoE block as make_fixtures.py stored it: settings, weights, inputs,
// and what the block made of them.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <lrmoe/io/huggingface.hpp>

#include "fixture.hpp"

namespace huggingface_test {

using fixture::device;
using oracle::integer;
namespace hf = lrmoe::huggingface;
namespace st = lrmoe::safetensors;

inline const std::vector<std::string> case_names{"qwen3_moe", "qwen3_moe_unnormalised",
                                                 "glm4_moe_groups", "glm4_moe_unnormalised"};

inline std::string fixture_path(const std::string& name) {
  return (std::filesystem::path(__FILE__).parent_path() / "fixtures" / (name + ".safetensors"))
      .string();
}

template <class View>
std::vector<double> host_values(const View& view) {
  std::vector<double> values;
  for (const auto element : fixture::host_copy(view)) values.push_back(fixture::value_of(element));
  return values;
}

struct settings {
  bool sigmoid = false;  // GLM-4.5's router; else softmax, Qwen3's
  bool renormalise = false;
  oracle::sigmoid_options options;
};

/// What the block computed, in the library's layout.
struct block_results {
  oracle::format format;
  std::vector<double> out, dx, logits, weights;  // weights (T, K) in the order of experts
  std::vector<std::int64_t> experts;             // (T, K)
  std::vector<double> d_router, d_gate_up, d_down, d_shared_gate_up, d_shared_down;
};

struct stored_case {
  std::string model;
  oracle::extents shape;
  settings chosen;
  std::vector<double> x, d_out;

  explicit stored_case(const std::string& name) {
    const st::reader results(fixture_path(name + ".f64"));
    model = results.metadata("model");
    chosen.sigmoid = model == "glm4_moe";
    chosen.renormalise = results.metadata("norm_topk_prob") == "True";
    if (chosen.sigmoid) {
      chosen.options.groups = std::stoi(results.metadata("n_group"));
      chosen.options.groups_kept = std::stoi(results.metadata("topk_group"));
      chosen.options.scaling = std::stod(results.metadata("routed_scaling_factor"));
      chosen.options.renormalise = chosen.renormalise;
    }
    const st::reader inputs(fixture_path(model));
    const auto contents = hf::find_block(inputs, "mlp.");
    x = inputs.read<double>("input");
    d_out = inputs.read<double>("d_output");
    shape = {static_cast<integer>(x.size()) / contents.D,
             contents.D,
             contents.F,
             contents.E,
             std::stoi(results.metadata("num_experts_per_tok")),
             contents.F_shared};
  }

  template <class Element>
  hf::moe_block<Element, device> block() const {
    return hf::read_block<Element, device>(st::reader(fixture_path(model)), "mlp.");
  }
};

/// precision is "f64" or "f32", in which the block computed and is stored.
inline block_results stored_results(const std::string& name, const std::string& precision) {
  const st::reader file(fixture_path(name + "." + precision));
  const auto gradients = hf::read_block<double, device>(file, "d_mlp.");
  return {precision == "f64" ? oracle::format::binary64 : oracle::format::binary32,
          file.read<double>("output"),
          file.read<double>("d_input"),
          file.read<double>("router.logits"),
          file.read<double>("router.weights"),
          file.read<std::int64_t>("router.experts"),
          host_values(gradients.router),
          host_values(gradients.gate_up),
          host_values(gradients.down),
          host_values(gradients.shared_gate_up),
          host_values(gradients.shared_down)};
}

}  // namespace huggingface_test
