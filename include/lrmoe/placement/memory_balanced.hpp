// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>

#include <lrmoe/placement/detail/transient_plan.hpp>
#include <lrmoe/placement/planner.hpp>
#include <lrmoe/placement/token_split.hpp>

namespace lrmoe {

/// LRMoE's default: transient copies from exact counts, as many as memory, slots and links are worth.
/// A peak tau bounds pairs *and* memory. A rank that owns at least what it may run,
///   min(tau, floor(available_bytes / pair_memory_bytes)),
/// gives away the rest. Another one may take as many copies as leave room for tau pairs,
///   min(free slots, floor((available_bytes - tau pair_memory_bytes) / (weight_bytes + gradient_bytes))),
/// or, where not even one does, one copy and fewer pairs. So a lower peak makes room for the copies that
/// reach it.
///   1 the least tau that exports reach: first the mean load, then bisection up to the highest load, each
///     time with two orders of filling (detail::least_peak)
///   2 of that tau, further ones up to the highest load, and no copies, the one with the lowest
///       (pair_s + 4 row_bytes / bandwidth) tau
///         + max over ranks of copies sent or received x (weight_bytes + gradient_bytes) / bandwidth
///         + two latencies if there are copies
///     (ties: the lowest), as if all pairs came from other ranks; bandwidth across nodes where there are
///     several. Without costs of pairs it is the first.
/// Pairs go to their own rank, their own node, then elsewhere; every load is met exactly.
/// Ensures   no rank exceeds available_bytes if step 1 finds such a plan. Otherwise full ranks are relieved as
///           far as the others have room; what still does not fit is for the layer's budget to refuse.
/// Tested    against transient_floor, which no plan can beat
struct memory_balanced {
  double slack = 0.0;  ///< load above the mean that is not worth a copy, relative, not negative

  void validate() const {
    require(slack >= 0.0 && std::isfinite(slack), "memory_balanced: slack = ", slack,
            " must be a number of at least 0: no plan is below the mean");
  }
  constexpr planner_attributes attributes() const {
    return {.name = "lrmoe",
            .exact = true,
            .weights = copy_route::two_stage,
            .gradients = copy_route::two_stage};
  }

  void plan(const placement_request& request, placement_plan& to) const {
    request.validate();
    auto& storage = detail::transient_storage::of_thread();
    auto& oracle = storage.oracle;
    detail::anchor_at_home(request, storage.items);
    detail::slot_table slots(request.R, request.S);
    slots.put_home(request.home);
    oracle.set(0, request.R, storage.items);
    const memory_limits limits{request, slots};
    const auto least = static_cast<std::int64_t>(
        std::floor(static_cast<double>(oracle.mean_rounded_up()) * (1.0 + slack)));
    bool strict = true;
    const auto limit = [&](std::int64_t r, std::int64_t peak) {
      return limits.of(r, oracle.load(r), peak, strict);
    };
    std::int64_t peak = detail::least_peak(storage, least, limit);
    if (peak < 0) {
      strict = false;
      peak = detail::least_peak(storage, least, limit);
    }
    if (pair_cost_s(request) > 0 && !storage.exports.empty())
      weigh_copies(request, storage, peak, limit);
    detail::write_transient_plan(request, slots, storage.items, storage.exports, to);
  }

  void split(const placement_request& request, const placement_plan& plan,
             std::span<index_type> split) const {
    split_by_loads(plan.replicas, request.machine.ranks_per_node, plan.loads, request.source_counts,
                   split);
  }

 private:
  struct memory_limits {
    const placement_request& request;
    const detail::slot_table& slots;

    /// strict: also of ranks that own more than they have memory for.
    detail::rank_limit of(std::int64_t r, std::int64_t load, std::int64_t peak, bool strict) const {
      if (request.available_bytes.empty()) return {peak, slots.free(r)};
      const std::int64_t available = request.available_bytes[static_cast<std::size_t>(r)];
      const std::int64_t pair = std::max<std::int64_t>(1, request.costs.pair_memory_bytes);
      const std::int64_t copy = copy_bytes(request);
      const std::int64_t most = std::min(peak, std::max<std::int64_t>(0, available / pair));
      if (load >= most) return {strict ? most : peak, 0};
      const std::int64_t copies =
          std::clamp<std::int64_t>((available - peak * pair) / copy, 0, slots.free(r));
      if (copies > 0) return {peak, copies};
      const std::int64_t beside_one = (available - copy) / pair;
      if (beside_one <= load) return {most, 0};
      return {std::min(peak, beside_one), std::min<std::int64_t>(1, slots.free(r))};
    }
  };

  static std::int64_t copy_bytes(const placement_request& request) {
    return std::max<std::int64_t>(1, request.costs.weight_bytes + request.costs.gradient_bytes);
  }

  static const link_rate& link(const placement_request& request) {
    return request.nodes() > 1 ? request.machine.across : request.machine.inside;
  }
  static double pair_cost_s(const placement_request& request) {
    return request.costs.pair_s +
           4.0 * static_cast<double>(request.costs.row_bytes) / link(request).bytes_per_s;
  }

  /// Replaces the exports by those of a higher peak where the links that they spare are worth more.
  template <class Limit>
  static void weigh_copies(const placement_request& request, detail::transient_storage& storage,
                           std::int64_t peak, const Limit& limit) {
    const std::int64_t highest = storage.oracle.highest();
    double best = predicted_s(request, storage, storage.exports, peak);
    for (std::int64_t part = 64; part >= 1; part /= 2) {
      const std::int64_t tried_peak = peak + (highest - peak) / part;
      // Higher peaks cost more for their pairs alone.
      if (pair_cost_s(request) * static_cast<double>(tried_peak) >= best) break;
      storage.tried.clear();
      const auto of_rank = [&](std::int64_t r) { return limit(r, tried_peak); };
      if (!storage.oracle.run({0, 1, true}, of_rank, storage.tried)) continue;
      const double now = predicted_s(request, storage, storage.tried, tried_peak);
      if (now >= best) continue;
      best = now;
      storage.exports.swap(storage.tried);
    }
  }

  static double predicted_s(const placement_request& request,
                            const detail::transient_storage& storage,
                            std::span<const detail::expert_export> exports, std::int64_t peak) {
    struct rank_tag {};
    struct expert_tag {};
    const auto R = static_cast<std::size_t>(request.R);
    const auto of_rank = detail::scratch<rank_tag, std::int64_t>(2 * R);
    const auto sent = of_rank.first(R), received = of_rank.last(R);
    const auto of_expert =
        detail::scratch<expert_tag, std::int64_t>(static_cast<std::size_t>(request.E));
    std::fill(of_rank.begin(), of_rank.end(), 0);
    std::fill(of_expert.begin(), of_expert.end(), 0);
    for (const auto& x : exports) {
      ++received[static_cast<std::size_t>(x.to)];
      ++of_expert[static_cast<std::size_t>(x.item)];
    }
    // Home sends to the first stage of the route.
    for (std::size_t e = 0; e < of_expert.size(); ++e) {
      const std::int64_t k = of_expert[e];
      sent[static_cast<std::size_t>(storage.items[e].rank)] +=
          k < 4 ? k : static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(k))));
    }
    return pair_cost_s(request) * static_cast<double>(peak) +
           static_cast<double>(*std::max_element(of_rank.begin(), of_rank.end())) *
               static_cast<double>(copy_bytes(request)) / link(request).bytes_per_s +
           (exports.empty() ? 0.0 : 2.0 * link(request).latency_s);
  }
};

}  // namespace lrmoe
