// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <lrmoe/placement/placement.hpp>

namespace lrmoe::detail {

/// Pairs on the replicas of a placement, and flows that take pairs from ranks above a peak to ranks
/// below it. A path of a flow alternates: a pair leaves rank r for its expert e, and enters another
/// rank that holds e, from which a pair of another expert leaves, ...
/// Costs of one pair over one replica with b pairs, k of them at the start, so that the costs of all
/// steps add up to the pairs that moved, sum max(0, b - k):
///   leaves   0, but -1 while b > k: it undoes a move
///   enters   1, but  0 while b < k: it comes back
class replica_flow {
 public:
  void reset(const placement& where, std::span<const index_type> kept,
             std::span<const index_type> fixed) {
    R_ = static_cast<std::size_t>(where.R());
    E_ = static_cast<std::size_t>(where.E());
    H_ = static_cast<std::size_t>(where.replicas());
    offsets_ = where.offsets().data();
    expert_ = where.experts().data();
    rank_ = where.ranks().data();
    kept_ = kept.data();
    fixed_ = fixed;
    list_replicas_of_ranks();
    pairs_.resize(H_);
    load_.resize(R_);
    for (auto* numbers : {&level_, &distance_, &next_}) numbers->resize(R_ + E_);
    queue_.resize(R_ + E_ + 1);  // one more, to be written to when all nodes were seen
    path_.reserve(R_ + E_);
    restore();
  }

  /// Every pair is where it was at the start.
  void restore() {
    std::copy_n(kept_, H_, pairs_.begin());
    std::fill(load_.begin(), load_.end(), std::int64_t{0});
    std::copy(fixed_.begin(), fixed_.end(), load_.begin());
    for (std::size_t h = 0; h < H_; ++h) load_[rank_of(h)] += pairs_[h];
  }

  /// Take pairs from ranks above the peak until none is, or none can lose more. From any flow.
  /// Dinic's algorithm: paths of fewest steps first, all of one length at once.
  bool level_to(std::int64_t peak) {
    while (above(peak)) {
      if (!search<false>(peak)) return false;
      block<false>(peak);
    }
    return true;
  }

  /// The same with the fewest moves, if it gets there. From the start.
  /// Primal-dual: distance_ holds costs of cheapest paths to ranks below the peak, so that no step costs
  /// less than the distance it covers; flows take only steps that cost just that, and distances grow by
  /// what the cheapest other step costs beyond it.
  bool level_at_least_cost_to(std::int64_t peak) {
    for (std::size_t r = 0; r < R_; ++r) distance_[r] = load_[r] < peak ? 0 : 1;
    std::fill_n(distance_.begin() + static_cast<std::ptrdiff_t>(R_), E_, 1);
    while (above(peak)) {
      if (search<true>(peak)) {
        block<true>(peak);
      } else if (!grow()) {
        return false;
      }
    }
    return true;
  }

  /// After either failed to get to a peak: no pair can leave the ranks that pairs of those above it can
  /// go to. The least peak that holds the load of these ranks.
  std::int64_t peak_of_closed_ranks(std::int64_t peak) {
    std::fill(level_.begin(), level_.end(), unseen);
    std::size_t end = 0;
    for (std::size_t r = 0; r < R_; ++r) see(r, 0, load_[r] > peak, end);
    std::int64_t sum = 0, count = 0;
    for (std::size_t at = 0; at < end; ++at) {
      const auto node = static_cast<std::size_t>(queue_[at]);
      if (node < R_) {
        sum += load_[node];
        ++count;
        for (index_type i = begin_of_rank_[node]; i < begin_of_rank_[node + 1]; ++i) {
          see(expert_of(replica_on(i)), 0, pairs_[replica_on(i)] > 0, end);
        }
      } else {
        for (std::size_t h = first_of(node); h < end_of(node); ++h) see(rank_of(h), 0, true, end);
      }
    }
    return (sum + count - 1) / count;
  }

  std::span<const index_type> pairs() const { return pairs_; }  ///< (H)
  std::span<const std::int64_t> load() const { return load_; }  ///< (R)  fixed and pairs

 private:
  static constexpr index_type unseen = -2;  // no level below one that is seen

