// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/optimizer/state_owner.hpp>

namespace lrmoe {

/// Every rank holds 1/R of every expert's state, to within one parameter. All ranks hold and update as
/// much, whatever the placement.
/// Cost      per step every replica sends (R-1)/R of its gradient and receives (R-1)/R of its weights
/// Source    the decoupling of optimizer state from expert placement in SYMI and LAER-MoE
struct sharded_state {
  parameter_range range(std::int64_t, std::int64_t r, const ownership_extents& extents) const {
    const std::int64_t n = extents.parameters, R = extents.R;
    // n r / R, without the product's overflow
    const auto cut = [&](std::int64_t at) { return n / R * at + n % R * at / R; };
    return {cut(r), cut(r + 1)};
  }
};

static_assert(state_owner<sharded_state>);

}  // namespace lrmoe
