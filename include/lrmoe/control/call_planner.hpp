// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include <lrmoe/context.hpp>
#include <lrmoe/control/controller.hpp>
#include <lrmoe/control/cost_model.hpp>
#include <lrmoe/control/replica_plan.hpp>
#include <lrmoe/exchange/call_message.hpp>
#include <lrmoe/memory/layer_memory.hpp>
#include <lrmoe/placement/expert_placer.hpp>

namespace lrmoe {

/// Plans the calls of one layer on the host, before any expert runs, the same on every rank: what all ranks
/// say of the call, where experts are, what the call costs each rank, quotas, and who computes what.
template <class Element, backend Backend>
class call_planner {
 public:
  call_planner(context<Backend>& on, const layer_shape& shape) : context_(on), shape_(shape) {}

  /// Tell the other ranks of a call, and hear of theirs.
  /// Shapes    counts (E), pairs of this rank for each expert
  /// Throws    argument_error on every rank when ranks differ in what must be alike; rank_error
  /// Order     collective
  void gather(const call_message& mine, std::span<const index_type> counts) {
    mine_ = mine;
    gather_calls(context_.ranks, mine, counts, calls_, source_counts_);
  }

  /// Plan the call that was gathered.
  /// Ensures   the result and what made() and placer() return stay valid until the next call
  /// Throws    as planner, quota policy, controller and replica_planner
  template <class Policies>
  const replica_plan& make(const Policies& choices) {
    place_experts(choices);
    find_costs(choices);
    const plan& made =
        controller_.make(mine_.step, context_.ranks.size(), shape_.E, source_counts_,
                         {.home = placer_.home(), .ranks = rank_costs_, .pair = pair_cost_},
                         choices.quota, choices.estimator.keeps_all());
    return replicas_.make(made, placer_.where(), placer_.split(), choices.rebalance);
  }

  /// Throws rank_error, on every rank, when policies that differ made plans that differ. Collective.
  void require_same_plan() {
    lrmoe::require_same_plan(context_.ranks, controller_.last(), replicas_.last());
  }

  const plan& made() const { return controller_.last(); }
  const replica_plan& replicas() const { return replicas_.last(); }
  expert_placer& placer() { return placer_; }
  const expert_placer& placer() const { return placer_; }
  score_history& history() { return controller_.history(); }
  const score_history& history() const { return controller_.history(); }
  const rank_cost& own_cost() const {
    return rank_costs_[static_cast<std::size_t>(context_.ranks.rank())];
  }
  const pair_cost& cost_of_pair() const { return pair_cost_; }

 private:
  static constexpr auto element_bytes = static_cast<std::int64_t>(sizeof(Element));
  static constexpr auto real_bytes = static_cast<std::int64_t>(sizeof(accumulate_t<Element>));

  bool alone() const { return context_.ranks.size() == 1; }
  cost_model times() const { return {context_.rates, shape_, element_bytes, real_bytes}; }

  template <class Policies>
  void place_experts(const Policies& choices) {
    if (alone()) {
      placer_.stay(shape_.E, source_counts_);
      return;
    }
    const cost_model of = times();
    const std::int64_t of_expert = 3 * shape_.D * shape_.F;
    constexpr std::int64_t thousand = 1000;
    const double forward_pair_s = (of.forward_s(0, thousand, 0) - of.forward_s(0, 0, 0)) / thousand;
    const std::int64_t copy_bytes = of_expert * (element_bytes + real_bytes);
    find_room(copy_bytes);
    placer_.place(choices.planner,
                  {.step = mine_.step,
                   .R = context_.ranks.size(),
                   .S = mine_.slots,
                   .E = shape_.E,
                   .source_counts = source_counts_,
                   .home = {},
                   .available_bytes = room_,
                   .costs = {.pair_s = forward_pair_s + of.kept_pair_s(),
                             .row_bytes = shape_.D * element_bytes,
                             .weight_bytes = of_expert * element_bytes,
                             .gradient_bytes = of_expert * real_bytes,
                             .optimizer_bytes = 3 * of_expert * real_bytes,
                             .pair_memory_bytes = (2 * shape_.D + 5 * shape_.F) * element_bytes},
                   .machine = context_.rates});
  }

