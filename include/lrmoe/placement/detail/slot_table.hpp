// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include <lrmoe/placement/planner.hpp>
#include <lrmoe/quota/scratch.hpp>

namespace lrmoe::detail {

/// Slots being filled, rank by rank from the lowest. Its storage is the thread's: one at a time.
class slot_table {
 public:
  slot_table(std::int64_t R, std::int64_t S)
      : R_(R),
        S_(S),
        expert_of_slot_(scratch<slot_tag, index_type>(static_cast<std::size_t>(R * S))),
        used_(scratch<used_tag, index_type>(static_cast<std::size_t>(R))) {
    std::fill(expert_of_slot_.begin(), expert_of_slot_.end(), no_expert);
    std::fill(used_.begin(), used_.end(), 0);
  }

  std::int64_t free(std::int64_t rank) const { return S_ - used_[static_cast<std::size_t>(rank)]; }
  void put(std::int64_t rank, std::int64_t expert) {
    expert_of_slot_[static_cast<std::size_t>(rank * S_ + used_[static_cast<std::size_t>(rank)]++)] =
        static_cast<index_type>(expert);
  }
  bool holds(std::int64_t rank, std::int64_t expert) const {
    const auto slots = of(rank);
    return std::find(slots.begin(), slots.end(), static_cast<index_type>(expert)) != slots.end();
  }
  std::span<index_type> of(std::int64_t rank) const {
    return expert_of_slot_.subspan(static_cast<std::size_t>(rank * S_),
                                   static_cast<std::size_t>(S_));
  }

  /// Every expert into the lowest slots of its home rank, in ascending order.
  /// Throws    argument_error when a rank owns more experts than it has slots
  void put_home(std::span<const index_type> home) {
    for (std::size_t e = 0; e < home.size(); ++e) {
      require(free(home[e]) > 0, "placement: rank ", home[e],
              " owns more experts than its S = ", S_,
              " slots: give every rank more, or spread the experts as home_ranks does");
      put(home[e], static_cast<std::int64_t>(e));
    }
  }

  /// Lets experts that the rank held before keep their slots, so that nothing is copied within a rank.
  void keep_positions(const placement& before) {
    if (before.R() != R_ || before.S() != S_) return;
    for (std::int64_t r = 0; r < R_; ++r) {
      const auto now = of(r);
      const auto then =
          before.expert_of_slot().subspan(static_cast<std::size_t>(r * S_), now.size());
      for (std::size_t s = 0; s < now.size(); ++s) {
        if (then[s] == no_expert || now[s] == then[s]) continue;
        for (std::size_t other = 0; other < now.size(); ++other) {
          if (now[other] != then[s] || then[other] == then[s]) continue;
          std::swap(now[s], now[other]);
          break;
        }
      }
    }
  }

  void write(std::int64_t E, placement& to) const { to.assign(R_, S_, E, expert_of_slot_); }

 private:
  struct slot_tag {};
  struct used_tag {};
  std::int64_t R_, S_;
  std::span<index_type> expert_of_slot_, used_;
};

}  // namespace lrmoe::detail
