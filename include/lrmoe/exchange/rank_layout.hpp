// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include <lrmoe/control/replica_plan.hpp>

namespace lrmoe {

/// Runs of rows that two orders have in common: row to[b] + i of one order is row from[b] + i of the other,
/// for to[b] + i < to[b+1]. A run may be empty.
struct row_blocks {
  std::vector<index_type> to{0};  ///< (n+1), ascending
  std::vector<index_type> from;   ///< (n)
  std::vector<index_type> base;   ///< (n)  see the member of rank_layout

  std::int64_t size() const { return static_cast<std::int64_t>(from.size()); }
  std::int64_t rows() const { return to.back(); }

  void clear() {
    to.assign(1, 0);
    from.clear();
    base.clear();
  }
  void add(std::int64_t first, std::int64_t count, std::int64_t offset = 0) {
    from.push_back(static_cast<index_type>(first));
    base.push_back(static_cast<index_type>(offset));
    to.push_back(to.back() + static_cast<index_type>(count));
  }
};

/// What one rank sends, receives and computes in a call, in rows; from the replica plan alone, so that every
/// size of every message is known on both sides before anything is sent.
///
///   source order   rows as a source holds them: by segment (by rank, by slot), in a segment by pair
///   arrival order  rows as they come in: by source, then as each source sent them
///   expert order   rows as they are computed: by slot, then by source
///
/// In backward a source sends its kept rows by the segment that computes them; of one segment first those
/// whose forward ran there, then those that moved to it, by the segment they come from. For pairs that
/// move, their source lists them to the rank that holds their activations, which sends these on.
class rank_layout {
 public:
  // Forward.
  std::vector<std::int64_t> sent, received;  ///< (R+1) rows to and from each rank
  std::vector<index_type> groups;            ///< (S+1) rows of each slot in expert order
  row_blocks arrival;  ///< expert order (to) in arrival order (from), a block a (slot, source)

  // Backward.
  std::vector<std::int64_t> kept_sent, kept_received;  ///< (R+1)
  std::vector<index_type> kept_groups;                 ///< (S+1)
  /// Kept rows as sent (to) in the order of the selection (from). Without moves these are the same, and
  /// there are no blocks.
  row_blocks departure;
  /// Expert order (to) in arrival order (from). base >= 0: first row, in expert order of forward, of the
  /// block's segment and source; base < 0: the block moved here, and its activations begin at row
  /// -1 - base of those that did.
  row_blocks kept_arrival;

  // Activations of pairs that move.
  std::vector<std::int64_t> listed_sent, listed_received;  ///< (R+1) rows that are named
  row_blocks listed;  ///< named rows as sent (to) in the order of the selection (from)
  std::vector<std::int64_t> moved_sent, moved_received;  ///< (R+1)
  /// Activations as sent (to) by the list as it arrived (from); base: first row, in expert order of
  /// forward, of the segment and source.
  row_blocks moved;

  bool moves = false;  ///< some rank moves activations

  std::int64_t rows_here() const { return received.back(); }
  std::int64_t kept_here() const { return kept_received.back(); }
  std::int64_t moved_here() const { return moved_received.back(); }

  /// Throws argument_error, on every rank alike, when a rank would get more than 2^31 - 1 rows.
  void make(const replica_plan& plan, std::int64_t rank, std::int64_t S) {
    check_sizes(plan);
    lay_out_forward(plan, rank, S);
    lay_out_moves(plan, rank);
    lay_out_backward(plan, rank, S);
  }

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  static void accumulate(std::vector<std::int64_t>& counts) {
    for (std::size_t r = 1; r < counts.size(); ++r) counts[r] += counts[r - 1];
  }

  void check_sizes(const replica_plan& plan) {
    for (std::int64_t r = 0; r < plan.R; ++r) {
      std::int64_t rows = 0;
      for (auto h = plan.first_of_rank[at(r)]; h < plan.first_of_rank[at(r + 1)]; ++h) {
        for (std::int64_t s = 0; s < plan.R; ++s) rows += plan.count(s, h);
      }
      // Activations that move in are stored behind those of the rank's own forward.
      for (const source_move& move : plan.moves)
        rows += plan.rank[at(move.to)] == r ? move.count : 0;
      require(rows <= std::numeric_limits<index_type>::max(), "rank_layout: rank ", r,
              " would compute ", rows,
              " pairs in one call, more than 2^31 - 1: use fewer tokens a call, more ranks, or a "
              "planner that balances");
    }
  }