  /// A step: a pair leaves over one replica and enters over another one of the same expert.
  struct step {
    std::size_t leaves, enters;
  };

  // Nodes are ranks, then experts.
  std::size_t rank_of(std::size_t h) const { return static_cast<std::size_t>(rank_[h]); }
  std::size_t expert_of(std::size_t h) const { return R_ + static_cast<std::size_t>(expert_[h]); }
  std::size_t first_of(std::size_t e) const { return static_cast<std::size_t>(offsets_[e - R_]); }
  std::size_t end_of(std::size_t e) const { return static_cast<std::size_t>(offsets_[e - R_ + 1]); }

  void list_replicas_of_ranks() {
    begin_of_rank_.assign(R_ + 2, 0);
    on_rank_.resize(H_);
    // Counting sort; one place further on than usual, so that filling moves the ends into place.
    for (std::size_t h = 0; h < H_; ++h) ++begin_of_rank_[rank_of(h) + 2];
    for (std::size_t r = 2; r < R_ + 2; ++r) begin_of_rank_[r] += begin_of_rank_[r - 1];
    for (std::size_t h = 0; h < H_; ++h) {
      on_rank_[static_cast<std::size_t>(begin_of_rank_[rank_of(h) + 1]++)] =
          static_cast<index_type>(h);
    }
  }
  std::size_t replica_on(index_type i) const {
    return static_cast<std::size_t>(on_rank_[static_cast<std::size_t>(i)]);
  }

  bool above(std::int64_t peak) const {
    return std::any_of(load_.begin(), load_.end(), [peak](std::int64_t at) { return at > peak; });
  }

  index_type leaving_cost(std::size_t h) const { return pairs_[h] > kept_[h] ? -1 : 0; }
  index_type entering_cost(std::size_t h) const { return pairs_[h] < kept_[h] ? 0 : 1; }

  template <bool Priced>
  bool may_leave(std::size_t h) const {
    return (pairs_[h] > 0) &
           (!Priced || distance_[rank_of(h)] == distance_[expert_of(h)] + leaving_cost(h));
  }
  template <bool Priced>
  bool may_enter(std::size_t h) const {
    return !Priced || distance_[expert_of(h)] == distance_[rank_of(h)] + entering_cost(h);
  }

  /// Pairs that may leave or enter before the cost changes.
  template <bool Priced>
  std::int64_t room_to_leave(std::size_t h) const {
    return Priced && pairs_[h] > kept_[h] ? pairs_[h] - kept_[h] : pairs_[h];
  }
  template <bool Priced>
  std::int64_t room_to_enter(std::size_t h) const {
    return Priced && pairs_[h] < kept_[h] ? kept_[h] - pairs_[h]
                                          : std::numeric_limits<std::int64_t>::max();
  }

  /// Give a node a level and its turn, unless it has them. Without branches, as no processor could
  /// foresee them.
  bool see(std::size_t node, index_type level, bool may, std::size_t& end) {
    const bool is_new = may & (level_[node] == unseen);
    level_[node] = is_new ? level : level_[node];
    queue_[end] = static_cast<index_type>(node);
    end += is_new ? 1 : 0;
    return is_new;
  }

  /// Steps from every node to ranks below the peak; whether there are some from a rank above it.
  template <bool Priced>
  bool search(std::int64_t peak) {
    std::fill(level_.begin(), level_.end(), unseen);
    std::size_t end = 0;
    bool found = false;
    for (std::size_t r = 0; r < R_; ++r) see(r, 0, load_[r] < peak, end);
    for (std::size_t at = 0; at < end; ++at) {
      const auto node = static_cast<std::size_t>(queue_[at]);
      const index_type level = level_[node] + 1;
      if (node < R_) {
        for (index_type i = begin_of_rank_[node]; i < begin_of_rank_[node + 1]; ++i) {
          const std::size_t h = replica_on(i);
          see(expert_of(h), level, may_enter<Priced>(h), end);
        }
      } else {
        for (std::size_t h = first_of(node); h < end_of(node); ++h) {
          const std::size_t r = rank_of(h);
          found |= see(r, level, may_leave<Priced>(h), end) & (load_[r] > peak);
        }
      }
    }
    return found;
  }

