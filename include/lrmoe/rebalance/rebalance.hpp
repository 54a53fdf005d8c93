// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <lrmoe/placement/placement.hpp>
#include <lrmoe/rebalance/replica_flow.hpp>

namespace lrmoe {

/// Kept pairs whose backward runs on another replica of their expert than their forward did.
struct pair_move {
  index_type from = 0;   ///< replica that ran their forward and holds their saved activations
  index_type to = 0;     ///< replica that runs their backward; of the same expert
  index_type count = 0;  ///< at least 1
};

/// Where the backward of kept pairs runs.
struct rebalanced {
  std::vector<index_type> pairs;  ///< (H)  b[h]: pairs whose backward replica h runs
  std::vector<pair_move> moves;   ///< by expert, then from, then to; one of each (from, to)
  std::int64_t peak = 0;          ///< largest fixed[r] + sum of b[h] over replicas h on rank r
  std::int64_t pairs_moved = 0;   ///< sum of moves' counts
};

/// Splits the kept pairs of each expert anew over the ranks that hold it:
///   minimise max_r fixed[r] + sum_{h on r} b[h],  among these  sum_h max(0, b[h] - k[h])
///   subject to sum_{h of e} b[h] = sum_{h of e} k[h],  b[h] >= 0,  b[h] integer
/// Method    A flow of least cost takes pairs from ranks above a lower bound of the peak: the mean, and
///           what ranks must compute because no other one holds the expert. Flows along cheapest paths
///           leave no cycle that saves moves, so if all ranks get down to the bound, both objectives
///           are met. If some stay above, they and all ranks that their pairs could go to have no
///           holder outside: these pairs stay there whatever the split, so the peak is at least these
///           ranks' mean. That is the next peak tried, with maximum flows from where the last one ended
///           (Newton's method for the parametric minimum cut). The first peak that all ranks get down
///           to is a lower bound too; a flow of least cost from the start then gets there with fewest
///           moves. See docs/rebalance.md.
/// Numerics  integers; of equal splits the one that paths through the lowest replicas find. Equal
///           arguments give equal results, so all ranks find the same without a message
/// Cost      O(R + H) when no rank is above the lower bound. Else a search is O(H), and searches are as
///           many as lengths and costs of paths times peaks tried: a few dozen for 64 ranks
/// Source    Dinic 1970 (maximum flow); Ford and Fulkerson 1962 (primal-dual minimum cost flow)
/// One object serves one thread; once sizes were seen, calls allocate nothing.
class rebalancer {
 public:
  /// Shapes    kept (H)  k[h]: kept pairs whose forward ran on replica h;  fixed (R) or empty: load of
  ///           every rank that cannot move
  /// Ensures   the result stays valid until the next call
  /// Throws    argument_error for extents that do not fit, negative numbers, and more than 2^31 - 1
  ///           pairs of an expert. The last result then stays as it was.
  const rebalanced& balance(const placement& where, std::span<const index_type> kept,
                            std::span<const index_type> fixed = {}) {
    check(where, kept, fixed);
    flow_.reset(where, kept, fixed);
    std::int64_t peak = lowest_peak(where, kept, fixed);
    if (!flow_.level_at_least_cost_to(peak)) {
      do {
        peak = flow_.peak_of_closed_ranks(peak);
      } while (!flow_.level_to(peak));
      flow_.restore();
      flow_.level_at_least_cost_to(peak);
    }
    result_.pairs.assign(flow_.pairs().begin(), flow_.pairs().end());
    result_.peak = *std::max_element(flow_.load().begin(), flow_.load().end());
    list_moves(where, kept);
    return result_;
  }

  const rebalanced& last() const { return result_; }

 private:
  static void check(const placement& where, std::span<const index_type> kept,
                    std::span<const index_type> fixed) {
    require(where.R() >= 1, "rebalancer: the placement is empty: pass ranks, slots and experts");
    require(kept.size() == static_cast<std::size_t>(where.replicas()), "rebalancer: kept pairs of ",
            kept.size(), " replicas for a placement with H = ", where.replicas(),
            ": pass one number of each replica");
    require(fixed.empty() || fixed.size() == static_cast<std::size_t>(where.R()),
            "rebalancer: fixed loads of ", fixed.size(), " ranks for R = ", where.R(),
            ": pass one of each, or none");
    for (std::size_t r = 0; r < fixed.size(); ++r) {
      require(fixed[r] >= 0, "rebalancer: rank ", r, " has a fixed load of ", fixed[r],
              ": loads must not be negative");
    }
    std::int64_t sum = 0;
    for (std::size_t h = 0; h < kept.size(); ++h) {
      const auto e = static_cast<std::size_t>(where.experts()[h]);
      if (static_cast<std::size_t>(where.offsets()[e]) == h) sum = 0;
      require(kept[h] >= 0, "rebalancer: replica ", h, " keeps ", kept[h],
              " pairs: numbers of pairs must not be negative");
      sum += kept[h];
      require(sum <= std::numeric_limits<index_type>::max(), "rebalancer: expert ", e, " keeps ",
              sum, " pairs on its first replicas, more than 2^31 - 1: use fewer tokens a call");
    }
  }

  /// No split has a peak below the mean, nor below a rank's fixed load and experts of its own.
  std::int64_t lowest_peak(const placement& where, std::span<const index_type> kept,
                           std::span<const index_type> fixed) {
    own_.assign(static_cast<std::size_t>(where.R()), 0);
    std::copy(fixed.begin(), fixed.end(), own_.begin());
    std::int64_t total = 0;
    for (const index_type load : fixed) total += load;
    for (std::size_t h = 0; h < kept.size(); ++h) {
      total += kept[h];
      const auto e = static_cast<std::size_t>(where.experts()[h]);
      if (where.offsets()[e + 1] - where.offsets()[e] > 1) continue;
      own_[static_cast<std::size_t>(where.ranks()[h])] += kept[h];
    }
    const std::int64_t mean = (total + where.R() - 1) / where.R();
    return std::max(mean, *std::max_element(own_.begin(), own_.end()));
  }

  void list_moves(const placement& where, std::span<const index_type> kept) {
    result_.moves.clear();
    result_.moves.reserve(kept.size());
    result_.pairs_moved = 0;
    for (std::size_t e = 0; e < static_cast<std::size_t>(where.E()); ++e) {
      const index_type end = where.offsets()[e + 1];
      index_type from = where.offsets()[e], to = from;
      // Pairs that a replica has yet to lose or, below zero, to gain.
      const auto surplus = [&](index_type h) {
        const auto i = static_cast<std::size_t>(h);
        return kept[i] - result_.pairs[i];
      };
      index_type lost = 0, gained = 0;
      while (true) {
        while (from < end && surplus(from) - lost <= 0) ++from, lost = 0;
        if (from == end) break;
        while (-surplus(to) - gained <= 0) ++to, gained = 0;
        const index_type count = std::min(surplus(from) - lost, -surplus(to) - gained);
        result_.moves.push_back({from, to, count});
        result_.pairs_moved += count;
        lost += count;
        gained += count;
      }
    }
  }

  detail::replica_flow flow_;
  std::vector<std::int64_t> own_;  // (R)
  rebalanced result_;
};

}  // namespace lrmoe
