// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>

#include "host.hpp"

namespace train {

/// Rotary positions: within each head, elements i and i + N/2 of a row at position c are turned by
/// the angle c * base^(-2i/N), so that products of queries and keys see distances only.
class rotary {
 public:
  rotary(std::int64_t context, std::int64_t heads, std::int64_t head_width)
      : heads_(heads),
        cosine_("train::rotary::cosine", context, head_width / 2),
        sine_("train::rotary::sine", context, head_width / 2) {
    for (std::int64_t c = 0; c < context; ++c) {
      for (std::int64_t i = 0; i < head_width / 2; ++i) {
        const double angle =
            static_cast<double>(c) *
            std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(head_width));
        cosine_(c, i) = static_cast<float>(std::cos(angle));
        sine_(c, i) = static_cast<float>(std::sin(angle));
      }
    }
  }

  /// Turns the first `parts` (queries, keys) of the D columns each of rows (T, at least parts*D)
  /// in place; direction -1 turns back, which is the backward of direction +1.
  void apply(const matrix& rows, std::int64_t parts, float direction) const {
    const auto cosine = cosine_;
    const auto sine = sine_;
    const auto context = static_cast<std::int64_t>(cosine.extent(0));
    const auto half = static_cast<std::int64_t>(cosine.extent(1));
    const std::int64_t heads = heads_ * parts;
    const auto stride = static_cast<std::int64_t>(rows.extent(1));
    for_chunks("train::rotary::apply", static_cast<std::int64_t>(rows.extent(0)), rows_per_chunk,
               [=](std::int64_t, std::int64_t begin, std::int64_t end) {
                 for (std::int64_t t = begin; t < end; ++t) {
                   const float* cos_row = cosine.data() + (t % context) * half;
                   const float* sin_row = sine.data() + (t % context) * half;
                   for (std::int64_t head = 0; head < heads; ++head) {
                     float* low = rows.data() + t * stride + head * 2 * half;
                     float* high = low + half;
#pragma omp simd
                     for (std::int64_t i = 0; i < half; ++i) {
                       const float s = direction * sin_row[i];
                       const float a = low[i];
                       const float b = high[i];
                       low[i] = a * cos_row[i] - b * s;
                       high[i] = a * s + b * cos_row[i];
                     }
                   }
                 }
               });
  }

 private:
  std::int64_t heads_;
  matrix cosine_;  // (C, N/2)
  matrix sine_;    // (C, N/2)
};

}  // namespace train
