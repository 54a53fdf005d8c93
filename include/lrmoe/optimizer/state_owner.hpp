// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <concepts>
#include <cstdint>

namespace lrmoe {

/// Some of an expert's parameters, which are numbered 0 .. 3 D F: gate_up (D, 2F), then down (F, D).
struct parameter_range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  friend bool operator==(const parameter_range&, const parameter_range&) = default;
};

/// What an owner needs to know of a layer and its ranks.
struct ownership_extents {
  std::int64_t R = 1;           ///< ranks
  std::int64_t E = 1;           ///< experts
  std::int64_t parameters = 0;  ///< of one expert, n = 3 D F
};

/// A state owner says which rank holds the optimizer state (master weights and moments) of which
/// parameters. It does not depend on the placement, so experts move without their state.
///   range(e, r, extents)   the parameters of expert e whose state rank r holds
/// Laws: the ranges of one expert ascend with the rank and cover [0, n) without overlap; the same on
/// every rank.
/// Models: home_state, sharded_state.
template <class Owner>
concept state_owner = std::copyable<Owner> &&
    requires(const Owner& owner, const ownership_extents& extents) {
  { owner.range(std::int64_t{}, std::int64_t{}, extents) } -> std::same_as<parameter_range>;
};

}  // namespace lrmoe
