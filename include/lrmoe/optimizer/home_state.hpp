// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/optimizer/state_owner.hpp>

namespace lrmoe {

/// Each expert's whole state lies on one rank, its home: experts in order, as evenly as they go. With more
/// ranks than experts some ranks own nothing.
/// Cost      per step every replica off the home rank sends its gradient there, and the home sends the
///           weights to every rank that holds the expert: nothing at all where the only replica is at home
struct home_state {
  std::int64_t home(std::int64_t e, const ownership_extents& extents) const {
    return e * extents.R / extents.E;
  }
  parameter_range range(std::int64_t e, std::int64_t r, const ownership_extents& extents) const {
    const std::int64_t at = home(e, extents), n = extents.parameters;
    return {r <= at ? 0 : n, r < at ? 0 : n};
  }
};

static_assert(state_owner<home_state>);

}  // namespace lrmoe
