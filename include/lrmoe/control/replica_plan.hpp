// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <lrmoe/control/plan.hpp>
#include <lrmoe/control/source_shares.hpp>
#include <lrmoe/placement/placement.hpp>
#include <lrmoe/rebalance/rebalance.hpp>

namespace lrmoe {

/// Kept pairs of one source that move between two segments for their backward.
struct source_move {
  index_type source = 0;
  index_type from = 0;  ///< segment of their forward
  index_type to = 0;    ///< segment of their backward
  index_type count = 0;
};

/// Which replica computes how many pairs of which source, forward and backward. On the host, and the same
/// on every rank.
///
/// A *segment* is a replica in the order of messages: by rank, on a rank by slot. A source's rows lie in the
/// order of segments, so that what goes to one rank is contiguous; a selection draws within the rows of
/// one segment. With one holder of each expert and homes in ascending order, segments are experts.
struct replica_plan {
  std::int64_t R = 0;
  std::int64_t H = 0;                     ///< segments
  std::vector<index_type> first_of_rank;  ///< (R+1)  segments of rank r
  std::vector<index_type> expert;         ///< (H)
  std::vector<index_type> rank;           ///< (H)
  std::vector<index_type> slot;           ///< (H)    ascending on a rank
  std::vector<index_type> counts;  ///< (R, H) x[s][h], pairs of source s that segment h computes
  std::vector<index_type> quotas;  ///< (R, H) of those, pairs kept
  std::vector<source_move> moves;  ///< by source, from, to; in backward these leave their segment
  bool by_expert = true;           ///< segments are experts, in their order

  index_type count(std::int64_t source, std::int64_t h) const {
    return counts[static_cast<std::size_t>(source * H + h)];
  }
  index_type quota(std::int64_t source, std::int64_t h) const {
    return quotas[static_cast<std::size_t>(source * H + h)];
  }
};

/// Makes replica plans. Keeps its storage from call to call.
class replica_planner {
 public:
  /// Spread a plan's quotas over replicas and sources, and decide which kept pairs move.
  ///   quotas over replicas   q[e] in proportion to the pairs each replica computes, largest remainder
  ///   quotas over sources    the same within each replica
  ///   moves                  those of the rebalancer; of the sources that can give a pair, the receiving rank
  ///                          itself goes first, then the lowest
  /// Shapes    split (R, H), replicas as the placement counts them
  /// Ensures   stays valid until the next call
  /// Throws    argument_error when the placement does not fit the plan, or the split does not sum to its counts
  /// Cost      O(R H) and the rebalancer's; moves (with `rebalance` false there are none)
  const replica_plan& make(const plan& made, const placement& placed,
                           std::span<const index_type> split, bool rebalance) {
    check(made, placed, split);
    number_segments(placed);
    const auto R = static_cast<std::size_t>(plan_.R), H = static_cast<std::size_t>(plan_.H);
    plan_.counts.resize(R * H);
    for (std::size_t s = 0; s < R; ++s) {
      for (std::size_t i = 0; i < H; ++i)
        plan_.counts[s * H + i] = split[s * H + static_cast<std::size_t>(replica_[i])];
    }
    plan_.moves.clear();
    if (plan_.by_expert) {
      plan_.quotas = made.source_quotas;
      return plan_;
    }
    spread_quotas(made, placed);
    if (rebalance) decide_moves(placed);
    return plan_;
  }

  const replica_plan& last() const { return plan_; }

 private:
  static void check(const plan& made, const placement& placed, std::span<const index_type> split) {
    require(placed.R() == made.R && placed.E() == made.E,
            "replica_plan: a placement of R = ", placed.R(), " and E = ", placed.E(),
            " for a plan of R = ", made.R, " and E = ", made.E);
    const auto H = static_cast<std::size_t>(placed.replicas());
    require(split.size() == static_cast<std::size_t>(made.R) * H, "replica_plan: ", split.size(),
            " numbers split ", made.R, " sources over ", H, " replicas: pass (R, H)");
    for (std::int64_t s = 0; s < made.R; ++s) {
      for (std::int64_t e = 0; e < made.E; ++e) {
        std::int64_t sum = 0;
        index_type least = 0;
        for (auto h = placed.offsets()[static_cast<std::size_t>(e)];
             h < placed.offsets()[static_cast<std::size_t>(e) + 1]; ++h) {
          const index_type part =
              split[static_cast<std::size_t>(s) * H + static_cast<std::size_t>(h)];
          sum += part;
          least = std::min(least, part);
        }
        const index_type n = made.source_counts[static_cast<std::size_t>(s * made.E + e)];
        require(sum == n && least >= 0, "replica_plan: the split gives replicas of expert ", e, " ",
                sum, " pairs of source ", s, ", which has ", n,
                ": a split must sum to the counts, without negative parts");
      }
    }
  }

