// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <array>

#include <lrmoe/experts/expert_work.hpp>
#include <lrmoe/memory/layer_call.hpp>
#include <lrmoe/types.hpp>

namespace lrmoe {

/// What one layer call asks of the expert operations: routed experts, and the shared one.
inline std::array<expert_work, 2> expert_works(const layer_shape& shape, const layer_call& call) {
  const auto& [D, F, E, K, F_shared] = shape;
  expert_work routed{.D = D,
                     .F = F,
                     .forward_rows = call.pairs_here(),
                     .saved = call.backward && call.saved != saved_activations::recompute};
  expert_work shared{};
  if (F_shared > 0) {
    shared = {
        .D = D, .F = F_shared, .forward_rows = call.T, .gathered = false, .saved = call.backward};
  }
  if (call.backward) {
    const std::int64_t dropped = call.router == router_gradient::exact ? call.pairs - call.kept : 0;
    routed.backward_rows = std::max(call.kept_here(), dropped);
    if (!routed.saved) routed.forward_rows = std::max(routed.forward_rows, routed.backward_rows);
    routed.drawn_dx = call.kept_dx < call.kept ? call.kept_dx : 0;
    routed.drawn_dw = call.kept_dw < call.kept ? call.kept_dw : 0;
    shared.backward_rows = shared.forward_rows;
  }
  return {routed, shared};
}

}  // namespace lrmoe