  void lay_out_forward(const replica_plan& plan, std::int64_t rank, std::int64_t S) {
    const std::int64_t R = plan.R;
    const auto first = plan.first_of_rank[at(rank)], last = plan.first_of_rank[at(rank + 1)];
    sent.assign(at(R + 1), 0);
    received.assign(at(R + 1), 0);
    groups.assign(at(S + 1), 0);
    for (std::int64_t h = 0; h < plan.H; ++h) sent[at(plan.rank[at(h)] + 1)] += plan.count(rank, h);
    for (std::int64_t s = 0; s < R; ++s) {
      for (auto h = first; h < last; ++h) received[at(s + 1)] += plan.count(s, h);
    }
    accumulate(sent);
    accumulate(received);
    next_.assign(received.begin(), received.end() - 1);
    arrival.clear();
    for (auto h = first; h < last; ++h) {
      for (std::int64_t s = 0; s < R; ++s) {
        const index_type count = plan.count(s, h);
        arrival.add(next_[at(s)], count);
        next_[at(s)] += count;
        groups[at(plan.slot[at(h)] + 1)] += count;
      }
    }
    for (std::size_t g = 1; g < groups.size(); ++g) groups[g] += groups[g - 1];
  }

  /// First row, in expert order of forward, that this rank computes of a segment of its own and a source.
  index_type cell(const replica_plan& plan, std::int64_t rank, std::int64_t h,
                  std::int64_t s) const {
    return arrival.to[at((h - plan.first_of_rank[at(rank)]) * plan.R + s)];
  }

  void lay_out_moves(const replica_plan& plan, std::int64_t rank) {
    const std::int64_t R = plan.R;
    moves = !plan.moves.empty();
    staying_.assign(plan.quotas.begin(), plan.quotas.end());
    for (const source_move& move : plan.moves)
      staying_[at(move.source * plan.H + move.from)] -= move.count;

    listed_sent.assign(at(R + 1), 0);
    listed_received.assign(at(R + 1), 0);
    moved_sent.assign(at(R + 1), 0);
    moved_received.assign(at(R + 1), 0);
    listed.clear();
    moved.clear();
    by_target_.assign(plan.moves.begin(), plan.moves.end());
    std::sort(by_target_.begin(), by_target_.end(), [](const source_move& a, const source_move& b) {
      return std::tuple(a.to, a.source, a.from) < std::tuple(b.to, b.source, b.from);
    });
    if (!moves) return;

    first_kept_.assign(at(plan.H + 1), 0);
    for (std::int64_t h = 0; h < plan.H; ++h)
      first_kept_[at(h + 1)] = first_kept_[at(h)] + plan.quota(rank, h);
    // Where each move's rows begin: in the selection of this source, and in the lists this rank receives.
    const auto on = [&](index_type segment) { return std::int64_t{plan.rank[at(segment)]}; };
    for (const source_move& move : plan.moves) {
      if (move.source == rank) listed_sent[at(on(move.from) + 1)] += move.count;
      if (on(move.from) == rank) {
        listed_received[at(move.source + 1)] += move.count;
        moved_sent[at(on(move.to) + 1)] += move.count;
      }
      if (on(move.to) == rank) moved_received[at(on(move.from) + 1)] += move.count;
    }
    for (auto* counts : {&listed_sent, &listed_received, &moved_sent, &moved_received})
      accumulate(*counts);
    // In the selection a segment's rows are those that stay, then those that leave, by target: moves are
    // sorted by source, from, to, which is the order in which sources list them.
    index_type segment = -1, next = 0;
    next_.assign(listed_received.begin(), listed_received.end() - 1);
    outgoing_.clear();
    own_moves_.clear();
    for (const source_move& move : plan.moves) {
      if (move.source == rank) {
        if (move.from != segment)
          next = first_kept_[at(move.from)] + staying_[at(rank * plan.H + move.from)];
        segment = move.from;
        listed.add(next, move.count);
        own_moves_.push_back({move, next});
        next += move.count;
      }
      if (on(move.from) == rank) {
        outgoing_.push_back({move, next_[at(move.source)]});
        next_[at(move.source)] += move.count;
      }
    }
    std::sort(outgoing_.begin(), outgoing_.end(), [](const outgoing& a, const outgoing& b) {
      return std::tuple(a.move.to, a.move.source) < std::tuple(b.move.to, b.move.source);
    });
    for (const outgoing& out : outgoing_)
      moved.add(out.first, out.move.count, cell(plan, rank, out.move.from, out.move.source));
  }

