// Random placements and kept pairs, and a plain enumeration of all splits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include <lrmoe/rebalance/rebalance.hpp>

#include "fixture.hpp"

namespace rebalance_cases {

using lrmoe::index_type;
using numbers = std::vector<index_type>;

struct problem {
  lrmoe::placement where;
  numbers kept;   // (H)
  numbers fixed;  // (R) or empty
};

/// Every expert on one random rank, and the slots that are left with random experts, or none.
inline lrmoe::placement random_placement(fixture::random& draw, std::int64_t R, std::int64_t S,
                                         std::int64_t E, double filled = 0.9) {
  numbers slots(static_cast<std::size_t>(R * S), lrmoe::no_expert);
  std::vector<std::size_t> order(slots.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1],
              order[static_cast<std::size_t>(draw.integer(0, static_cast<std::int64_t>(i) - 1))]);
  }
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto e = static_cast<std::int64_t>(i);
    if (e < E) {
      slots[order[i]] = static_cast<index_type>(e);
    } else if (draw.uniform(0, 1) < filled) {
      slots[order[i]] = static_cast<index_type>(draw.integer(0, E - 1));
    }
  }
  return {R, S, E, slots};
}

/// The fewest replicas that cover the experts, and then copies of the experts with most pairs for each
/// replica, each on the rank with the fewest pairs that has a slot left and not this expert.
inline lrmoe::placement hottest_replicated(std::int64_t R, std::int64_t S, const numbers& pairs) {
  const std::size_t E = pairs.size();
  const auto ranks = static_cast<std::size_t>(R);
  std::vector<double> copies(E, 1);
  for (std::size_t extra = E; extra < ranks * static_cast<std::size_t>(S); ++extra) {
    std::size_t best = E;
    for (std::size_t e = 0; e < E; ++e) {
      if (copies[e] < static_cast<double>(R) &&
          (best == E || pairs[e] / copies[e] > pairs[best] / copies[best])) {
        best = e;
      }
    }
    if (best == E) break;
    ++copies[best];
  }
  std::vector<std::size_t> order;
  for (std::size_t e = 0; e < E; ++e)
    order.insert(order.end(), static_cast<std::size_t>(copies[e]), e);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return pairs[a] / copies[a] > pairs[b] / copies[b];
  });
  std::vector<numbers> held(ranks);
  std::vector<double> load(ranks, 0);
  for (const std::size_t e : order) {
    std::size_t best = ranks;
    for (std::size_t r = 0; r < ranks; ++r) {
      if (held[r].size() == static_cast<std::size_t>(S)) continue;
      const bool has = std::count(held[r].begin(), held[r].end(), static_cast<index_type>(e)) > 0;
      const double at = load[r] + (has ? 1e18 : 0);
      if (best == ranks || at < load[best]) best = r;
    }
    held[best].push_back(static_cast<index_type>(e));
    load[best] += pairs[e] / copies[e];
  }
  numbers slots;
  for (auto& rank : held) {
    rank.resize(static_cast<std::size_t>(S), lrmoe::no_expert);
    slots.insert(slots.end(), rank.begin(), rank.end());
  }
  return {R, S, static_cast<std::int64_t>(E), slots};
}

inline std::vector<std::int64_t> loads(const problem& of, const numbers& pairs) {
  std::vector<std::int64_t> result(of.fixed.begin(), of.fixed.end());
  result.resize(static_cast<std::size_t>(of.where.R()), 0);
  for (std::size_t h = 0; h < pairs.size(); ++h) {
    result[static_cast<std::size_t>(of.where.ranks()[h])] += pairs[h];
  }
  return result;
}

inline std::int64_t peak(const problem& of, const numbers& pairs) {
  const auto all = loads(of, pairs);
  return *std::max_element(all.begin(), all.end());
}

inline std::int64_t moved(const problem& of, const numbers& pairs) {
  std::int64_t sum = 0;
  for (std::size_t h = 0; h < pairs.size(); ++h) sum += std::max(0, pairs[h] - of.kept[h]);
  return sum;
}

/// (peak, pairs moved) of the best of all splits.
inline std::pair<std::int64_t, std::int64_t> enumerate(const problem& of) {
  std::pair<std::int64_t, std::int64_t> best{std::numeric_limits<std::int64_t>::max(), 0};
  numbers split(of.kept.size(), 0);
  const std::function<void(std::size_t, index_type)> place = [&](std::size_t h, index_type left) {
    if (h == split.size()) {
      best = std::min(best, {peak(of, split), moved(of, split)});
      return;
    }
    const auto e = static_cast<std::size_t>(of.where.experts()[h]);
    const auto first = static_cast<std::size_t>(of.where.offsets()[e]);
    const auto end = static_cast<std::size_t>(of.where.offsets()[e + 1]);
    if (h == first) {
      left = std::accumulate(of.kept.begin() + static_cast<std::ptrdiff_t>(first),
                             of.kept.begin() + static_cast<std::ptrdiff_t>(end), index_type{0});
    }
    for (index_type here = h + 1 == end ? left : 0; here <= left; ++here) {
      split[h] = here;
      place(h + 1, left - here);
    }
  };
  place(0, 0);
  return best;
}

/// Whether a result is a split of the kept pairs, reached by its moves, with the numbers it states.
inline bool consistent(const problem& of, const lrmoe::rebalanced& result) {
  if (result.pairs.size() != of.kept.size()) return false;
  std::vector<std::int64_t> pairs(of.kept.begin(), of.kept.end());
  std::int64_t sum = 0;
  std::pair<index_type, index_type> before{-1, -1};
  for (const auto& move : result.moves) {
    const auto from = static_cast<std::size_t>(move.from), to = static_cast<std::size_t>(move.to);
    if (move.count < 1 || from >= pairs.size() || to >= pairs.size() || from == to) return false;
    if (of.where.experts()[from] != of.where.experts()[to]) return false;
    if (before >= std::pair{move.from, move.to}) return false;
    before = {move.from, move.to};
    pairs[from] -= move.count;
    pairs[to] += move.count;
    sum += move.count;
  }
  for (std::size_t h = 0; h < pairs.size(); ++h) {
    if (pairs[h] != result.pairs[h] || pairs[h] < 0) return false;
  }
  return result.peak == peak(of, result.pairs) && result.pairs_moved == sum &&
         sum == moved(of, result.pairs);
}

}  // namespace rebalance_cases
