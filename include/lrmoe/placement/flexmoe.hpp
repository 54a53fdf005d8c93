// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>

#include <lrmoe/placement/detail/expert_loads.hpp>
#include <lrmoe/placement/detail/replica_counts.hpp>
#include <lrmoe/placement/detail/slot_table.hpp>
#include <lrmoe/placement/planner.hpp>
#include <lrmoe/placement/token_split.hpp>

namespace lrmoe {

/// Expands hot experts and shrinks cold ones, slot by slot, starting from the current placement:
///   while peak load > threshold x mean load and fewer than `steps` moves were made:
///     a slot of the expert with the lowest L[e] / c[e], of those with c[e] > 1 slots, on its least loaded
///     rank, goes to the expert with the highest, if that lowers
///       cost = max over ranks of  pair_s x load + 4 row_bytes x rows / bandwidth
///                                 + sum over replicated experts of 2 (k - 1) / k gradient_bytes / bandwidth
/// (k ranks that hold e; across nodes where these are in several). Then a migration: of the expert on most
/// ranks, a slot changes places with one of a rank that holds it too, if that lowers the cost. Loads are
/// those of the last call; pairs go evenly over an expert's slots. Without costs nothing moves.
/// Source    FlexMoE, arXiv 2304.03946, without released code; the reimplementation in LAER-MoE's artifact
/// Deviates  threshold on max / mean, not max / min. Acceptance by the cost, not by the load alone. Migration is
///           one exchange a call. Slots beyond one copy of each expert start dealt out in turn.
struct flexmoe {
  double threshold = 1.2;   ///< peak over mean load that is put up with, at least 1
  std::int64_t steps = 10;  ///< moves of one call, at least 1
  bool migrate = true;

  void validate() const {
    require(threshold >= 1.0 && std::isfinite(threshold), "flexmoe: threshold = ", threshold,
            " must be a number of at least 1");
    require(steps >= 1, "flexmoe: steps = ", steps, " moves must be at least 1");
  }
  constexpr planner_attributes attributes() const {
    return {.name = "flexmoe",
            .window = 1,
            .optimizer = optimizer_place::with_expert,
            .reduction = gradient_reduction::all_reduce};
  }

  void plan(const placement_request& request, placement_plan& to) const {
    request.validate();
    to.loads.clear();
    if (detail::has_current(request) && all_slots_used(*request.current))
      to.replicas.assign(request.R, request.S, request.E, request.current->expert_of_slot());
    else
      start(request, to.replicas);
    if (detail::known_calls(request, 1) == 0) return;
    search state(request, to.replicas);
    bool changed = false;
    for (std::int64_t step = 0; step < steps && state.imbalance() > threshold; ++step) {
      if (!state.expand_and_shrink()) break;
      changed = true;
    }
    if (changed && migrate) state.migrate();
    if (changed) to.replicas.assign(request.R, request.S, request.E, state.slots());
  }

  void split(const placement_request& request, const placement_plan& plan,
             std::span<index_type> split) const {
    split_evenly(plan.replicas, request.source_counts, split);
  }

 private:
  static bool all_slots_used(const placement& of) {
    for (const index_type e : of.expert_of_slot())
      if (e == no_expert) return false;
    return true;
  }

  /// Home copies; then the experts in turn, each to the next rank with a free slot, if possible one
  /// without it.
  static void start(const placement_request& request, placement& to) {
    detail::slot_table slots(request.R, request.S);
    slots.put_home(request.home);
    std::int64_t rank = 0;
    for (std::int64_t left = request.R * request.S - request.E, e = 0; left > 0; --left) {
      std::int64_t chosen = -1;
      for (std::int64_t i = 0; i < request.R; ++i) {
        const std::int64_t r = (rank + i) % request.R;
        if (slots.free(r) == 0) continue;
        if (chosen < 0) chosen = r;
        if (!slots.holds(r, e)) {
          chosen = r;
          break;
        }
      }
      slots.put(chosen, e);
      rank = (chosen + 1) % request.R;
      e = (e + 1) % request.E;
    }
    slots.write(request.E, to);
  }

  class search {
   public:
    search(const placement_request& request, const placement& from)
        : request_(request),
          S_(static_cast<std::size_t>(request.S)),
          counts_(request.history->counts(0)),
          loads_(request.history->loads(0)),
          slots_(detail::scratch<slots_tag, index_type>(from.expert_of_slot().size())),
          count_(detail::scratch<count_tag, std::int64_t>(loads_.size())),
          rank_load_(detail::scratch<rank_tag, std::int64_t>(static_cast<std::size_t>(request.R))),
          sent_(detail::scratch<sent_tag, std::int64_t>(static_cast<std::size_t>(request.R))) {
      std::copy(from.expert_of_slot().begin(), from.expert_of_slot().end(), slots_.begin());
      std::fill(count_.begin(), count_.end(), 0);
      for (const index_type e : slots_) ++count_[static_cast<std::size_t>(e)];
      for (std::size_t r = 0; r < sent_.size(); ++r) {
        sent_[r] = 0;
        for (std::size_t e = 0; e < loads_.size(); ++e)
          sent_[r] += std::int64_t{counts_[r * loads_.size() + e]} << 16;
      }
      cost_ = cost();
    }

    std::span<const index_type> slots() const { return slots_; }

    double imbalance() {
      update_loads();
      std::int64_t sum = 0, most = 0;
      for (const std::int64_t load : rank_load_) sum += load, most = std::max(most, load);
      return sum == 0 ? 0.0
                      : static_cast<double>(most) * static_cast<double>(rank_load_.size()) /
                            static_cast<double>(sum);
    }