  /// Use up all paths along which levels fall.
  template <bool Priced>
  void block(std::int64_t peak) {
    std::copy_n(begin_of_rank_.begin(), R_, next_.begin());
    std::copy_n(offsets_, E_, next_.begin() + static_cast<std::ptrdiff_t>(R_));
    for (std::size_t r = 0; r < R_; ++r) {
      while (load_[r] > peak && find_path<Priced>(r, peak)) push<Priced>(r, peak);
    }
  }

  /// next_ is the replica that a node tries next; those before it lead nowhere any more.
  template <bool Priced>
  bool find_path(std::size_t from, std::int64_t peak) {
    path_.clear();
    if (level_[from] == unseen) return false;
    for (std::size_t r = from; load_[r] >= peak;) {
      step taken;
      if (find_step<Priced>(r, taken)) {
        path_.push_back(taken);
        r = rank_of(taken.enters);
      } else {
        if (path_.empty()) return false;
        ++next_[expert_of(path_.back().enters)];
        r = rank_of(path_.back().leaves);
        path_.pop_back();
      }
    }
    return true;
  }

  template <bool Priced>
  bool find_step(std::size_t r, step& taken) {
    for (; next_[r] < begin_of_rank_[r + 1]; ++next_[r]) {
      const std::size_t h = replica_on(next_[r]), e = expert_of(h);
      if (level_[e] != level_[r] - 1 || !may_leave<Priced>(h)) continue;
      for (; static_cast<std::size_t>(next_[e]) < end_of(e); ++next_[e]) {
        const auto to = static_cast<std::size_t>(next_[e]);
        if (level_[rank_of(to)] != level_[e] - 1 || !may_enter<Priced>(to)) continue;
        taken = {h, to};
        return true;
      }
    }
    return false;
  }

  /// As many pairs as the path takes.
  template <bool Priced>
  void push(std::size_t from, std::int64_t peak) {
    const std::size_t to = rank_of(path_.back().enters);
    std::int64_t count = std::min(load_[from] - peak, peak - load_[to]);
    for (const step& s : path_) {
      count = std::min({count, room_to_leave<Priced>(s.leaves), room_to_enter<Priced>(s.enters)});
    }
    for (const step& s : path_) {
      pairs_[s.leaves] -= static_cast<index_type>(count);
      pairs_[s.enters] += static_cast<index_type>(count);
    }
    load_[from] -= count;
    load_[to] += count;
  }

  /// Let nodes that the last search did not find be further away, until a step leads to one.
  bool grow() {
    constexpr index_type none = std::numeric_limits<index_type>::max();
    index_type least = none;
    for (std::size_t h = 0; h < H_; ++h) {
      const std::size_t r = rank_of(h), e = expert_of(h);
      if ((level_[r] == unseen) == (level_[e] == unseen)) continue;
      if (level_[e] == unseen) {
        least = std::min(least, entering_cost(h) + distance_[r] - distance_[e]);
      } else if (pairs_[h] > 0) {
        least = std::min(least, leaving_cost(h) + distance_[e] - distance_[r]);
      }
    }
    if (least == none) return false;
    for (std::size_t node = 0; node < level_.size(); ++node) {
      if (level_[node] == unseen) distance_[node] += least;
    }
    return true;
  }

  std::size_t R_ = 0, E_ = 0, H_ = 0;
  const index_type* offsets_ = nullptr;
  const index_type* expert_ = nullptr;
  const index_type* rank_ = nullptr;
  const index_type* kept_ = nullptr;
  std::span<const index_type> fixed_;
  std::vector<index_type> begin_of_rank_;            // (R+2)  into on_rank_
  std::vector<index_type> on_rank_;                  // (H)    replicas by rank, then by expert
  std::vector<index_type> pairs_;                    // (H)
  std::vector<std::int64_t> load_;                   // (R)
  std::vector<index_type> level_, distance_, next_;  // (R+E)
  std::vector<index_type> queue_;                    // (R+E+1)
  std::vector<step> path_;
};

}  // namespace lrmoe::detail
