// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <lrmoe/types.hpp>

namespace lrmoe {

/// Which expert each slot of each rank holds. A rank has S slots, some of them possibly empty; the weights
/// handed to a layer are (S, ...) tensors in the order of its slots.
/// A *replica* is an expert on a rank, however many of the rank's slots hold it: copies on one rank share
/// weights, and pairs go to the lowest of their slots. Replicas are counted by expert, then by rank.
class placement {
 public:
  placement() = default;

  /// Shapes    expert_of_slot (R, S), no_expert for an empty slot
  /// Throws    argument_error for extents below 1, R S < E, ids outside [0, E), and an expert that no slot
  ///           holds
  placement(std::int64_t R, std::int64_t S, std::int64_t E, std::vector<index_type> expert_of_slot)
      : R_(R), S_(S), E_(E), expert_of_slot_(std::move(expert_of_slot)) {
    find_replicas();
  }

  /// Becomes placement(R, S, E, expert_of_slot) in the storage it has: nothing is allocated while sizes
  /// do not grow. After an exception only another assignment makes it usable.
  void assign(std::int64_t R, std::int64_t S, std::int64_t E,
              std::span<const index_type> expert_of_slot) {
    R_ = R;
    S_ = S;
    E_ = E;
    expert_of_slot_.assign(expert_of_slot.begin(), expert_of_slot.end());
    find_replicas();
  }

  std::int64_t R() const { return R_; }
  std::int64_t S() const { return S_; }
  std::int64_t E() const { return E_; }
  /// Number of replicas, H.
  std::int64_t replicas() const { return static_cast<std::int64_t>(ranks_.size()); }

  std::span<const index_type> expert_of_slot() const { return expert_of_slot_; }  ///< (R, S)
  std::span<const index_type> offsets() const { return offsets_; }  ///< (E+1)  first replica of e
  std::span<const index_type> experts() const { return experts_; }  ///< (H)
  std::span<const index_type> ranks() const { return ranks_; }      ///< (H)
  std::span<const index_type> slots() const { return slots_; }    ///< (H)  lowest slot on its rank
  std::span<const index_type> copies() const { return copies_; }  ///< (H)  slots that hold it

  /// Ranks that hold expert e, ascending.
  std::span<const index_type> holders(std::int64_t e) const {
    const auto first = static_cast<std::size_t>(offsets_[static_cast<std::size_t>(e)]);
    const auto last = static_cast<std::size_t>(offsets_[static_cast<std::size_t>(e) + 1]);
    return std::span(ranks_).subspan(first, last - first);
  }
  /// The replica of expert e on a rank, or -1.
  index_type find(std::int64_t e, index_type rank) const {
    const auto of_expert = holders(e);
    const auto at = std::lower_bound(of_expert.begin(), of_expert.end(), rank);
    if (at == of_expert.end() || *at != rank) return -1;
    return offsets_[static_cast<std::size_t>(e)] + static_cast<index_type>(at - of_expert.begin());
  }

  friend bool operator==(const placement& left, const placement& right) {
    return left.R_ == right.R_ && left.S_ == right.S_ && left.E_ == right.E_ &&
           left.expert_of_slot_ == right.expert_of_slot_;
  }

 private:
  void check_extents() const {
    require(R_ >= 1 && S_ >= 1 && E_ >= 1, "placement: R = ", R_, " ranks, S = ", S_,
            " slots and E = ", E_, " experts must be at least 1");
    require(R_ * S_ >= E_, "placement: R S = ", R_, " x ", S_, " = ", R_ * S_,
            " slots cannot hold E = ", E_, " experts: give every rank at least ",
            (E_ + R_ - 1) / R_, " slots");
    require(expert_of_slot_.size() == static_cast<std::size_t>(R_ * S_),
            "placement: ", expert_of_slot_.size(), " slots given for R = ", R_, " and S = ", S_,
            ": pass (R, S)");
  }

  /// Calls visit(expert, rank, slot, whether the rank has no lower slot with it) for every slot in use.
  template <class Visit>
  void visit_slots(const Visit& visit) {
    last_rank_.assign(static_cast<std::size_t>(E_), -1);
    for (std::int64_t r = 0; r < R_; ++r) {
      for (std::int64_t s = 0; s < S_; ++s) {
        const index_type e = expert_of_slot_[static_cast<std::size_t>(r * S_ + s)];
        if (e == no_expert) continue;
        require(e >= 0 && e < E_, "placement: slot ", s, " of rank ", r, " holds expert ", e,
                ", outside [0, E = ", E_, ")");
        index_type& last = last_rank_[static_cast<std::size_t>(e)];
        visit(static_cast<std::size_t>(e), static_cast<index_type>(r), static_cast<index_type>(s),
              last != r);
        last = static_cast<index_type>(r);
      }
    }
  }

  // A counting sort by expert; visiting by rank leaves the ranks of an expert ascending.
  void find_replicas() {
    check_extents();
    offsets_.assign(static_cast<std::size_t>(E_) + 1, 0);
    visit_slots([&](std::size_t e, index_type, index_type, bool is_first) {
      offsets_[e + 1] += is_first ? 1 : 0;
    });
    for (std::size_t e = 0; e < static_cast<std::size_t>(E_); ++e) {
      require(offsets_[e + 1] > 0, "placement: no slot holds expert ", e,
              ": every expert needs at least one");
      offsets_[e + 1] += offsets_[e];
    }
    const auto H = static_cast<std::size_t>(offsets_.back());
    for (auto* of_replica : {&experts_, &ranks_, &slots_, &copies_}) {
      of_replica->reserve(expert_of_slot_.size());  // as many as any later assignment may need
      of_replica->assign(H, 0);
    }
    end_.assign(offsets_.begin(), offsets_.end() - 1);
    visit_slots([&](std::size_t e, index_type rank, index_type slot, bool is_first) {
      if (is_first) {
        const auto h = static_cast<std::size_t>(end_[e]++);
        experts_[h] = static_cast<index_type>(e);
        ranks_[h] = rank;
        slots_[h] = slot;
      }
      ++copies_[static_cast<std::size_t>(end_[e]) - 1];
    });
  }

  std::int64_t R_ = 0;
  std::int64_t S_ = 0;
  std::int64_t E_ = 0;
  std::vector<index_type> expert_of_slot_;
  std::vector<index_type> offsets_, experts_, ranks_, slots_, copies_;
  std::vector<index_type> last_rank_, end_;  // working storage
};

}  // namespace lrmoe