  void lay_out_backward(const replica_plan& plan, std::int64_t rank, std::int64_t S) {
    const std::int64_t R = plan.R;
    kept_sent.assign(at(R + 1), 0);
    kept_received.assign(at(R + 1), 0);
    kept_groups.assign(at(S + 1), 0);
    departure.clear();
    kept_arrival.clear();
    const auto first = plan.first_of_rank[at(rank)], last = plan.first_of_rank[at(rank + 1)];

    for (std::int64_t h = 0; h < plan.H; ++h) {
      const std::int64_t to = plan.rank[at(h)];
      kept_sent[at(to + 1)] += staying_[at(rank * plan.H + h)];
      if (h >= first && h < last) {
        for (std::int64_t s = 0; s < R; ++s)
          kept_received[at(s + 1)] += staying_[at(s * plan.H + h)];
      }
    }
    for (const source_move& move : plan.moves) {
      const std::int64_t to = plan.rank[at(move.to)];
      if (move.source == rank) kept_sent[at(to + 1)] += move.count;
      if (to == rank) kept_received[at(move.source + 1)] += move.count;
    }
    accumulate(kept_sent);
    accumulate(kept_received);

    if (moves) lay_out_departure(plan, rank);
    next_.assign(kept_received.begin(), kept_received.end() - 1);
    next_moved_.assign(moved_received.begin(), moved_received.end() - 1);
    auto arriving = by_target_.begin();
    while (arriving != by_target_.end() && arriving->to < first) ++arriving;
    for (auto h = first; h < last; ++h) {
      index_type& rows = kept_groups[at(plan.slot[at(h)] + 1)];
      for (std::int64_t s = 0; s < R; ++s) {
        const auto add = [&](index_type count, index_type base) {
          kept_arrival.add(next_[at(s)], count, base);
          next_[at(s)] += count;
          rows += count;
        };
        add(staying_[at(s * plan.H + h)], cell(plan, rank, h, s));
        for (; arriving != by_target_.end() && arriving->to == h && arriving->source == s;
             ++arriving) {
          std::int64_t& next = next_moved_[at(plan.rank[at(arriving->from)])];
          add(arriving->count, -1 - static_cast<index_type>(next));
          next += arriving->count;
        }
      }
    }
    for (std::size_t g = 1; g < kept_groups.size(); ++g) kept_groups[g] += kept_groups[g - 1];
  }

  void lay_out_departure(const replica_plan& plan, std::int64_t rank) {
    std::sort(own_moves_.begin(), own_moves_.end(), [](const outgoing& a, const outgoing& b) {
      return std::tuple(a.move.to, a.move.from) < std::tuple(b.move.to, b.move.from);
    });
    auto leaving = own_moves_.begin();
    for (std::int64_t h = 0; h < plan.H; ++h) {
      departure.add(first_kept_[at(h)], staying_[at(rank * plan.H + h)]);
      for (; leaving != own_moves_.end() && leaving->move.to == h; ++leaving)
        departure.add(leaving->first, leaving->move.count);
    }
  }

  struct outgoing {
    source_move move;
    std::int64_t first = 0;  // of its rows: in the selection, or in the lists that arrive
  };
  std::vector<std::int64_t> next_, next_moved_;
  std::vector<index_type> staying_;     // (R, H) kept pairs whose backward stays
  std::vector<index_type> first_kept_;  // (H+1) of this rank
  std::vector<source_move> by_target_;
  std::vector<outgoing> outgoing_, own_moves_;
};

}  // namespace lrmoe
