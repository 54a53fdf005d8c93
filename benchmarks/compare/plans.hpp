// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "finding.hpp"
#include "layer_results.hpp"

namespace bench::compare {

/// Whether two plans are the same in everything that decides who computes what. Empty, or what differs.
inline std::string difference_of(const plan_record& a, const plan_record& b) {
  const auto move = [](const lrmoe::source_move& m) {
    return std::tuple(m.source, m.from, m.to, m.count);
  };
  const auto same_moves = [&] {
    return std::equal(a.replicas.moves.begin(), a.replicas.moves.end(), b.replicas.moves.begin(),
                      b.replicas.moves.end(),
                      [&](const auto& l, const auto& r) { return move(l) == move(r); });
  };
  if (a.made.source_counts != b.made.source_counts) return "counts";
  if (a.made.quotas != b.made.quotas) return "quotas";
  if (a.made.source_quotas != b.made.source_quotas) return "shares of the quotas";
  if (a.expert_of_slot != b.expert_of_slot) return "placement";
  if (a.replicas.counts != b.replicas.counts) return "pairs of replicas";
  if (a.replicas.quotas != b.replicas.quotas) return "quotas of replicas";
  if (a.replicas.expert != b.replicas.expert || a.replicas.rank != b.replicas.rank)
    return "segments";
  return same_moves() ? "" : "moves";
}

/// A candidate's plan: the same on all its ranks, the same as the host's where routing is, and what can be
/// counted again from the routing, with whole numbers alone.
template <class Element>
class plan_check {
 public:
  plan_check(const layer_inputs<Element>& in, const layer_results<Element>& results)
      : in_(in), results_(results) {}

  finding ranks_agree() const {
    for (std::size_t r = 1; r < results_.plans.size(); ++r) {
      const auto what = difference_of(results_.plans[0], results_.plans[r]);
      if (!what.empty())
        return {"plan/ranks", false, static_cast<double>(r), "rank",
                fmt::format("ranks 0 and {} differ in {}", r, what)};
    }
    return {"plan/ranks", true, 0, "ranks", "the same plan on every rank"};
  }

  /// `twin` is another candidate's results of the same element type and inputs.
  finding equals(const std::string& name, const std::vector<plan_record>& plans,
                 const std::vector<index_type>& experts) const {
    if (experts != results_.experts)
      return {"plan/twin", true, 0, "plans", "routing differs by rounding, so plans may too"};
    for (std::size_t r = 0; r < plans.size(); ++r) {
      const auto what = difference_of(plans[r], results_.plans[r]);
      if (!what.empty())
        return {"plan/twin", false, 1, "plans",
                fmt::format("differs from {}'s in {} on rank {}", name, what, r)};
    }
    return {"plan/twin", true, 0, "plans", "bit by bit that of " + name};
  }

  finding recount() const {
    const std::string what = what_is_wrong();
    const auto& plan = results_.plans[0];
    return {"plan/recount", what.empty(), what.empty() ? 0.0 : 1.0, "plans",
            what.empty() ? fmt::format("{} segments, {} kept pairs move", plan.replicas.H,
                                       results_.pairs_moved)
                         : what};
  }

 private:
  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

  /// Largest remainders of q n[s] / L, ties to the lowest source.
  static std::vector<index_type> shares(std::int64_t q, const std::vector<std::int64_t>& n) {
    const std::int64_t L = std::accumulate(n.begin(), n.end(), std::int64_t{0});
    std::vector<index_type> share(n.size(), 0);
    if (L == 0) return share;
    std::vector<std::size_t> order(n.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::int64_t left = q;
    for (std::size_t s = 0; s < n.size(); ++s) {
      share[s] = static_cast<index_type>(q * n[s] / L);
      left -= share[s];
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return q * n[a] % L > q * n[b] % L; });
    for (std::int64_t i = 0; i < left; ++i) ++share[order[index(i)]];
    return share;
  }

  std::string what_is_wrong() const {
    const auto& plan = results_.plans[0];
    const std::int64_t R = in_.of.R, E = in_.of.shape.E, K = in_.of.shape.K, H = plan.replicas.H;
    if (plan.made.R != R || plan.made.E != E) return "the plan is of another R or E";
    std::vector<index_type> counts(index(R * E), 0);
    for (std::int64_t rank = 0; rank < R; ++rank)
      for (std::int64_t p = first_token(in_.of, rank) * K; p < first_token(in_.of, rank + 1) * K;
           ++p)
        if (const auto e = results_.experts[index(p)]; e >= 0 && e < E)
          ++counts[index(rank * E + e)];
    if (counts != plan.made.source_counts) return "counts differ from the routing's";
    for (std::int64_t e = 0; e < E; ++e) {
      std::vector<std::int64_t> n;
      for (std::int64_t s = 0; s < R; ++s) n.push_back(counts[index(s * E + e)]);
      const std::int64_t L = std::accumulate(n.begin(), n.end(), std::int64_t{0});
      const std::int64_t q =
          in_.of.estimator == estimator_kind::exact
              ? L
              : static_cast<std::int64_t>(std::ceil(in_.of.keep * static_cast<double>(L)));
      if (plan.made.quotas[index(e)] != q)
        return fmt::format("quota {} of expert {} with {} pairs should be {}",
                           plan.made.quotas[index(e)], e, L, q);
      const auto share = shares(q, n);
      for (std::int64_t s = 0; s < R; ++s) {
        if (plan.made.source_quotas[index(s * E + e)] != share[index(s)])
          return fmt::format("share {} of source {} in expert {} should be {}",
                             plan.made.source_quotas[index(s * E + e)], s, e, share[index(s)]);
        std::int64_t pairs = 0;
        for (std::int64_t h = 0; h < H; ++h)
          if (plan.replicas.expert[index(h)] == e) pairs += plan.replicas.count(s, h);
        if (pairs != n[index(s)])
          return fmt::format("replicas of expert {} get {} of {} pairs of source {}", e, pairs,
                             n[index(s)], s);
      }
      std::int64_t kept = 0;
      for (std::int64_t s = 0; s < R; ++s)
        for (std::int64_t h = 0; h < H; ++h) {
          if (plan.replicas.expert[index(h)] != e) continue;
          if (plan.replicas.quota(s, h) > plan.replicas.count(s, h))
            return fmt::format("segment {} keeps more of source {} than it has", h, s);
          kept += plan.replicas.quota(s, h);
        }
      if (kept != q)
        return fmt::format("replicas of expert {} keep {} pairs instead of {}", e, kept, q);
    }
    return placement_fault(plan);
  }

  /// Every segment is a slot that holds its expert.
  std::string placement_fault(const plan_record& plan) const {
    const auto S = static_cast<std::int64_t>(plan.expert_of_slot.size()) / in_.of.R;
    for (std::int64_t h = 0; h < plan.replicas.H && in_.of.R > 1; ++h) {
      const std::int64_t slot = plan.replicas.rank[index(h)] * S + plan.replicas.slot[index(h)];
      if (plan.expert_of_slot[index(slot)] != plan.replicas.expert[index(h)])
        return fmt::format("segment {} computes expert {} in a slot that holds {}", h,
                           plan.replicas.expert[index(h)], plan.expert_of_slot[index(slot)]);
    }
    return {};
  }

  const layer_inputs<Element>& in_;
  const layer_results<Element>& results_;
};

}  // namespace bench::compare
