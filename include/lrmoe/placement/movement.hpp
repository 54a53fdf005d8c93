// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include <lrmoe/placement/planner.hpp>

namespace lrmoe {

/// What a transfer carries.
enum class moved_state { weights, gradients, optimizer };

/// Bytes of one expert that one rank sends to another.
struct state_transfer {
  moved_state what = moved_state::weights;
  index_type expert = 0;
  index_type from = 0;
  index_type to = 0;
  std::int64_t bytes = 0;
};

/// Bytes of part i of n nearly equal parts; they add up to all bytes.
inline std::int64_t part_bytes(std::int64_t bytes, std::int64_t n, std::int64_t i) {
  return bytes * (i + 1) / n - bytes * i / n;
}

namespace detail {

/// Calls visit(from, to) along the way from home to the other holders.
///   node_of(rank)
template <class NodeOf, class Visit>
void visit_route(copy_route route, index_type home, std::span<const index_type> holders,
                 const NodeOf& node_of, const Visit& visit) {
  const auto others = static_cast<std::int64_t>(holders.size()) - 1;
  const auto first_stage =
      route == copy_route::two_stage && others >= 4
          ? static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(others))))
          : others;
  std::int64_t i = 0;
  index_type last = home, leader = home;
  const auto at = holders.begin();
  const auto other = [&](std::int64_t number) {  // holders without home
    return at[number] < home ? at[number] : at[number + 1];
  };
  for (const index_type to : holders) {
    if (to == home) continue;
    if (route == copy_route::chain) {
      visit(last, to);
      last = to;
    } else if (route == copy_route::by_node) {
      if (node_of(to) == node_of(home)) {
        visit(home, to);
      } else if (leader != home && node_of(to) == node_of(leader)) {
        visit(leader, to);
      } else {
        visit(home, to);
        leader = to;
      }
    } else {
      visit(i < first_stage ? home : other((i - first_stage) % first_stage), to);
    }
    ++i;
  }
}

}  // namespace detail