  /// Bytes that each rank has for pairs and for copies of experts; none listed when no rank has a budget.
  /// The slots that take copies are there already, so they are room whatever the budget.
  void find_room(std::int64_t copy_bytes) {
    room_.clear();
    constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();
    if (std::all_of(calls_.begin(), calls_.end(),
                    [](const call_message& call) { return call.available_bytes == unlimited; }))
      return;
    std::vector<std::int64_t> free_slots(calls_.size(), mine_.slots);
    for (const index_type home : home_ranks(context_.ranks.size(), shape_.E))
      --free_slots[static_cast<std::size_t>(home)];
    for (std::size_t r = 0; r < calls_.size(); ++r) {
      const std::int64_t free = calls_[r].available_bytes, slots_bytes = free_slots[r] * copy_bytes;
      room_.push_back(free > unlimited - slots_bytes ? unlimited : free + slots_bytes);
    }
  }

  /// What no quota changes on each rank, and what one kept pair adds.
  template <class Policies>
  void find_costs(const Policies& choices) {
    const cost_model of = times();
    const gradient_scope& scope = choices.scope;
    const bool again = choices.saved != saved_activations::save;
    const double dropped_s =
        scope.router == router_gradient::exact ? of.dropped_pair_s(again) : 0.0;
    pair_cost_ = {.s = of.kept_pair_s(scope.dx_share, scope.dw_share,
                                      choices.saved == saved_activations::recompute) -
                       dropped_s,
                  .remote_s = of.remote_pair_s(context_.rates.inside),
                  .bytes = 0};
    rank_costs_.resize(calls_.size());
    for (std::size_t r = 0; r < calls_.size(); ++r) {
      const auto first = source_counts_.begin() + static_cast<std::ptrdiff_t>(r) * shape_.E;
      const auto last = first + shape_.E;
      const std::int64_t T = calls_[r].T, N = std::accumulate(first, last, std::int64_t{0});
      const std::int64_t here = alone() ? N : placer_.pairs_of_rank()[r];
      const std::int64_t in_use =
          alone() ? shape_.E - std::count(first, last, 0) : placer_.experts_of_rank()[r];
      // All layers of the context share its budget; they are taken to be like this one.
      const auto bytes_at = [&](std::int64_t kept) {
        const exchange_sizes carried{.many = !alone(), .here = here, .kept_here = kept};
        const memory_use use = layer_memory<Element, Backend>(
            context_.space, shape_,
            call_of(choices, T, N, std::min(kept, N), mine_.backward != 0, carried));
        const std::int64_t workspace = use[memory_category::workspace];
        return workspace + context_.layers() * (use.total() - workspace);
      };
      // Bytes are convex in the number kept, from 1 on, so the chord is never too low.
      const std::int64_t bytes_of_pair =
          here <= 1 ? 0 : (bytes_at(here) - bytes_at(1) + here - 2) / (here - 1);
      pair_cost_.bytes = std::max(pair_cost_.bytes, bytes_of_pair);
      rank_costs_[r] = {.fixed_s = of.forward_s(T, here, in_use) +
                                   of.backward_fixed_s(T, N, in_use) +
                                   dropped_s * static_cast<double>(N),
                        .fixed_bytes = bytes_at(std::min<std::int64_t>(here, 1)),
                        .available_bytes = calls_[r].available_bytes};
    }
    for (rank_cost& cost : rank_costs_) cost.fixed_bytes -= pair_cost_.bytes;
  }

  context<Backend>& context_;
  layer_shape shape_;
  controller controller_;
  replica_planner replicas_;
  expert_placer placer_;

  // Of the call that was gathered last.
  call_message mine_;
  std::vector<call_message> calls_;        // (R)
  std::vector<index_type> source_counts_;  // (R, E)
  std::vector<std::int64_t> room_;         // (R), or none
  std::vector<rank_cost> rank_costs_;      // (R)
  pair_cost pair_cost_;
};

}  // namespace lrmoe
