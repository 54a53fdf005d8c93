// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <lrmoe/placement/placement.hpp>

namespace lrmoe {

/// What no split of kept pairs over holders can go below, with the reasons. Each bound follows from
/// its reason alone (peak_bound(), moves_bound()), however the reason was found. A split that meets
/// both bounds is optimal.
struct rebalance_certificate {
  std::vector<index_type>
      ranks;                    ///< ranks that must share some experts among themselves, ascending
  std::int64_t peak_bound = 0;  ///< no split has a lower peak
  std::vector<index_type> prices;  ///< (R)  of room for one pair, in moves
  std::int64_t moves_bound = 0;    ///< no split with the peak of the given one moves fewer pairs
};

/// Pairs of experts that only these ranks hold must be computed there:
///   peak >= ceil((sum of their pairs + fixed of the ranks) / number of ranks)
/// Shapes    kept (H), fixed (R) or empty, ranks distinct and not none
inline std::int64_t peak_bound(const placement& where, std::span<const index_type> kept,
                               std::span<const index_type> fixed,
                               std::span<const index_type> ranks) {
  std::vector<bool> inside(static_cast<std::size_t>(where.R()), false);
  std::int64_t load = 0;
  for (const index_type r : ranks) {
    inside[static_cast<std::size_t>(r)] = true;
    if (!fixed.empty()) load += fixed[static_cast<std::size_t>(r)];
  }
  for (std::int64_t e = 0; e < where.E(); ++e) {
    const auto holders = where.holders(e);
    if (!std::all_of(holders.begin(), holders.end(),
                     [&](index_type r) { return inside[static_cast<std::size_t>(r)]; })) {
      continue;
    }
    const auto first = static_cast<std::size_t>(where.offsets()[static_cast<std::size_t>(e)]);
    for (const index_type pairs : kept.subspan(first, holders.size())) load += pairs;
  }
  const auto count = static_cast<std::int64_t>(ranks.size());
  return (load + count - 1) / count;
}

/// Let room on rank r cost y[r] >= 0 for each pair, and a move cost 1. A pair on rank r then pays at
/// least min(y[r], 1 + m), m being the lowest price of its expert's holders; and all pairs together
/// pay, beside the moves, at most for all the room there is:
///   moves >= sum_h k[h] min(y[r(h)], 1 + m(e(h))) - sum_r y[r] (peak - fixed[r])
/// This is the dual of the linear program, so the best prices make the bound exact.
/// Shapes    kept (H), fixed (R) or empty, prices (R), none below 0
inline std::int64_t moves_bound(const placement& where, std::span<const index_type> kept,
                                std::span<const index_type> fixed, std::int64_t peak,
                                std::span<const index_type> prices) {
  const auto price = [&](index_type r) {
    return std::int64_t{prices[static_cast<std::size_t>(r)]};
  };
  std::int64_t bound = 0;
  for (std::int64_t e = 0; e < where.E(); ++e) {
    std::int64_t lowest = price(where.holders(e).front());
    for (const index_type r : where.holders(e)) lowest = std::min(lowest, price(r));
    auto h = static_cast<std::size_t>(where.offsets()[static_cast<std::size_t>(e)]);
    for (const index_type r : where.holders(e)) {
      bound += kept[h++] * std::min(price(r), 1 + lowest);
    }
  }
  for (std::size_t r = 0; r < prices.size(); ++r) {
    bound -= prices[r] * (peak - (fixed.empty() ? 0 : fixed[r]));
  }
  return bound;
}

namespace detail {

/// Finds reasons for bounds from a split of which nothing is known but its pairs.
class rebalance_witnesses {
 public:
  rebalance_witnesses(const placement& where, std::span<const index_type> kept,
                      std::span<const index_type> fixed, std::span<const index_type> pairs)
      : where_(where),
        kept_(kept),
        pairs_(pairs.begin(), pairs.end()),
        load_(static_cast<std::size_t>(where.R()), 0) {
    std::copy(fixed.begin(), fixed.end(), load_.begin());
    for (std::size_t h = 0; h < pairs.size(); ++h) load_[rank(h)] += pairs[h];
    peak_ = *std::max_element(load_.begin(), load_.end());
  }

  std::int64_t peak() const { return peak_; }

  /// One price of every rank: what it costs in moves to bring a pair from there to where room is left.
  /// Bellman and Ford's method: prices fall until every way over one expert is paid for. If they do
  /// not settle, a cycle saves moves, and the bound stays below the split's moves.
  std::vector<index_type> prices() const {
    const auto R = static_cast<std::size_t>(where_.R());
    // More than any way costs, for ranks from which none leads to room.
    std::vector<index_type> price(R, static_cast<index_type>(2 * R + 1));
    for (std::size_t r = 0; r < R; ++r) {
      if (load_[r] < peak_) price[r] = 0;
    }
    bool changed = true;
    for (std::size_t round = 0; changed && round <= 2 * R; ++round) {
      changed = false;
      for (std::int64_t e = 0; e < where_.E(); ++e) changed = relax(e, price) || changed;
    }
    for (index_type& p : price) p = std::max(p, 0);
    return price;
  }