/// Calls visit(state_transfer) for everything that a step moves beside rows of pairs, from the current
/// placement to the next one. Transfers from a rank to itself, and of no bytes, are left out.
///   weights     at_home: from home to every other copy, along the planner's route, weight_sends times
///               sharded: to every copy from the R owners of its parts, weight_sends times
///               with_expert: to copies that are new, from a copy in their node, else from any
///   gradients   all_reduce: each holder adds up one part of k and sends it to the others; where the
///               optimizer is sharded its owners then fetch their parts, from holder (rank mod k)
///               to_home: along the route of gradients, backwards; a rank that passes on has added up
///               shard_owners: from every copy to the owner of each part
///   optimizer   with_expert: along with the weights of new copies
/// Without a current placement nothing has to move to get to the next.
/// Cost      O(H) for at_home, O(H R) for sharded, O(sum k^2) for all_reduce
template <class Visit>
void for_each_transfer(const placement_request& request, const planner_attributes& attributes,
                       const placement& next, const Visit& visit) {
  const placement_costs& costs = request.costs;
  const auto emit = [&](moved_state what, std::int64_t e, index_type from, index_type to,
                        std::int64_t bytes) {
    if (from != to && bytes > 0)
      visit(state_transfer{what, static_cast<index_type>(e), from, to, bytes});
  };
  const auto node_of = [&](index_type rank) { return request.node_of(rank); };
  const bool all_reduce = attributes.reduction == gradient_reduction::all_reduce;
  for (std::int64_t e = 0; e < next.E(); ++e) {
    const auto holders = next.holders(e);
    const auto k = static_cast<std::int64_t>(holders.size());
    const index_type home = request.home[static_cast<std::size_t>(e)];
    if (attributes.optimizer == optimizer_place::at_home) {
      detail::visit_route(
          attributes.weights, home, holders, node_of, [&](index_type from, index_type to) {
            emit(moved_state::weights, e, from, to, costs.weight_bytes * attributes.weight_sends);
          });
    } else if (attributes.optimizer == optimizer_place::sharded) {
      for (const index_type to : holders)
        for (index_type from = 0; from < next.R(); ++from)
          emit(moved_state::weights, e, from, to,
               part_bytes(costs.weight_bytes, next.R(), from) * attributes.weight_sends);
    } else if (request.current != nullptr) {
      const auto before = request.current->holders(e);
      for (const index_type to : holders) {
        if (request.current->find(e, to) >= 0) continue;
        index_type from = before[static_cast<std::size_t>(to) % before.size()];
        for (const index_type rank : before)
          if (request.node_of(rank) == request.node_of(to)) from = rank;
        emit(moved_state::weights, e, from, to, costs.weight_bytes);
        emit(moved_state::optimizer, e, from, to, costs.optimizer_bytes);
      }
    }
    if (all_reduce) {
      for (std::int64_t i = 0; i < k; ++i)
        for (std::int64_t j = 0; j < k; ++j)
          emit(moved_state::gradients, e, holders[static_cast<std::size_t>(i)],
               holders[static_cast<std::size_t>(j)],
               part_bytes(costs.gradient_bytes, k, j) + part_bytes(costs.gradient_bytes, k, i));
    } else if (attributes.reduction == gradient_reduction::to_home) {
      detail::visit_route(attributes.gradients, home, holders, node_of,
                          [&](index_type to, index_type from) {
                            emit(moved_state::gradients, e, from, to, costs.gradient_bytes);
                          });
    } else {
      for (const index_type from : holders)
        for (index_type to = 0; to < next.R(); ++to)
          emit(moved_state::gradients, e, from, to, part_bytes(costs.gradient_bytes, next.R(), to));
    }
    if (all_reduce && attributes.optimizer == optimizer_place::sharded) {
      for (index_type to = 0; to < next.R(); ++to)
        if (next.find(e, to) < 0)
          emit(moved_state::gradients, e, holders[static_cast<std::size_t>(to % k)], to,
               part_bytes(costs.gradient_bytes, next.R(), to));
    }
  }
}

/// Bytes over a rank's links.
struct link_bytes {
  std::int64_t sent_inside = 0;  ///< to ranks of the same node
  std::int64_t sent_across = 0;
  std::int64_t received_inside = 0;
  std::int64_t received_across = 0;

  std::int64_t sent() const { return sent_inside + sent_across; }
  std::int64_t received() const { return received_inside + received_across; }
};

/// Bytes that every rank sends and receives in one step beside rows of pairs, by what they carry.
class movement {
 public:
  /// Counts the transfers of for_each_transfer, in storage that is kept.
  void count(const placement_request& request, const planner_attributes& attributes,
             const placement& next) {
    R_ = request.R;
    of_.assign(static_cast<std::size_t>(3 * R_), {});
    for_each_transfer(request, attributes, next, [&](const state_transfer& t) {
      link_bytes& from = of_[index(t.what, t.from)];
      link_bytes& to = of_[index(t.what, t.to)];
      const bool inside = request.node_of(t.from) == request.node_of(t.to);
      (inside ? from.sent_inside : from.sent_across) += t.bytes;
      (inside ? to.received_inside : to.received_across) += t.bytes;
    });
  }

  const link_bytes& of(moved_state what, std::int64_t rank) const { return of_[index(what, rank)]; }
  /// Bytes sent by all ranks.
  std::int64_t total(moved_state what) const {
    std::int64_t sum = 0;
    for (std::int64_t r = 0; r < R_; ++r) sum += of(what, r).sent();
    return sum;
  }
  std::int64_t total() const {
    return total(moved_state::weights) + total(moved_state::gradients) +
           total(moved_state::optimizer);
  }

 private:
  std::size_t index(moved_state what, std::int64_t rank) const {
    return static_cast<std::size_t>(static_cast<std::int64_t>(what) * R_ + rank);
  }
  std::int64_t R_ = 0;
  std::vector<link_bytes> of_;  // (3, R)
};

}  // namespace lrmoe
