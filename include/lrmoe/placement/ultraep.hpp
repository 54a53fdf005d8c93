// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>

#include <lrmoe/placement/detail/transient_plan.hpp>
#include <lrmoe/placement/planner.hpp>
#include <lrmoe/placement/token_split.hpp>

namespace lrmoe {

/// Transient copies from exact counts, in every call: experts stay at home, and free slots take copies that
/// carry exactly what exceeds a peak tau. Copying and splitting are one problem: exports of the oracle
/// (detail/export_oracle.hpp) say which copy runs how many pairs.
///   mean = ceil(max(margin, 1) sum of loads / ranks)
///   fast     tau = ceil(1.01 mean), then twice 1 % of the highest load more; no export below
///            ceil(excess / ranks with room)
///   search   the least tau with exports of at least `least_export` pairs, by bisection; also where fast fails
/// Ranks of one domain help each other; domains are solved by themselves.
/// Source    UltraEP, arXiv 2606.04101, and its released planner
/// Deviates  A rank that owns fewer experts than others has more free slots. Bisection instead of a k-ary
///           search of the same interval. Bytes count copies whole, without overlap with compute.
struct ultraep {
  std::int64_t domain = 0;           ///< ranks in a row that exchange copies; 0: all
  bool fast = true;                  ///< try three peaks before searching
  double margin = 1.0;               ///< times the mean: the least peak in question
  std::int64_t least_export = 1024;  ///< pairs of an export in the search, at least 1

  void validate() const {
    require(domain >= 0, "ultraep: domain = ", domain,
            " ranks must not be negative: 0 for all ranks");
    require(margin >= 0 && std::isfinite(margin), "ultraep: margin = ", margin,
            " must be finite and not negative");
    require(least_export >= 1, "ultraep: least_export = ", least_export, " must be at least 1");
  }
  constexpr planner_attributes attributes() const {
    return {.name = "ultraep", .exact = true, .weight_sends = 2, .weights = copy_route::two_stage};
  }

  void plan(const placement_request& request, placement_plan& to) const {
    request.validate();
    auto& storage = detail::transient_storage::of_thread();
    detail::anchor_at_home(request, storage.items);
    detail::slot_table slots(request.R, request.S);
    slots.put_home(request.home);
    const std::int64_t size = domain == 0 ? request.R : std::min(domain, request.R);
    if (size == request.R) {
      storage.oracle.set(0, request.R, storage.items);
      solve(storage.oracle, slots, storage.exports);
    } else {
      for (std::int64_t first = 0; first < request.R; first += size)
        solve_domain(request, first, std::min(request.R, first + size), slots, storage);
    }
    detail::write_transient_plan(request, slots, storage.items, storage.exports, to);
  }

  void split(const placement_request& request, const placement_plan& plan,
             std::span<index_type> split) const {
    split_by_loads_in_proportion(plan.replicas, plan.loads, request.source_counts, split);
  }

 private:
  void solve_domain(const placement_request& request, std::int64_t first, std::int64_t last,
                    const detail::slot_table& slots, detail::transient_storage& storage) const {
    thread_local std::vector<detail::anchored_load> mine;
    thread_local std::vector<index_type> number;
    mine.clear();
    number.clear();
    for (std::size_t e = 0; e < request.home.size(); ++e) {
      if (request.home[e] < first || request.home[e] >= last) continue;
      mine.push_back(storage.items[e]);
      number.push_back(static_cast<index_type>(e));
    }
    const std::size_t before = storage.exports.size();
    storage.oracle.set(first, last, mine);
    solve(storage.oracle, slots, storage.exports);
    for (std::size_t i = before; i < storage.exports.size(); ++i)
      storage.exports[i].item = number[static_cast<std::size_t>(storage.exports[i].item)];
  }

  void solve(detail::export_oracle& oracle, const detail::slot_table& slots,
             std::vector<detail::expert_export>& exports) const {
    const auto reach = [&](std::int64_t peak, std::int64_t least) {
      return oracle.run(
          {1, least, false},
          [&](std::int64_t r) {
            return detail::rank_limit{peak, slots.free(r)};
          },
          exports);
    };
    const auto mean = static_cast<std::int64_t>(
        std::ceil(static_cast<double>(oracle.mean_rounded_up()) * std::max(margin, 1.0)));
    const std::int64_t highest = std::max(oracle.highest(), mean);
    if (fast) {
      std::int64_t tau = (mean * 101 + 99) / 100;
      for (int attempt = 0; attempt < 3; ++attempt) {
        if (reach(tau, 0)) return;
        tau += std::max<std::int64_t>(1, (highest + 99) / 100);
      }
    }
    if (reach(mean, least_export)) return;
    const std::size_t before = exports.size();
    std::int64_t low = mean, high = highest;
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      if (reach(middle, least_export)) {
        exports.resize(before);
        high = middle;
      } else {
        low = middle;
      }
    }
    reach(high, least_export);
  }
};

}  // namespace lrmoe
