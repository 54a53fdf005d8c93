// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <lrmoe/placement/movement.hpp>
#include <lrmoe/placement/planner.hpp>

namespace lrmoe {

/// What one call of a layer takes under a plan: a model, not a measurement.
///   time[r]  = pair_s x pairs that r runs
///            + rows: 4 x the row bytes of pairs that r sends away or runs for others, larger direction
///            + weights, gradients, optimizer state: the bytes of `movement`, larger direction
///   step     = max over r of time[r]
/// Bytes inside a node and across nodes take their links one after the other; every exchange that has
/// anything to carry adds its link's latency once. Nothing overlaps.
class step_time {
 public:
  /// Shapes    split (R, H)
  /// Cost      O(R H) and that of movement; nothing is allocated while sizes do not grow
  void predict(const placement_request& request, const planner_attributes& attributes,
               const placement_plan& plan, std::span<const index_type> split) {
    const placement& where = plan.replicas;
    const std::int64_t R = request.R, H = where.replicas();
    loads_.assign(static_cast<std::size_t>(R), 0);
    rows_.assign(static_cast<std::size_t>(R), {});
    for (std::int64_t s = 0; s < R; ++s) {
      link_bytes& from = rows_[static_cast<std::size_t>(s)];
      for (std::int64_t h = 0; h < H; ++h) {
        const std::int64_t x = split[static_cast<std::size_t>(s * H + h)];
        const index_type rank = where.ranks()[static_cast<std::size_t>(h)];
        loads_[static_cast<std::size_t>(rank)] += x;
        if (rank == s) continue;
        link_bytes& to = rows_[static_cast<std::size_t>(rank)];
        const bool inside = request.node_of(s) == request.node_of(rank);
        (inside ? from.sent_inside : from.sent_across) += x * request.costs.row_bytes;
        (inside ? to.received_inside : to.received_across) += x * request.costs.row_bytes;
      }
    }
    movement_.count(request, attributes, where);
    peak_load_ = step_s_ = 0;
    for (std::int64_t r = 0; r < R; ++r) {
      const auto i = static_cast<std::size_t>(r);
      peak_load_ = std::max(peak_load_, loads_[i]);
      double s = request.costs.pair_s * static_cast<double>(loads_[i]) +
                 4 * link_s(request.machine, rows_[i]);
      for (const auto what : {moved_state::weights, moved_state::gradients, moved_state::optimizer})
        s += link_s(request.machine, movement_.of(what, r));
      step_s_ = std::max(step_s_, s);
    }
  }

  double step_s() const { return step_s_; }
  std::int64_t peak_load() const { return peak_load_; }           ///< pairs
  std::span<const std::int64_t> loads() const { return loads_; }  ///< (R) pairs
  const class movement& movement() const { return movement_; }
  /// Bytes of all pairs' rows between ranks, four ways.
  std::int64_t row_bytes() const {
    std::int64_t sum = 0;
    for (const link_bytes& of_rank : rows_) sum += 4 * of_rank.sent();
    return sum;
  }

  /// Time of an exchange on one rank.
  static double link_s(const machine_rates& machine, const link_bytes& bytes) {
    const auto of_link = [](const link_rate& link, std::int64_t sent, std::int64_t received) {
      const std::int64_t larger = std::max(sent, received);
      return larger == 0 ? 0.0 : link.latency_s + static_cast<double>(larger) / link.bytes_per_s;
    };
    return of_link(machine.inside, bytes.sent_inside, bytes.received_inside) +
           of_link(machine.across, bytes.sent_across, bytes.received_across);
  }

 private:
  std::vector<std::int64_t> loads_;
  std::vector<link_bytes> rows_;
  class movement movement_;
  std::int64_t peak_load_ = 0;
  double step_s_ = 0;
};

}  // namespace lrmoe
