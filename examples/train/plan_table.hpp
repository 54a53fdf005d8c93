// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdio>

#include <fmt/format.h>

#include <lrmoe/memory/ledger.hpp>

namespace train {

/// The plan of one MoE layer's last call as text: pairs, quotas, memory by category, predicted time.
template <class Layer>
void print_layer_plan(std::int64_t block, const Layer& layer, const lrmoe::ledger& memory) {
  const lrmoe::plan& plan = layer.last_plan();
  std::string text = fmt::format(
      "MoE layer of block {}: {} of {} pairs kept ({:.1f} %)\n", block, plan.pairs_kept(),
      plan.pairs(),
      plan.pairs() == 0
          ? 100.0
          : 100.0 * static_cast<double>(plan.pairs_kept()) / static_cast<double>(plan.pairs()));
  text += fmt::format("  {:>6} {:>9} {:>9} {:>7}\n", "expert", "pairs", "quota", "share");
  for (std::size_t e = 0; e < plan.counts.size(); ++e)
    text += fmt::format("  {:>6} {:>9} {:>9} {:>6.1f} %\n", e, plan.counts[e], plan.quotas[e],
                        plan.counts[e] == 0 ? 100.0 : 100.0 * plan.quotas[e] / plan.counts[e]);
  const auto use = layer.planned_memory();
  text += "  predicted bytes:\n";
  for (std::size_t i = 0; i < lrmoe::num_memory_categories; ++i) {
    const auto category = static_cast<lrmoe::memory_category>(i);
    if (use[category] != 0)
      text += fmt::format("  {:>24} {:>14}\n", lrmoe::name_of(category), use[category]);
  }
  for (const auto category : {lrmoe::memory_category::expert_weights,
                              lrmoe::memory_category::gradients, lrmoe::memory_category::optimizer})
    text += fmt::format("  {:>24} {:>14}  (all layers)\n", lrmoe::name_of(category),
                        memory.live_bytes(category));
  text += fmt::format(
      "  {:>24} {:>14}\n", "budget",
      memory.budget_bytes() == 0 ? std::string("none") : std::to_string(memory.budget_bytes()));
  text +=
      fmt::format("  predicted time of forward and backward: {:.2f} ms\n", layer.planned_s() * 1e3);
  std::fputs(text.c_str(), stdout);
}

}  // namespace train
