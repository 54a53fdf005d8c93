// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/memory/memory_use.hpp>
#include <lrmoe/types.hpp>

namespace lrmoe {

/// Who holds what of a layer's experts on one rank.
struct expert_holding {
  std::int64_t experts = 0;   ///< experts whose home this rank is
  std::int64_t replicas = 0;  ///< further experts that it holds copies of
  /// Numbers of the accumulation type that the optimizer keeps of a parameter: 2 for Adam's moments, 3
  /// with a master copy of bfloat16 weights.
  std::int64_t optimizer_values = 2;
  /// Ranks that share every expert's optimizer state evenly; 1: it stays at home.
  std::int64_t optimizer_shards = 1;
  std::int64_t layer_experts = 0;  ///< E, of all ranks; used when the state is sharded
};

/// Bytes that a layer's experts take on one rank beside the layer's own memory (layer_memory.hpp): weights
/// in Element; main gradients in the accumulation type for every expert held; the optimizer's share. The
/// shared expert is held by every rank and its optimizer state is shared like the others'.
template <class Element>
memory_use expert_memory(const layer_shape& shape, const expert_holding& held) {
  constexpr auto element = static_cast<std::int64_t>(sizeof(Element));
  constexpr auto real = static_cast<std::int64_t>(sizeof(accumulate_t<Element>));
  require(held.optimizer_shards >= 1, "expert_memory: optimizer_shards = ", held.optimizer_shards,
          " must be at least 1");
  const std::int64_t of_expert = 3 * shape.D * shape.F;
  const std::int64_t of_shared = 3 * shape.D * shape.F_shared;
  const bool sharded = held.optimizer_shards > 1;
  const std::int64_t state_of = sharded ? held.layer_experts : held.experts;
  memory_use use;
  use[memory_category::expert_weights] = (held.experts * of_expert + of_shared) * element;
  use[memory_category::replicas] = held.replicas * of_expert * element;
  use[memory_category::gradients] = ((held.experts + held.replicas) * of_expert + of_shared) * real;
  const std::int64_t state = held.optimizer_values * (state_of * of_expert + of_shared) * real;
  use[memory_category::optimizer] = (state + held.optimizer_shards - 1) / held.optimizer_shards;
  return use;
}

}  // namespace lrmoe
