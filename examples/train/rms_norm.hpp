// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <string>

#include "parameters.hpp"

namespace train {

/// y = x / rms(x) * gain, per row.
class rms_norm {
 public:
  rms_norm(parameter_list& parameters, const std::string& name, std::int64_t width,
           std::int64_t max_rows)
      : width_(width), inverse_rms_(name + "::inverse_rms", max_rows) {
    const parameter& gain = parameters.add_ones(name, width);
    gain_ = gain.value;
    gradient_ = gain.gradient;
    partial_ = matrix(name + "::partial", (max_rows + rows_per_chunk - 1) / rows_per_chunk, width);
  }

  void forward(const const_matrix& x, const matrix& y) const {
    const auto gain = gain_;
    const auto inverse_rms = inverse_rms_;
    const std::int64_t width = width_;
    for_chunks("train::rms_norm::forward", static_cast<std::int64_t>(x.extent(0)), rows_per_chunk,
               [=](std::int64_t, std::int64_t begin, std::int64_t end) {
                 for (std::int64_t t = begin; t < end; ++t) {
                   const float* row = x.data() + t * width;
                   float* out = y.data() + t * width;
                   float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
                   for (std::int64_t d = 0; d < width; ++d) squares += row[d] * row[d];
                   const float scale =
                       1.0f / std::sqrt(squares / static_cast<float>(width) + epsilon);
                   inverse_rms(t) = scale;
#pragma omp simd
                   for (std::int64_t d = 0; d < width; ++d) out[d] = row[d] * scale * gain[d];
                 }
               });
  }

  /// Adds to dx (the gradient that flows past the norm on the residual path) and to the gain's
  /// gradient. x and the rows of inverse_rms_ are those of the last forward.
  void backward(const const_matrix& x, const const_matrix& dy, const matrix& dx) const {
    const auto gain = gain_;
    const auto inverse_rms = inverse_rms_;
    const auto partial = partial_;
    const auto gradient = gradient_;
    const std::int64_t width = width_;
    const auto rows = static_cast<std::int64_t>(x.extent(0));
    for_chunks("train::rms_norm::backward", rows, rows_per_chunk,
               [=](std::int64_t chunk, std::int64_t begin, std::int64_t end) {
                 float* sums = partial.data() + chunk * width;
                 std::fill(sums, sums + width, 0.0f);
                 for (std::int64_t t = begin; t < end; ++t) {
                   const float* row = x.data() + t * width;
                   const float* dout = dy.data() + t * width;
                   float* din = dx.data() + t * width;
                   const float scale = inverse_rms(t);
                   float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
                   for (std::int64_t d = 0; d < width; ++d) dot += dout[d] * gain[d] * row[d];
                   const float along = dot * scale * scale / static_cast<float>(width);
#pragma omp simd
                   for (std::int64_t d = 0; d < width; ++d) {
                     din[d] += scale * (dout[d] * gain[d] - row[d] * along);
                     sums[d] += dout[d] * row[d] * scale;
                   }
                 }
               });
    const std::int64_t chunks = (rows + rows_per_chunk - 1) / rows_per_chunk;
    for_chunks("train::rms_norm::gain_gradient", width, 64,
               [=](std::int64_t, std::int64_t begin, std::int64_t end) {
                 for (std::int64_t chunk = 0; chunk < chunks; ++chunk)
                   for (std::int64_t d = begin; d < end; ++d) gradient(d) += partial(chunk, d);
               });
  }

  static constexpr float epsilon = 1e-6f;

 private:
  std::int64_t width_;
  vector gain_;         // (D)
  vector gradient_;     // (D)
  vector inverse_rms_;  // (T)
  matrix partial_;      // (chunks of rows, D): each chunk's part of the gain's gradient
};

}  // namespace train
