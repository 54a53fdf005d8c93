// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/estimator/estimator.hpp>

namespace lrmoe {

/// What a selection costs in gradient quality, from scores alone. Scores are the squared norms of the
/// pairs' contributions to dW_down (lrm_score.hpp), whatever scorer chose the pairs.
struct certificate {
  double score_total = 0;      ///< sum over all rows of score
  double score_kept = 0;       ///< sum over kept rows; no quality measure, see docs/method.md
  double added_variance = 0;   ///< sum over reachable rows of (1/pi - 1) score
  double bias_bound = 0;       ///< sum over unreachable rows of sqrt(score) >= norm of the bias
  std::int64_t nonfinite = 0;  ///< rows whose score is NaN or infinite; left out of the sums

  certificate() = default;
  // Kokkos' team reductions start from the literal 0.
  KOKKOS_FUNCTION explicit certificate(int /*zero*/) {}
  KOKKOS_FUNCTION certificate& operator+=(const certificate& other) {
    score_total += other.score_total;
    score_kept += other.score_kept;
    added_variance += other.added_variance;
    bias_bound += other.bias_bound;
    nonfinite += other.nonfinite;
    return *this;
  }
};

/// Certificate of every segment into `of_expert` (E).
/// added_variance is exactly the expected squared error of dW_down under independent (Poisson) draws
/// with these inclusion probabilities. Draws of fixed size have the same probabilities but correlated
/// inclusions, so for them it is an estimate, usually on the high side: close where inclusions are
/// nearly independent (pps shuffled) or contributions point in unrelated directions, and for uniform
/// and top_plus_sampled at least (n-1)/n of the error, n being an expert's rows that are not certain.
/// bias_bound counts rows of inclusion 0. Those are the dropped rows of a rule that is biased (also of
/// uniform without scaling), so that it bounds the error of this very draw; and rows of an expert
/// whose quota is 0, which no unbiased rule can reach either.
/// Shapes    contributions, kept.inclusion (P) by row: sqrt of score and probability
/// Numerics  sums in double, in an order that the extents fix: deterministic
/// Order     asynchronous on the space; one team a segment
template <class ExecutionSpace, class Device, class Unit = detail::translation_unit>
void certify(const ExecutionSpace& space, const segments<Device>& rows,
             const vector_view<const float, Device>& contributions, const selection<Device>& kept,
             const vector_view<certificate, Device>& of_expert) {
  using team_policy = Kokkos::TeamPolicy<ExecutionSpace>;
  using team_member = typename team_policy::member_type;
  Kokkos::parallel_for(
      "lrmoe::certificate::sum",
      team_policy(space, static_cast<int>(of_expert.extent(0)), Kokkos::AUTO),
      KOKKOS_LAMBDA(const team_member& team) {
        const int e = team.league_rank();
        certificate sum, of_kept;
        Kokkos::parallel_reduce(
            Kokkos::TeamThreadRange(team, rows.offsets(e), rows.offsets(e + 1)),
            [&](const index_type r, certificate& part) {
              const double root = contributions(r);
              if (!Kokkos::isfinite(root)) {
                ++part.nonfinite;
                return;
              }
              const double score = root * root;
              const double probability = kept.inclusion(r);
              part.score_total += score;
              if (probability > 0.0) {
                part.added_variance += (1.0 / probability - 1.0) * score;
              } else {
                part.bias_bound += root;
              }
            },
            sum);
        Kokkos::parallel_reduce(
            Kokkos::TeamThreadRange(team, rows.kept_offsets(e), rows.kept_offsets(e + 1)),
            [&](const index_type m, certificate& part) {
              const double root = contributions(kept.rows(m));
              if (Kokkos::isfinite(root)) part.score_kept += root * root;
            },
            of_kept);
        Kokkos::single(Kokkos::PerTeam(team), [&] {
          sum.score_kept = of_kept.score_kept;
          of_expert(e) = sum;
        });
      });
}

}  // namespace lrmoe
