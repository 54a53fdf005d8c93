// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <string>

#include <lrmoe/openmp/experts/silu.hpp>

#include "host.hpp"

namespace train {

/// Auxiliary loss that is least, 1, when all experts get the same load (Switch, Qwen3-MoE).
///   loss = E sum_e f_e mean_t p_te,   p = softmax(logits),   f_e = share of the pairs of expert e
/// f is a count and has no gradient; the router learns through p.
class load_balance {
 public:
  load_balance(const std::string& name, std::int64_t max_rows, std::int64_t experts)
      : probabilities_(name + "::probabilities", max_rows, experts),
        partial_(name + "::partial", (max_rows + rows_per_chunk - 1) / rows_per_chunk, experts),
        share_(name + "::share", experts) {}

  /// Adds coefficient times the gradient to dlogits and returns the loss, of which these rows are a part.
  ///   dlogits_tj += coefficient E/T p_tj (f_j - sum_e f_e p_te)
  /// logits, dlogits (rows, E); counts (E): pairs of each expert; T and counts are of all ranks
  template <class Counts>
  double backward(const const_matrix& logits, const Counts& counts, std::int64_t T,
                  double coefficient, const matrix& dlogits) const {
    const auto rows = static_cast<std::int64_t>(logits.extent(0));
    const auto experts = static_cast<std::int64_t>(logits.extent(1));
    const auto probabilities = probabilities_;
    const auto partial = partial_;
    const auto share = share_;
    for_chunks("train::load_balance::probabilities", rows, rows_per_chunk,
               [=](std::int64_t chunk, std::int64_t begin, std::int64_t end) {
                 float* sums = partial.data() + chunk * experts;
                 std::fill(sums, sums + experts, 0.0f);
                 for (std::int64_t t = begin; t < end; ++t) {
                   const float* row = logits.data() + t * experts;
                   float* p = probabilities.data() + t * experts;
                   float largest = row[0];
                   for (std::int64_t e = 1; e < experts; ++e) largest = std::max(largest, row[e]);
                   float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
                   for (std::int64_t e = 0; e < experts; ++e) {
                     p[e] = lrmoe::openmp::exponential(row[e] - largest);
                     sum += p[e];
                   }
                   const float scale = 1.0f / sum;
#pragma omp simd
                   for (std::int64_t e = 0; e < experts; ++e) {
                     p[e] *= scale;
                     sums[e] += p[e];
                   }
                 }
               });
    space().fence("train::load_balance: counts and sums are read");
    double pairs = 0.0;
    for (const auto count : counts) pairs += count;
    double loss = 0.0;
    const std::int64_t chunks = (rows + rows_per_chunk - 1) / rows_per_chunk;
    for (std::int64_t e = 0; e < experts; ++e) {
      double total = 0.0;
      for (std::int64_t chunk = 0; chunk < chunks; ++chunk) total += partial(chunk, e);
      const double count = counts[static_cast<std::size_t>(e)];
      share(e) = static_cast<float>(count / pairs);
      loss += static_cast<double>(experts) * count / pairs * total / static_cast<double>(T);
    }
    const auto factor =
        static_cast<float>(coefficient * static_cast<double>(experts) / static_cast<double>(T));
    for_chunks("train::load_balance::gradient", rows, rows_per_chunk,
               [=](std::int64_t, std::int64_t begin, std::int64_t end) {
                 for (std::int64_t t = begin; t < end; ++t) {
                   const float* p = probabilities.data() + t * experts;
                   float* d = dlogits.data() + t * experts;
                   float mean = 0.0f;
#pragma omp simd reduction(+ : mean)
                   for (std::int64_t e = 0; e < experts; ++e) mean += share(e) * p[e];
#pragma omp simd
                   for (std::int64_t e = 0; e < experts; ++e)
                     d[e] += factor * p[e] * (share(e) - mean);
                 }
               });
    return loss;
  }

 private:
  matrix probabilities_;  // (T, E)
  matrix partial_;        // (chunks of rows, E): each chunk's sum of probabilities
  vector share_;          // (E)
};

}  // namespace train
