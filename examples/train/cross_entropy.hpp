// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>

#include <lrmoe/openmp/experts/silu.hpp>

#include "host.hpp"

namespace train {

/// Loss of every row, -log softmax(logits_t)[target_t], into losses (T); with `with_gradient`,
/// logits (T, V) become the gradient of the mean loss, (softmax - onehot) / mean_over: as many rows as
/// all ranks have together.
inline void cross_entropy(const matrix& logits, const const_tokens& target,
                          const Kokkos::View<double*, Kokkos::LayoutRight, device>& losses,
                          bool with_gradient, std::int64_t mean_over) {
  const auto rows = static_cast<std::int64_t>(logits.extent(0));
  const auto vocabulary = static_cast<std::int64_t>(logits.extent(1));
  for_chunks("train::cross_entropy::rows", rows, rows_per_chunk,
             [=](std::int64_t, std::int64_t begin, std::int64_t end) {
               for (std::int64_t t = begin; t < end; ++t) {
                 float* row = logits.data() + t * vocabulary;
                 float largest = row[0];
#pragma omp simd reduction(max : largest)
                 for (std::int64_t v = 0; v < vocabulary; ++v) largest = std::max(largest, row[v]);
                 const float of_target = row[target(t)] - largest;
                 float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
                 for (std::int64_t v = 0; v < vocabulary; ++v) {
                   row[v] = lrmoe::openmp::exponential(row[v] - largest);
                   sum += row[v];
                 }
                 losses(t) = std::log(static_cast<double>(sum)) - static_cast<double>(of_target);
                 if (!with_gradient) continue;
                 const float scale = 1.0f / (sum * static_cast<float>(mean_over));
#pragma omp simd
                 for (std::int64_t v = 0; v < vocabulary; ++v) row[v] *= scale;
                 row[target(t)] -= 1.0f / static_cast<float>(mean_over);
               }
             });
}

}  // namespace train
