// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <lrmoe/placement/home_placement.hpp>
#include <lrmoe/placement/load_history.hpp>
#include <lrmoe/placement/planner.hpp>

namespace lrmoe {

/// Where the experts of one layer are, call by call: asks a planner, and remembers loads and where the
/// experts' weights lie. Equal calls on all ranks keep all ranks' placers equal.
class expert_placer {
 public:
  /// Everything on the only rank.
  /// Shapes    source_counts (1, E)
  void stay(std::int64_t E, std::span<const index_type> source_counts) {
    if (placed_.replicas.R() != 1 || placed_.replicas.E() != E) {
      placed_.replicas = home_placement(1, E, E);
      settle();
    }
    home_.assign(static_cast<std::size_t>(E), 0);
    split_.assign(source_counts.begin(), source_counts.end());
  }

  /// Place the experts of a call on S slots of each of R ranks, and split its pairs.
  /// Shapes    request.source_counts (R, E); home, current and history are filled in here
  /// Ensures   the results stay valid until the next call. Loads of this call are history from now on,
  ///           also when the call is refused later
  /// Throws    as the planner
  template <planner Planner>
  void place(const Planner& policy, placement_request request) {
    const std::int64_t R = request.R, S = request.S, E = request.E;
    if (weights_at_.R() != R || weights_at_.S() != S || weights_at_.E() != E) {
      weights_at_ = home_placement(R, S, E);
      home_ = home_ranks(R, E);
      loads_.clear();
    }
    const std::int64_t window = policy.attributes().window;
    if (loads_.window() != window) loads_ = load_history(window);
    request.home = home_;
    request.current = &weights_at_;
    request.history = &loads_;
    policy.plan(request, placed_);
    split_.resize(static_cast<std::size_t>(R * placed_.replicas.replicas()));
    policy.split(request, placed_, split_);
    loads_.record(R, E, request.source_counts);
    count_work();
  }

  const placement& where() const { return placed_.replicas; }
  std::span<const index_type> split() const { return split_; }  ///< (R, H)
  std::span<const index_type> home() const { return home_; }    ///< (E)
  /// Pairs that each rank computes in forward, and over how many experts. (R), after place().
  std::span<const std::int64_t> pairs_of_rank() const { return pairs_; }
  std::span<const std::int64_t> experts_of_rank() const { return experts_; }

  /// Whether weights have to move before the call. A call that is refused moves none, so they stay where
  /// settle() was told.
  bool moves() const { return !(placed_.replicas == weights_at_); }
  /// The weights are where the experts are.
  void settle() { weights_at_ = placed_.replicas; }

 private:
  void count_work() {
    const placement& where = placed_.replicas;
    const auto R = static_cast<std::size_t>(where.R());
    const auto H = static_cast<std::size_t>(where.replicas());
    pairs_.assign(R, 0);
    experts_.assign(R, 0);
    for (std::size_t h = 0; h < H; ++h) {
      std::int64_t pairs = 0;
      for (std::size_t s = 0; s < R; ++s) pairs += split_[s * H + h];
      const auto r = static_cast<std::size_t>(where.ranks()[h]);
      pairs_[r] += pairs;
      experts_[r] += pairs > 0 ? 1 : 0;
    }
  }

  placement_plan placed_;
  placement weights_at_;
  load_history loads_;
  std::vector<index_type> home_, split_;
  std::vector<std::int64_t> pairs_, experts_;
};

}  // namespace lrmoe
