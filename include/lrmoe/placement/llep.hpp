// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>

#include <lrmoe/placement/detail/transient_plan.hpp>
#include <lrmoe/placement/planner.hpp>
#include <lrmoe/placement/token_split.hpp>

namespace lrmoe {

/// Overflow spills to the least loaded ranks, with its expert's weights. Where the highest rank load is below
/// `trigger` times the mean, nothing moves. Otherwise every rank has the capacity
///   cap = floor(slack floor(sum of loads / R)),
/// and for each expert, hottest first, home keeps what fits beside its experts still to come; the rest goes, in
/// chunks of what fits, to the other rank with the least load, as long as a chunk has `least_chunk` pairs or is
/// all of the rest. What then is left goes to the least loaded other rank, whatever its load.
/// Pairs of an expert are cut in the order of their sources, home's interval first.
/// Source    LLEP, arXiv 2601.17111, and its released code
/// Deviates  A helper needs a free slot; where none has one, the rest stays at home. The trigger looks at
///           ranks, as the release does. Intervals after home's go to helpers by rank.
struct llep {
  double trigger = 1.3;             ///< highest over mean rank load, at least 1
  double slack = 1.0;               ///< capacity over the mean, at least 1
  std::int64_t least_chunk = 1024;  ///< pairs, at least 1

  void validate() const {
    require(trigger >= 1.0 && std::isfinite(trigger), "llep: trigger = ", trigger,
            " must be a number of at least 1");
    require(slack >= 1.0 && std::isfinite(slack), "llep: slack = ", slack,
            " must be a number of at least 1");
    require(least_chunk >= 1, "llep: least_chunk = ", least_chunk, " must be at least 1");
  }
  constexpr planner_attributes attributes() const { return {.name = "llep", .exact = true}; }

  void plan(const placement_request& request, placement_plan& to) const {
    request.validate();
    struct load_tag {};
    struct order_tag {};
    struct pairs_tag {};
    auto& storage = detail::transient_storage::of_thread();
    detail::anchor_at_home(request, storage.items);
    detail::slot_table slots(request.R, request.S);
    slots.put_home(request.home);
    // Pairs assigned so far and those of experts still to come, together.
    const auto load = detail::scratch<load_tag, std::int64_t>(static_cast<std::size_t>(request.R));
    const auto pairs = detail::scratch<pairs_tag, index_type>(storage.items.size());
    const auto order = detail::scratch<order_tag, index_type>(storage.items.size());
    std::fill(load.begin(), load.end(), 0);
    std::int64_t total = 0;
    for (std::size_t e = 0; e < pairs.size(); ++e) {
      pairs[e] = storage.items[e].pairs;
      load[static_cast<std::size_t>(request.home[e])] += pairs[e];
      total += pairs[e];
    }
    const auto highest = static_cast<double>(*std::max_element(load.begin(), load.end()));
    if (highest * static_cast<double>(request.R) >= trigger * static_cast<double>(total)) {
      const auto cap =
          static_cast<std::int64_t>(std::floor(slack * static_cast<double>(total / request.R)));
      detail::sort_descending<index_type>(pairs, order);
      for (const index_type e : order) spill(request, e, cap, load, slots, storage);
    }
    detail::write_transient_plan(request, slots, storage.items, storage.exports, to);
  }

  void split(const placement_request& request, const placement_plan& plan,
             std::span<index_type> split) const {
    split_in_intervals(plan.replicas, request.home, plan.loads, request.source_counts, split);
  }

 private:
  void spill(const placement_request& request, index_type e, std::int64_t cap,
             std::span<std::int64_t> load, detail::slot_table& slots,
             detail::transient_storage& storage) const {
    const index_type home = request.home[static_cast<std::size_t>(e)];
    const std::int64_t L = storage.items[static_cast<std::size_t>(e)].pairs;
    std::int64_t& at_home = load[static_cast<std::size_t>(home)];
    std::int64_t rest = L - std::clamp<std::int64_t>(cap - (at_home - L), 0, L);
    at_home -= rest;
    const auto least_loaded = [&](bool may_hold) {
      std::int64_t best = -1;
      for (std::int64_t r = 0; r < request.R; ++r) {
        if (r == home) continue;
        const bool usable = slots.holds(r, e) ? may_hold : slots.free(r) > 0;
        if (usable &&
            (best < 0 || load[static_cast<std::size_t>(r)] < load[static_cast<std::size_t>(best)]))
          best = r;
      }
      return best;
    };
    const auto give = [&](std::int64_t to, std::int64_t chunk) {
      storage.exports.push_back({e, static_cast<index_type>(to), static_cast<index_type>(chunk)});
      if (!slots.holds(to, e)) slots.put(to, e);
      load[static_cast<std::size_t>(to)] += chunk;
      rest -= chunk;
    };
    while (rest > 0) {
      // The least loaded has most room: where its chunk is too small, so are all others.
      const std::int64_t to = least_loaded(false);
      if (to < 0) break;
      const std::int64_t chunk = std::min(rest, cap - load[static_cast<std::size_t>(to)]);
      if (chunk <= 0 || (chunk < least_chunk && chunk < rest)) break;
      give(to, chunk);
    }
    if (rest == 0) return;
    const std::int64_t to = least_loaded(true);
    if (to >= 0)
      give(to, rest);
    else
      at_home += rest;
  }
};

}  // namespace lrmoe
