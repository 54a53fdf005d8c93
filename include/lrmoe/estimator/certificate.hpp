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
/// Order     asynchronous on the space. Deterministic: one thread a segment, in row order, double.
template <class ExecutionSpace, class Device>
void certify(const ExecutionSpace& space, const segments<Device>& rows,
             const vector_view<const float, Device>& contributions, const selection<Device>& kept,
             const vector_view<certificate, Device>& of_expert) {
  Kokkos::parallel_for(
      "lrmoe::certificate::sum", Kokkos::RangePolicy<ExecutionSpace>(space, 0, of_expert.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t e) {
        certificate sum;
        for (index_type r = rows.offsets(e); r < rows.offsets(e + 1); ++r) {
          const double root = contributions(r);
          if (!Kokkos::isfinite(root)) {
            ++sum.nonfinite;
            continue;
          }
          const double score = root * root;
          const double probability = kept.inclusion(r);
          sum.score_total += score;
          if (probability > 0.0) {
            sum.added_variance += (1.0 / probability - 1.0) * score;
          } else {
            sum.bias_bound += root;
          }
        }
        for (index_type m = rows.kept_offsets(e); m < rows.kept_offsets(e + 1); ++m) {
          const double root = contributions(kept.rows(m));
          if (Kokkos::isfinite(root)) sum.score_kept += root * root;
        }
        of_expert(e) = sum;
      });
}

}  // namespace lrmoe
