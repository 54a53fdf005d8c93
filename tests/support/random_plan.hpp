// Random placements, counts, splits and quotas of many ranks: anything that a planner and a quota policy may
// decide, with replicas, empty slots, sources without tokens and experts without pairs.
#pragma once

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include <lrmoe/control/plan.hpp>
#include <lrmoe/control/source_shares.hpp>
#include <lrmoe/placement/placement.hpp>

#include "random.hpp"

namespace fixture {

using index_values = std::vector<lrmoe::index_type>;

inline std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

/// Every expert in one slot; of the other slots some hold replicas and some nothing.
inline lrmoe::placement random_placement(random& draw, std::int64_t R, std::int64_t S,
                                         std::int64_t E) {
  index_values slots(at(R * S), lrmoe::no_expert), order(slots.size());
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t i = R * S; i > 1; --i)
    std::swap(order[at(i - 1)], order[at(draw.integer(0, i - 1))]);
  for (std::int64_t i = 0; i < R * S; ++i) {
    lrmoe::index_type& slot = slots[at(order[at(i)])];
    if (i < E)
      slot = static_cast<lrmoe::index_type>(i);
    else if (draw.integer(0, 3) > 0)
      slot = static_cast<lrmoe::index_type>(draw.integer(0, E - 1));
  }
  return lrmoe::placement(R, S, E, std::move(slots));
}

/// n[s][e] (R, E): a third of them, and all of some sources, zero.
inline index_values random_counts(random& draw, std::int64_t R, std::int64_t E, std::int64_t most) {
  index_values counts;
  for (std::int64_t s = 0; s < R; ++s) {
    const bool has_tokens = draw.integer(0, 5) > 0;
    for (std::int64_t e = 0; e < E; ++e) {
      const bool some = has_tokens && draw.integer(0, 2) > 0;
      counts.push_back(static_cast<lrmoe::index_type>(some ? draw.integer(1, most) : 0));
    }
  }
  return counts;
}

/// A plan of these counts with quotas anywhere between none and all.
inline lrmoe::plan random_quotas(random& draw, std::int64_t R, std::int64_t E,
                                 index_values source_counts) {
  lrmoe::plan made;
  made.R = R;
  made.E = E;
  made.counts.assign(at(E), 0);
  for (std::int64_t i = 0; i < R * E; ++i) made.counts[at(i % E)] += source_counts[at(i)];
  for (const lrmoe::index_type L : made.counts)
    made.quotas.push_back(static_cast<lrmoe::index_type>(draw.integer(0, L)));
  made.source_counts = std::move(source_counts);
  made.source_quotas.resize(made.source_counts.size());
  lrmoe::split_by_source(R, E, made.source_counts, made.quotas, made.source_quotas);
  return made;
}

/// Pairs of every source over the replicas of their expert (R, H), each wherever it falls.
inline index_values random_split(random& draw, const lrmoe::placement& placed,
                                 const index_values& source_counts) {
  const std::int64_t H = placed.replicas(), E = placed.E();
  index_values split(at(placed.R() * H), 0);
  for (std::int64_t s = 0; s < placed.R(); ++s) {
    for (std::int64_t e = 0; e < E; ++e) {
      const std::int64_t first = placed.offsets()[at(e)], last = placed.offsets()[at(e + 1)];
      for (auto n = source_counts[at(s * E + e)]; n > 0; --n)
        ++split[at(s * H + draw.integer(first, last - 1))];
    }
  }
  return split;
}

/// Everything that decides which rank computes what.
struct plan_case {
  lrmoe::placement placed;
  lrmoe::plan made;
  index_values split;  // (R, H)
};

inline plan_case random_plan(random& draw, lrmoe::placement placed) {
  auto made =
      random_quotas(draw, placed.R(), placed.E(), random_counts(draw, placed.R(), placed.E(), 12));
  auto split = random_split(draw, placed, made.source_counts);
  return {std::move(placed), std::move(made), std::move(split)};
}

/// Extents by chance too.
inline plan_case random_plan(random& draw) {
  const std::int64_t R = draw.integer(1, 8), E = draw.integer(1, 10);
  return random_plan(draw, random_placement(draw, R, (E + R - 1) / R + draw.integer(0, 3), E));
}

}  // namespace fixture
