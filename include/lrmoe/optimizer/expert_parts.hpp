// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>

#include <lrmoe/optimizer/state_owner.hpp>
#include <lrmoe/types.hpp>

namespace lrmoe::detail {

/// f(values, first parameter, count) for the parts of a range in each of the two tensors of a slot.
/// Shapes    gate_up (S, D, 2F), down (S, F, D)
template <class View, class F>
void for_expert_parts(const layer_shape& shape, const View& gate_up, const View& down,
                      std::int64_t slot, parameter_range part, const F& f) {
  const std::int64_t border = 2 * shape.D * shape.F, in_down = shape.F * shape.D;
  if (part.begin < border)
    f(gate_up.data() + slot * border + part.begin, part.begin,
      std::min(part.end, border) - part.begin);
  const std::int64_t first = std::max(part.begin, border);
  if (part.end > first) f(down.data() + slot * in_down + first - border, first, part.end - first);
}

}  // namespace lrmoe::detail