  void number_segments(const placement& placed) {
    const auto H = static_cast<std::size_t>(placed.replicas());
    plan_.R = placed.R();
    plan_.H = placed.replicas();
    replica_.resize(H);
    std::iota(replica_.begin(), replica_.end(), 0);
    const auto at = [](std::span<const index_type> values, index_type i) {
      return values[static_cast<std::size_t>(i)];
    };
    std::sort(replica_.begin(), replica_.end(), [&](index_type left, index_type right) {
      return std::pair(at(placed.ranks(), left), at(placed.slots(), left)) <
             std::pair(at(placed.ranks(), right), at(placed.slots(), right));
    });
    plan_.expert.resize(H);
    plan_.rank.resize(H);
    plan_.slot.resize(H);
    segment_.resize(H);
    plan_.first_of_rank.assign(static_cast<std::size_t>(plan_.R) + 1, 0);
    plan_.by_expert = placed.replicas() == placed.E();
    for (std::size_t i = 0; i < H; ++i) {
      const index_type h = replica_[i];
      segment_[static_cast<std::size_t>(h)] = static_cast<index_type>(i);
      plan_.expert[i] = at(placed.experts(), h);
      plan_.rank[i] = at(placed.ranks(), h);
      plan_.slot[i] = at(placed.slots(), h);
      plan_.by_expert = plan_.by_expert && h == static_cast<index_type>(i);
      ++plan_.first_of_rank[static_cast<std::size_t>(plan_.rank[i]) + 1];
    }
    std::partial_sum(plan_.first_of_rank.begin(), plan_.first_of_rank.end(),
                     plan_.first_of_rank.begin());
  }

  void spread_quotas(const plan& made, const placement& placed) {
    const auto R = static_cast<std::size_t>(plan_.R), H = static_cast<std::size_t>(plan_.H);
    segment_counts_.assign(H, 0);
    for (std::size_t s = 0; s < R; ++s) {
      for (std::size_t i = 0; i < H; ++i) segment_counts_[i] += plan_.counts[s * H + i];
    }
    segment_quotas_.assign(H, 0);
    for (std::int64_t e = 0; e < made.E; ++e) {
      const auto first = placed.offsets()[static_cast<std::size_t>(e)];
      const auto last = placed.offsets()[static_cast<std::size_t>(e) + 1];
      of_expert_.clear();
      for (auto h = first; h < last; ++h)
        of_expert_.push_back(
            segment_counts_[static_cast<std::size_t>(segment_[static_cast<std::size_t>(h)])]);
      shares_.resize(of_expert_.size());
      const index_type quota = made.quotas[static_cast<std::size_t>(e)];
      split_by_source(static_cast<std::int64_t>(of_expert_.size()), 1, of_expert_, {&quota, 1},
                      shares_);
      for (auto h = first; h < last; ++h) {
        segment_quotas_[static_cast<std::size_t>(segment_[static_cast<std::size_t>(h)])] =
            shares_[static_cast<std::size_t>(h - first)];
      }
    }
    plan_.quotas.resize(R * H);
    split_by_source(plan_.R, plan_.H, plan_.counts, segment_quotas_, plan_.quotas);
  }

  void decide_moves(const placement& placed) {
    const auto H = static_cast<std::size_t>(plan_.H);
    kept_.resize(H);
    for (std::size_t h = 0; h < H; ++h)
      kept_[h] = segment_quotas_[static_cast<std::size_t>(segment_[h])];
    const rebalanced& balanced = rebalancer_.balance(placed, kept_);
    left_.assign(plan_.quotas.begin(), plan_.quotas.end());
    for (const pair_move& move : balanced.moves) {
      const index_type from = segment_[static_cast<std::size_t>(move.from)];
      const index_type to = segment_[static_cast<std::size_t>(move.to)];
      const index_type nearest = plan_.rank[static_cast<std::size_t>(to)];
      index_type open = move.count;
      const auto take = [&](index_type source) {
        index_type& available =
            left_[static_cast<std::size_t>(source) * H + static_cast<std::size_t>(from)];
        const index_type taken = std::min(open, available);
        if (taken == 0) return;
        available -= taken;
        open -= taken;
        plan_.moves.push_back({source, from, to, taken});
      };
      take(nearest);
      for (index_type s = 0; s < plan_.R && open > 0; ++s) take(s);
    }
    std::sort(plan_.moves.begin(), plan_.moves.end(),
              [](const source_move& a, const source_move& b) {
                return std::tuple(a.source, a.from, a.to) < std::tuple(b.source, b.from, b.to);
              });
  }

  replica_plan plan_;
  rebalancer rebalancer_;
  std::vector<index_type> replica_;  // (H) of a segment
  std::vector<index_type> segment_;  // (H) of a replica
  std::vector<index_type> segment_counts_, segment_quotas_, of_expert_, shares_, kept_, left_;
};

}  // namespace lrmoe
