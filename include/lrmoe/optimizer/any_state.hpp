// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <variant>

#include <lrmoe/optimizer/home_state.hpp>
#include <lrmoe/optimizer/sharded_state.hpp>

namespace lrmoe {

/// A state owner chosen when the program runs.
class any_state {
 public:
  any_state() = default;
  any_state(home_state chosen) : chosen_(chosen) {}
  any_state(sharded_state chosen) : chosen_(chosen) {}

  parameter_range range(std::int64_t e, std::int64_t r, const ownership_extents& extents) const {
    return std::visit([&](const auto& owner) { return owner.range(e, r, extents); }, chosen_);
  }

 private:
  std::variant<home_state, sharded_state> chosen_;
};

static_assert(state_owner<any_state>);

}  // namespace lrmoe
