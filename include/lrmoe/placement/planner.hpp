// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include <lrmoe/control/cost_model.hpp>
#include <lrmoe/placement/load_history.hpp>
#include <lrmoe/placement/placement.hpp>

namespace lrmoe {

/// What pairs and copies cost.
struct placement_costs {
  double pair_s = 0;                 ///< forward and backward of one pair on the rank that runs it
  std::int64_t row_bytes = 0;        ///< one pair, one way; it crosses a link four times
  std::int64_t weight_bytes = 0;     ///< of one expert, as a replica needs it
  std::int64_t gradient_bytes = 0;   ///< of one expert, as a replica accumulates it
  std::int64_t optimizer_bytes = 0;  ///< of one expert: main weights and moments
  std::int64_t pair_memory_bytes = 0;  ///< what a pair occupies on the rank that runs it
};

/// What a planner may look at; equal on every rank.
struct placement_request {
  std::uint64_t step = 0;  ///< calls of this layer before
  std::int64_t R = 1;      ///< ranks
  std::int64_t S = 1;      ///< slots of each rank
  std::int64_t E = 1;      ///< experts
  /// (R, E) n[s][e] of this call. For planners on exact counts only.
  std::span<const index_type> source_counts{};
  const load_history* history = nullptr;  ///< of earlier calls, or null
  std::span<const index_type> home{};     ///< (E) rank that owns each expert, see home_ranks
  const placement* current = nullptr;     ///< of the last call, or null
  /// (R) bytes for replicas' weights and gradients and for pairs; empty: as many as there are slots for.
  std::span<const std::int64_t> available_bytes{};
  placement_costs costs{};
  machine_rates machine{};  ///< links, and ranks_per_node

  std::int64_t node_of(std::int64_t rank) const { return rank / machine.ranks_per_node; }
  std::int64_t nodes() const { return (R + machine.ranks_per_node - 1) / machine.ranks_per_node; }