    /// Returns whether a slot changed hands.
    bool expand_and_shrink() {
      const auto hotter = [&](std::size_t a, std::size_t b) {
        return loads_[a] * count_[b] > loads_[b] * count_[a];
      };
      std::size_t hot = 0, cold = loads_.size();
      for (std::size_t e = 0; e < loads_.size(); ++e) {
        if (hotter(e, hot)) hot = e;
        if (count_[e] > 1 && (cold == loads_.size() || hotter(cold, e))) cold = e;
      }
      if (cold == loads_.size() || cold == hot) return false;
      update_loads();
      std::size_t slot = slots_.size();
      for (std::size_t i = 0; i < slots_.size(); ++i) {
        if (slots_[i] != static_cast<index_type>(cold)) continue;
        if (slot == slots_.size() || rank_load_[i / S_] < rank_load_[slot / S_]) slot = i;
      }
      const auto give = [&](std::size_t from, std::size_t to) {
        slots_[slot] = static_cast<index_type>(to);
        --count_[from];
        ++count_[to];
      };
      give(cold, hot);
      const double now = cost();
      if (now < cost_) {
        cost_ = now;
        return true;
      }
      give(hot, cold);
      return false;
    }

    void migrate() {
      index_type widest = 0, most = 0;
      for (std::size_t e = 0; e < loads_.size(); ++e) {
        const index_type k = holders(static_cast<index_type>(e)).ranks;
        if (k > most) most = k, widest = static_cast<index_type>(e);
      }
      if (most < 2) return;
      std::size_t best_a = 0, best_b = 0;
      double best = cost_;
      for (std::size_t a = 0; a < slots_.size(); ++a) {
        if (slots_[a] != widest) continue;
        for (std::size_t b = 0; b < slots_.size(); ++b) {
          if (b / S_ == a / S_ || slots_[b] == widest || !rank_holds(b / S_, widest)) continue;
          std::swap(slots_[a], slots_[b]);
          const double now = cost();
          std::swap(slots_[a], slots_[b]);
          if (now < best) best = now, best_a = a, best_b = b;
        }
      }
      std::swap(slots_[best_a], slots_[best_b]);
      cost_ = best;
    }

   private:
    struct slots_tag {};
    struct count_tag {};
    struct rank_tag {};
    struct sent_tag {};
    struct group {
      index_type ranks = 0;
      bool across = false;
    };

    bool rank_holds(std::size_t rank, index_type e) const {
      const auto mine = slots_.subspan(rank * S_, S_);
      return std::find(mine.begin(), mine.end(), e) != mine.end();
    }
    group holders(index_type e) const {
      group g;
      std::int64_t first_node = -1;
      for (std::size_t r = 0; r < rank_load_.size(); ++r) {
        if (!rank_holds(r, e)) continue;
        const std::int64_t node = request_.node_of(static_cast<std::int64_t>(r));
        if (++g.ranks == 1) first_node = node;
        g.across = g.across || node != first_node;
      }
      return g;
    }
    void update_loads() {
      for (std::size_t r = 0; r < rank_load_.size(); ++r) {
        rank_load_[r] = 0;
        for (const index_type e : slots_.subspan(r * S_, S_))
          rank_load_[r] += detail::slot_load(loads_[static_cast<std::size_t>(e)],
                                             count_[static_cast<std::size_t>(e)]);
      }
    }

    double cost() {
      struct group_tag {};
      struct last_tag {};
      const auto& costs = request_.costs;
      const auto& machine = request_.machine;
      const double row_s = 4.0 * static_cast<double>(costs.row_bytes) /
                           (request_.nodes() > 1 ? machine.across : machine.inside).bytes_per_s;
      // Ranks of every group, whether it spans nodes, and the last rank seen, in one pass over slots.
      const auto groups = detail::scratch<group_tag, group>(loads_.size());
      const auto last = detail::scratch<last_tag, std::int64_t>(loads_.size());
      std::fill(groups.begin(), groups.end(), group{});
      std::fill(last.begin(), last.end(), -1);
      for (std::size_t i = 0; i < slots_.size(); ++i) {
        const auto e = static_cast<std::size_t>(slots_[i]);
        const auto rank = static_cast<std::int64_t>(i / S_);
        if (last[e] == rank) continue;
        groups[e].across = groups[e].across ||
                           (last[e] >= 0 && request_.node_of(last[e]) != request_.node_of(rank));
        ++groups[e].ranks;
        last[e] = rank;
      }
      std::fill(last.begin(), last.end(), -1);
      double most = 0;
      for (std::size_t r = 0; r < rank_load_.size(); ++r) {
        std::int64_t load = 0, own = 0;
        double reduce_s = 0;
        for (const index_type expert : slots_.subspan(r * S_, S_)) {
          const auto e = static_cast<std::size_t>(expert);
          load += detail::slot_load(loads_[e], count_[e]);
          own += detail::slot_load(counts_[r * loads_.size() + e], count_[e]);
          if (last[e] == static_cast<std::int64_t>(r) || groups[e].ranks < 2) continue;
          last[e] = static_cast<std::int64_t>(r);
          const double k = groups[e].ranks;
          reduce_s += 2.0 * (k - 1.0) / k * static_cast<double>(costs.gradient_bytes) /
                      (groups[e].across ? machine.across : machine.inside).bytes_per_s;
        }
        const auto rows = static_cast<double>(std::max(load - own, sent_[r] - own));
        const double s =
            (costs.pair_s * static_cast<double>(load) + row_s * rows) / 65536.0 + reduce_s;
        most = std::max(most, s);
      }
      return most;
    }

    const placement_request& request_;
    std::size_t S_;
    std::span<const index_type> counts_;
    std::span<const std::int64_t> loads_;
    std::span<index_type> slots_;
    std::span<std::int64_t> count_, rank_load_, sent_;
    double cost_ = 0;
  };
};

}  // namespace lrmoe
