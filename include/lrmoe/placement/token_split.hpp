// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include <lrmoe/placement/placement.hpp>
#include <lrmoe/quota/scratch.hpp>

/// Ways to spread every source's pairs over the replicas of their expert.
///   n = source_counts (R, E), x = split (R, H), replicas as the placement counts them
/// All of them: sum over replicas h of e of x[s][h] = n[s][e] for every source s and expert e; integers only;
/// O(R (E + H)) but for what is said; nothing is allocated while sizes do not grow.
namespace lrmoe {

namespace detail {

/// Counts and split of one expert with several replicas; column by column.
class expert_split {
 public:
  expert_split(const placement& where, std::int64_t e, const index_type* counts, index_type* split)
      : ranks_(where.holders(e)),
        first_(where.offsets()[static_cast<std::size_t>(e)]),
        copies_(where.copies().subspan(static_cast<std::size_t>(first_), ranks_.size())),
        E_(where.E()),
        H_(where.replicas()),
        counts_(counts + e),
        split_(split + first_) {}

  std::size_t size() const { return ranks_.size(); }
  index_type first() const { return first_; }
  index_type rank(std::size_t i) const { return ranks_[i]; }
  index_type copies(std::size_t i) const { return copies_[i]; }
  index_type n(std::int64_t s) const { return counts_[s * E_]; }
  index_type& x(std::int64_t s, std::size_t i) const {
    return split_[s * H_ + static_cast<std::int64_t>(i)];
  }