  /// Try to lower the peak by one, one pair at a time. If that fails: the ranks that the pairs of the
  /// rank in the way could go to. Else all ranks.
  std::vector<index_type> full_ranks() {
    const auto R = static_cast<std::size_t>(where_.R());
    for (std::size_t r = 0; r < R; ++r) {
      while (load_[r] >= peak_) {
        if (!lower(r)) return reached();
      }
    }
    std::vector<index_type> all(R);
    for (std::size_t r = 0; r < R; ++r) all[r] = static_cast<index_type>(r);
    return all;
  }

 private:
  std::size_t rank(std::size_t h) const { return static_cast<std::size_t>(where_.ranks()[h]); }
  std::size_t first(std::int64_t e) const {
    return static_cast<std::size_t>(where_.offsets()[static_cast<std::size_t>(e)]);
  }

  bool relax(std::int64_t e, std::vector<index_type>& price) const {
    const std::size_t begin = first(e), end = first(e + 1);
    bool changed = false;
    for (std::size_t to = begin; to < end; ++to) {
      const index_type arrival = price[rank(to)] + (pairs_[to] < kept_[to] ? 0 : 1);
      for (std::size_t from = begin; from < end; ++from) {
        if (from == to || pairs_[from] == 0) continue;
        const index_type cost = arrival - (pairs_[from] > kept_[from] ? 1 : 0);
        if (cost >= price[rank(from)]) continue;
        price[rank(from)] = cost;
        changed = true;
      }
    }
    return changed;
  }

  /// Bring one pair from this rank to one with at least two pairs less than the peak, over others.
  bool lower(std::size_t start) {
    const std::size_t none = pairs_.size();
    left_.assign(load_.size(), none);     // replica over which a rank was come to from
    entered_.assign(load_.size(), none);  // and over which it was come to
    seen_.assign(load_.size(), false);
    seen_[start] = true;
    std::vector<std::size_t> open{start};
    while (!open.empty()) {
      const std::size_t r = open.back();
      open.pop_back();
      if (load_[r] <= peak_ - 2) return carry(start, r);
      for (std::int64_t e = 0; e < where_.E(); ++e) {
        const index_type from = where_.find(e, static_cast<index_type>(r));
        if (from < 0 || pairs_[static_cast<std::size_t>(from)] == 0) continue;
        for (std::size_t to = first(e); to < first(e + 1); ++to) {
          if (seen_[rank(to)]) continue;
          seen_[rank(to)] = true;
          left_[rank(to)] = static_cast<std::size_t>(from);
          entered_[rank(to)] = to;
          open.push_back(rank(to));
        }
      }
    }
    return false;
  }

  bool carry(std::size_t start, std::size_t end) {
    ++load_[end];
    --load_[start];
    for (std::size_t r = end; r != start; r = rank(left_[r])) {
      ++pairs_[entered_[r]];
      --pairs_[left_[r]];
    }
    return true;
  }

  std::vector<index_type> reached() const {
    std::vector<index_type> ranks;
    for (std::size_t r = 0; r < seen_.size(); ++r) {
      if (seen_[r]) ranks.push_back(static_cast<index_type>(r));
    }
    return ranks;
  }

  const placement& where_;
  std::span<const index_type> kept_;
  std::vector<index_type> pairs_;   // (H)
  std::vector<std::int64_t> load_;  // (R)
  std::int64_t peak_ = 0;
  std::vector<std::size_t> left_, entered_;  // (R)
  std::vector<bool> seen_;                   // (R)
};

}  // namespace detail

/// Bounds for kept pairs k[h], with reasons found from a split of them; exact when the split is
/// optimal. A check, not for the training loop: it shares nothing with the rebalancer.
/// Shapes    kept, pairs (H); fixed (R) or empty
/// Throws    argument_error for extents that do not fit, negative pairs, and a split whose pairs of an
///           expert do not add up to those kept
/// Cost      O(R^2 (E log R + H)) at worst, and allocates
inline rebalance_certificate certify_rebalance(const placement& where,
                                               std::span<const index_type> kept,
                                               std::span<const index_type> fixed,
                                               std::span<const index_type> pairs) {
  const auto H = static_cast<std::size_t>(where.replicas());
  require(kept.size() == H && pairs.size() == H, "certify_rebalance: ", kept.size(),
          " numbers of kept pairs and ", pairs.size(), " of the split for H = ", H, " replicas");
  require(fixed.empty() || fixed.size() == static_cast<std::size_t>(where.R()),
          "certify_rebalance: fixed loads of ", fixed.size(), " ranks for R = ", where.R());
  std::vector<std::int64_t> missing(static_cast<std::size_t>(where.E()), 0);
  for (std::size_t h = 0; h < H; ++h) {
    require(pairs[h] >= 0, "certify_rebalance: replica ", h, " has ", pairs[h], " pairs");
    missing[static_cast<std::size_t>(where.experts()[h])] += std::int64_t{kept[h]} - pairs[h];
  }
  for (std::size_t e = 0; e < missing.size(); ++e) {
    require(missing[e] == 0, "certify_rebalance: the split lacks ", missing[e],
            " of the kept pairs of expert ", e);
  }
  detail::rebalance_witnesses witnesses(where, kept, fixed, pairs);
  rebalance_certificate result;
  result.prices = witnesses.prices();
  result.ranks = witnesses.full_ranks();
  result.peak_bound = peak_bound(where, kept, fixed, result.ranks);
  result.moves_bound = moves_bound(where, kept, fixed, witnesses.peak(), result.prices);
  return result;
}

}  // namespace lrmoe