  /// Throws    argument_error naming what does not fit: extents, R S < E, counts below 0 or of an expert
  ///           2^31 and more in sum, homes outside [0, R), another model's history, costs below 0
  /// Cost      O(R E), reads every count once
  void validate() const;
};

/// Where the optimizer state of an expert lives.
enum class optimizer_place {
  with_expert,  ///< with every copy: a copy that moves takes it along
  at_home,      ///< on the rank that owns the expert: copies come and go without it
  sharded,      ///< one R-th of every expert on every rank: nothing moves with a copy
};

/// How the gradients of several copies become one.
enum class gradient_reduction {
  all_reduce,    ///< among the ranks that hold a copy
  to_home,       ///< added up on the rank that owns the expert
  shard_owners,  ///< every rank adds up its R-th part of every expert
};

/// How weights reach copies from the home rank, or gradients come back.
enum class copy_route {
  direct,     ///< home sends to each
  two_stage,  ///< from 4 copies on: to about the root of their number, which pass them on
  by_node,    ///< to one of each node, which passes on to the others there
  chain,      ///< each passes on to the next, as in a pipelined broadcast
};

/// What a trainer has to know about a planner.
struct planner_attributes {
  std::string_view name;    ///< as results and flags call it
  bool exact = false;       ///< plans on the counts of this call; others on earlier calls alone
  std::int64_t window = 0;  ///< earlier calls whose counts it wants
  optimizer_place optimizer = optimizer_place::at_home;
  gradient_reduction reduction = gradient_reduction::to_home;
  std::int64_t weight_sends =
      1;  ///< times a call that weights go to copies: 2 when backward needs them anew
  copy_route weights = copy_route::direct;
  copy_route gradients = copy_route::direct;
};

/// What a planner decides. Keeps its storage from call to call.
struct placement_plan {
  placement replicas{};
  /// (H) pairs that each replica runs, all sources together; empty when the split alone decides.
  std::vector<index_type> loads{};
};

/// A planner decides, before any expert runs, which ranks hold which experts in this call, and which
/// rank runs which pairs. A small copyable struct of settings; what it remembers is in the request.
///   validate()                   throws argument_error when a setting is out of range
///   attributes()                 see planner_attributes
///   plan(request, plan)          writes the placement, and loads or none; throws argument_error when the
///                                request is damaged or cannot be served
///   split(request, plan, split)  writes x[s][h] (R, H): pairs of source s that replica h runs
/// Runs on the host, once a call, after the counts of all ranks are known.
/// Laws      the same request gives the same plan and split, so no plan is ever sent;
///           sum over replicas h of e of x[s][h] = n[s][e], x >= 0; with loads, sum_s x[s][h] is
///           loads[h], up to one pair a source;
///           a planner that is not exact plans the same whatever source_counts are;
///           where optimizer state is at home, the home rank keeps a copy.
/// validate(request, plan) and validate_split check them (validate_plan.hpp).
template <class Planner>
concept planner = std::copyable<Planner> &&
    requires(const Planner& p, const placement_request& request, placement_plan& to_write,
             const placement_plan& plan, std::span<index_type> split) {
  p.validate();
  { p.attributes() } -> std::same_as<planner_attributes>;
  p.plan(request, to_write);
  p.split(request, plan, split);
};

inline void placement_request::validate() const {
  require(R >= 1 && S >= 1 && E >= 1, "placement_request: R = ", R, " ranks, S = ", S,
          " slots and E = ", E, " experts must be at least 1");
  require(R * S >= E, "placement_request: R S = ", R, " x ", S, " = ", R * S,
          " slots cannot hold E = ", E, " experts: give every rank at least ", (E + R - 1) / R,
          " slots");
  require(source_counts.size() == static_cast<std::size_t>(R * E),
          "placement_request: ", source_counts.size(), " counts given for R = ", R, " and E = ", E,
          ": pass (R, E)");
  require(home.size() == static_cast<std::size_t>(E), "placement_request: ", home.size(),
          " home ranks given for E = ", E, " experts: pass one of each, home_ranks(R, E) say");
  for (const index_type rank : home)
    require(rank >= 0 && rank < R, "placement_request: home rank ", rank, " is outside [0, R = ", R,
            ")");
  index_type least = 0, most = 0;
  for (const index_type n : source_counts) {
    least = std::min(least, n);
    most = std::max(most, n);
  }
  require(least >= 0, "placement_request: a count is ", least, ": counts cannot be negative");
  constexpr std::int64_t limit = std::numeric_limits<index_type>::max();
  if (most * R > limit) {
    for (std::int64_t e = 0; e < E; ++e) {
      std::int64_t L = 0;
      for (std::int64_t s = 0; s < R; ++s) L += source_counts[static_cast<std::size_t>(s * E + e)];
      require(L <= limit, "placement_request: expert ", e, " has ", L, " pairs, more than ", limit,
              ": use fewer tokens a call");
    }
  }
  require(history == nullptr || history->size() == 0 || (history->R() == R && history->E() == E),
          "placement_request: the history is of another R or E than R = ", R, " and E = ", E,
          ": clear it");
  require(current == nullptr || (current->R() == R && current->E() == E),
          "placement_request: the current placement is of another R or E than R = ", R,
          " and E = ", E, ": pass null for none");
  require(available_bytes.empty() || available_bytes.size() == static_cast<std::size_t>(R),
          "placement_request: ", available_bytes.size(), " byte budgets given for R = ", R,
          " ranks: pass one of each, or none");
  require(costs.pair_s >= 0 && costs.row_bytes >= 0 && costs.weight_bytes >= 0 &&
              costs.gradient_bytes >= 0 && costs.optimizer_bytes >= 0 &&
              costs.pair_memory_bytes >= 0,
          "placement_request: costs must not be negative");
  machine.validate();
}

}  // namespace lrmoe