 private:
  std::span<const index_type> ranks_;
  index_type first_;
  std::span<const index_type> copies_;
  std::int64_t E_, H_;
  const index_type* counts_;
  index_type* split_;
};

/// Experts with one replica take what there is; calls share(expert_split) for the others, whose x are 0.
template <class Share>
void split_experts(const placement& where, std::span<const index_type> source_counts,
                   std::span<index_type> split, const Share& share) {
  const std::int64_t R = where.R(), E = where.E(), H = where.replicas();
  require(source_counts.size() == static_cast<std::size_t>(R * E),
          "token split: ", source_counts.size(), " counts given for R = ", R, " and E = ", E,
          ": pass (R, E)");
  require(split.size() == static_cast<std::size_t>(R * H), "token split: room for ", split.size(),
          " numbers given for R = ", R, " and H = ", H, " replicas: pass (R, H)");
  const index_type* const first = where.offsets().data();
  for (std::int64_t s = 0; s < R; ++s) {
    const index_type* const n = source_counts.data() + s * E;
    index_type* const x = split.data() + s * H;
    for (std::int64_t e = 0; e < E; ++e) {
      const index_type begin = first[e], end = first[e + 1];
      x[begin] = n[e];
      if (end - begin > 1) std::fill(x + begin, x + end, 0);
    }
  }
  for (std::int64_t e = 0; e < E; ++e)
    if (first[e + 1] - first[e] > 1)
      share(expert_split(where, e, source_counts.data(), split.data()));
}

}  // namespace detail

/// Evenly over the slots that hold an expert: in the order of sources, its pairs go round the slots. A
/// replica in c of C slots gets floor(c L / C) pairs or as many more as slots have one more, whatever the
/// sources.
inline void split_evenly(const placement& where, std::span<const index_type> source_counts,
                         std::span<index_type> split) {
  detail::split_experts(where, source_counts, split, [&](const detail::expert_split& expert) {
    index_type C = 0;
    for (std::size_t i = 0; i < expert.size(); ++i) C += expert.copies(i);
    index_type turn = 0;  // slot that gets the next pair
    for (std::int64_t s = 0; s < where.R(); ++s) {
      const index_type n = expert.n(s), each = n / C, extra = n % C;
      index_type slot = 0;
      for (std::size_t i = 0; i < expert.size(); ++i) {
        const index_type end = slot + expert.copies(i);
        const auto overlap = [&](index_type from, index_type to) {
          return std::max(0, std::min(end, to) - std::max(slot, from));
        };
        expert.x(s, i) =
            each * expert.copies(i) + overlap(turn, turn + extra) + overlap(0, turn + extra - C);
        slot = end;
      }
      turn = (turn + extra) % C;
    }
  });
}

/// Evenly over the slots in the source's own node that hold an expert; where there are none, over all slots
/// that do. The first slots take one more each where it does not come out even.
///   ranks_per_node   ranks in a row that form a node
inline void split_in_node(const placement& where, std::int64_t ranks_per_node,
                          std::span<const index_type> source_counts, std::span<index_type> split) {
  detail::split_experts(where, source_counts, split, [&](const detail::expert_split& expert) {
    std::int64_t node = -1;
    std::size_t begin = 0, end = 0;  // replicas in question
    index_type C = 0;                // slots of these
    for (std::int64_t s = 0; s < where.R(); ++s) {
      if (s / ranks_per_node != node) {
        node = s / ranks_per_node;
        for (begin = 0; begin < expert.size() && expert.rank(begin) < node * ranks_per_node;)
          ++begin;
        for (end = begin; end < expert.size() && expert.rank(end) < (node + 1) * ranks_per_node;)
          ++end;
        if (begin == end) begin = 0, end = expert.size();
        C = 0;
        for (std::size_t i = begin; i < end; ++i) C += expert.copies(i);
      }
      const index_type n = expert.n(s), each = n / C;
      index_type extra = n % C;
      for (std::size_t i = begin; i < end; ++i) {
        const index_type more = std::min(extra, expert.copies(i));
        expert.x(s, i) = each * expert.copies(i) + more;
        extra -= more;
      }
    }
  });
}

/// To the source's own rank where it holds the expert, else to the expert's home rank, which must.
///   home (E)
inline void split_own_rank_or_home(const placement& where, std::span<const index_type> home,
                                   std::span<const index_type> source_counts,
                                   std::span<index_type> split) {
  detail::split_experts(where, source_counts, split, [&](const detail::expert_split& expert) {
    const auto e =
        static_cast<std::size_t>(where.experts()[static_cast<std::size_t>(expert.first())]);
    const index_type at_home = where.find(static_cast<std::int64_t>(e), home[e]);
    require(at_home >= 0, "token split: home rank ", home[e], " does not hold expert ", e);
    std::size_t next = 0;
    for (std::int64_t s = 0; s < where.R(); ++s) {
      while (next < expert.size() && expert.rank(next) < s) ++next;
      const bool own = next < expert.size() && expert.rank(next) == s;
      expert.x(s, own ? next : static_cast<std::size_t>(at_home - expert.first())) = expert.n(s);
    }
  });
}

namespace detail {

/// Each holder's own pairs first, up to its load; what loads have left then is in `left`.
/// Throws    argument_error when loads do not add up to the expert's pairs
inline std::span<std::int64_t> split_own_first(const expert_split& expert, std::int64_t R,
                                               std::span<const index_type> loads) {
  struct left_tag {};
  const auto left = scratch<left_tag, std::int64_t>(expert.size());
  std::int64_t pairs = 0, planned = 0;
  for (std::int64_t s = 0; s < R; ++s) pairs += expert.n(s);
  for (std::size_t i = 0; i < expert.size(); ++i) {
    const index_type load = loads[static_cast<std::size_t>(expert.first()) + i];
    const index_type own = std::min(expert.n(expert.rank(i)), load);
    require(load >= 0, "token split: a replica has the load ", load);
    planned += load;
    expert.x(expert.rank(i), i) = own;
    left[i] = load - own;
  }
  require(planned == pairs, "token split: loads of an expert add up to ", planned,
          " pairs, but sources have ", pairs, ": plan again, for the counts of this call");
  return left;
}

inline void require_loads(const placement& where, std::span<const index_type> loads) {
  require(loads.size() == static_cast<std::size_t>(where.replicas()), "token split: ", loads.size(),
          " loads given for H = ", where.replicas(), " replicas: pass one of each");
}

}  // namespace detail

/// By planned loads (H), own rank first: a holder runs its own pairs up to its load; every source's
/// others go to the holders in proportion to what their loads have left, by largest remainder (ties:
/// lowest rank). Sources round by themselves, so a load may be missed by less than a pair a source.
/// Source    UltraEP, arXiv 2606.04101
inline void split_by_loads_in_proportion(const placement& where, std::span<const index_type> loads,
                                         std::span<const index_type> source_counts,
                                         std::span<index_type> split) {
  struct rest_tag {};
  detail::require_loads(where, loads);
  detail::split_experts(where, source_counts, split, [&](const detail::expert_split& expert) {
    const auto left = detail::split_own_first(expert, where.R(), loads);
    const auto rest =
        detail::scratch<rest_tag, std::pair<std::int64_t, std::size_t>>(expert.size());
    std::int64_t total = 0;
    for (const std::int64_t l : left) total += l;
    if (total == 0) return;
    const double reciprocal = 1.0 / static_cast<double>(total);
    std::size_t next = 0;
    for (std::int64_t s = 0; s < where.R(); ++s) {
      while (next < expert.size() && expert.rank(next) < s) ++next;
      const bool holds = next < expert.size() && expert.rank(next) == s;
      const std::int64_t n = expert.n(s) - (holds ? expert.x(s, next) : 0);
      if (n == 0) continue;
      std::int64_t open = n;
      std::size_t candidates = 0;
      for (std::size_t i = 0; i < expert.size(); ++i) {
        if (left[i] == 0) continue;
        // The reciprocal's quotient is off by one at most, which the remainder shows.
        const std::int64_t product = n * left[i];
        auto share = static_cast<std::int64_t>(static_cast<double>(product) * reciprocal);
        std::int64_t remainder = product - share * total;
        while (remainder < 0) --share, remainder += total;
        while (remainder >= total) ++share, remainder -= total;
        expert.x(s, i) = static_cast<index_type>(share);
        open -= share;
        rest[candidates++] = {-remainder, i};
      }
      if (open == 0) continue;
      std::nth_element(rest.begin(), rest.begin() + (open - 1),
                       rest.begin() + static_cast<std::ptrdiff_t>(candidates));
      for (std::size_t k = 0; k < static_cast<std::size_t>(open); ++k)
        ++expert.x(s, rest[k].second);
    }
  });
}

/// By planned loads (H), nearest first, and every load met exactly: a holder runs its own pairs, then
/// those of its node, then others; within a step, lowest sources fill lowest holders.
///   ranks_per_node   ranks in a row that form a node
/// Ensures   sum_s x[s][h] = loads[h]
inline void split_by_loads(const placement& where, std::int64_t ranks_per_node,
                           std::span<const index_type> loads,
                           std::span<const index_type> source_counts, std::span<index_type> split) {
  struct open_tag {};
  detail::require_loads(where, loads);
  const std::int64_t R = where.R();
  const auto open = detail::scratch<open_tag, index_type>(static_cast<std::size_t>(R));
  detail::split_experts(where, source_counts, split, [&](const detail::expert_split& expert) {
    const auto left = detail::split_own_first(expert, R, loads);
    for (std::int64_t s = 0; s < R; ++s) open[static_cast<std::size_t>(s)] = expert.n(s);
    for (std::size_t i = 0; i < expert.size(); ++i)
      open[static_cast<std::size_t>(expert.rank(i))] -= expert.x(expert.rank(i), i);
    // Sources [s, s_end) to holders [i, i_end): each step finishes one of the two.
    const auto fill = [&](std::int64_t s, std::int64_t s_end, std::size_t i, std::size_t i_end) {
      while (s < s_end && i < i_end) {
        index_type& from = open[static_cast<std::size_t>(s)];
        const auto moved = static_cast<index_type>(std::min<std::int64_t>(from, left[i]));
        expert.x(s, i) += moved;
        from -= moved;
        left[i] -= moved;
        if (from == 0)
          ++s;
        else
          ++i;
      }
    };
    for (std::size_t i = 0; i < expert.size();) {
      const std::int64_t node = expert.rank(i) / ranks_per_node;
      std::size_t end = i;
      while (end < expert.size() && expert.rank(end) / ranks_per_node == node) ++end;
      fill(node * ranks_per_node, std::min(R, (node + 1) * ranks_per_node), i, end);
      i = end;
    }
    fill(0, R, 0, expert.size());
  });
}

/// By planned loads (H) in intervals: the pairs of an expert in the order of their sources are cut into pieces,
/// of which home takes the first and the other holders, by rank, the next ones. Every load is met exactly.
///   home (E)
inline void split_in_intervals(const placement& where, std::span<const index_type> home,
                               std::span<const index_type> loads,
                               std::span<const index_type> source_counts,
                               std::span<index_type> split) {
  detail::require_loads(where, loads);
  detail::split_experts(where, source_counts, split, [&](const detail::expert_split& expert) {
    const auto e =
        static_cast<std::size_t>(where.experts()[static_cast<std::size_t>(expert.first())]);
    std::size_t at_home = expert.size();
    std::int64_t pairs = 0, planned = 0;
    for (std::int64_t s = 0; s < where.R(); ++s) pairs += expert.n(s);
    for (std::size_t i = 0; i < expert.size(); ++i) {
      planned += loads[static_cast<std::size_t>(expert.first()) + i];
      if (expert.rank(i) == home[e]) at_home = i;
    }
    require(planned == pairs, "token split: loads of expert ", e, " add up to ", planned,
            " pairs, but sources have ", pairs, ": plan again, for the counts of this call");
    std::int64_t s = 0;
    index_type open = expert.n(0);
    const auto take = [&](std::size_t i) {
      index_type room = loads[static_cast<std::size_t>(expert.first()) + i];
      while (room > 0) {
        const index_type moved = std::min(open, room);
        expert.x(s, i) += moved;
        open -= moved;
        room -= moved;
        if (open == 0 && ++s < where.R()) open = expert.n(s);
      }
    };
    if (at_home < expert.size()) take(at_home);
    for (std::size_t i = 0; i < expert.size(); ++i)
      if (i != at_home) take(i);
  });
}

}  // namespace lrmoe
