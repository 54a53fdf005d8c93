// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <string>

#include <lrmoe/openmp/experts/silu.hpp>

#include "linear.hpp"
#include "rotary.hpp"

namespace train {

/// Causal self-attention with rotary positions; sequences of C rows lie one after the other.
///   [q k v] = x W_qkv, turned;  p = softmax(q kᵀ / √N) over the past;  y += (p v) W_out
/// Tasks are (sequence, head); within one, queries go in blocks so that most of the future, which
/// is masked, is never computed.
class attention {
 public:
  attention(parameter_list& parameters, const std::string& name, std::int64_t width,
            std::int64_t heads, std::int64_t context, std::int64_t max_sequences,
            double input_deviation, double output_deviation)
      : width_(width),
        heads_(heads),
        context_(context),
        project_in_(parameters, name + ".qkv", width, 3 * width, input_deviation),
        project_out_(parameters, name + ".out", width, width, output_deviation),
        positions_(context, heads, width / heads),
        qkv_(name + "::qkv", max_sequences * context, 3 * width),
        mixed_(name + "::mixed", max_sequences * context, width),
        probabilities_(name + "::probabilities", max_sequences * heads, context, context),
        dqkv_(name + "::dqkv", max_sequences * context, 3 * width),
        dmixed_(name + "::dmixed", max_sequences * context, width),
        dscores_(name + "::dscores", max_sequences * heads, query_rows, context) {}

  /// y += attention(x).   x (T, D), y (T, D), T a multiple of C
  void forward(const const_matrix& x, const matrix& y) const {
    const auto rows = static_cast<std::int64_t>(x.extent(0));
    const matrix qkv = first_rows(qkv_, rows);
    project_in_.forward(x, qkv);
    positions_.apply(qkv, 2, 1.0f);
    mix(qkv, first_rows(mixed_, rows));
    project_out_.forward(first_rows(mixed_, rows), y, 1.0f);
  }

  /// dx = gradient of the last forward's x, given dy.
  void backward(const const_matrix& x, const const_matrix& dy, const matrix& dx) const {
    const auto rows = static_cast<std::int64_t>(x.extent(0));
    const matrix dqkv = first_rows(dqkv_, rows);
    project_out_.backward(first_rows(mixed_, rows), dy, first_rows(dmixed_, rows));
    mix_backward(first_rows(dmixed_, rows), dqkv);
    positions_.apply(dqkv, 2, -1.0f);
    project_in_.backward(x, dqkv, dx);
  }

 private:
  static constexpr std::int64_t query_rows = 64;

  void mix(const matrix& qkv, const matrix& mixed) const {
    const std::int64_t D = width_, C = context_, H = heads_, N = width_ / heads_;
    const auto probabilities = probabilities_;
    const float scale = 1.0f / std::sqrt(static_cast<float>(N));
    const auto sequences = static_cast<std::int64_t>(qkv.extent(0)) / C;
    for_chunks("train::attention::mix", sequences * H, 1,
               [=](std::int64_t task, std::int64_t, std::int64_t) {
                 const std::int64_t b = task / H, head = task % H;
                 const float* q = qkv.data() + b * C * 3 * D + head * N;
                 const float* k = q + D;
                 const float* v = k + D;
                 float* p = probabilities.data() + task * C * C;
                 float* out = mixed.data() + b * C * D + head * N;
                 for (std::int64_t begin = 0; begin < C; begin += query_rows) {
                   const std::int64_t end = std::min(begin + query_rows, C);
                   float* block = p + begin * C;
                   small_multiply(transpose::no, transpose::yes, end - begin, end, N, scale,
                                  q + begin * 3 * D, 3 * D, k, 3 * D, 0.0f, block, C);
                   for (std::int64_t i = begin; i < end; ++i) softmax_of_past(p + i * C, i, end);
                   small_multiply(transpose::no, transpose::no, end - begin, N, end, 1.0f, block, C,
                                  v, 3 * D, 0.0f, out + begin * D, D);
                 }
               });
  }

  /// Softmax of row[0..i]; row(i..end) = 0.
  static void softmax_of_past(float* row, std::int64_t i, std::int64_t end) {
    float largest = row[0];
#pragma omp simd reduction(max : largest)
    for (std::int64_t j = 0; j <= i; ++j) largest = std::max(largest, row[j]);
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t j = 0; j <= i; ++j) {
      row[j] = lrmoe::openmp::exponential(row[j] - largest);
      sum += row[j];
    }
    const float inverse = 1.0f / sum;
#pragma omp simd
    for (std::int64_t j = 0; j <= i; ++j) row[j] *= inverse;
    std::fill(row + i + 1, row + end, 0.0f);
  }

  void mix_backward(const matrix& dmixed, const matrix& dqkv) const {
    const std::int64_t D = width_, C = context_, H = heads_, N = width_ / heads_;
    const auto qkv = qkv_;
    const auto probabilities = probabilities_;
    const auto dscores = dscores_;
    const float scale = 1.0f / std::sqrt(static_cast<float>(N));
    const auto sequences = static_cast<std::int64_t>(dmixed.extent(0)) / C;
    for_chunks("train::attention::mix_backward", sequences * H, 1,
               [=](std::int64_t task, std::int64_t, std::int64_t) {
                 const std::int64_t b = task / H, head = task % H;
                 const std::int64_t offset = b * C * 3 * D + head * N;
                 const float* q = qkv.data() + offset;
                 const float* k = q + D;
                 const float* v = k + D;
                 float* dq = dqkv.data() + offset;
                 float* dk = dq + D;
                 float* dv = dk + D;
                 const float* p = probabilities.data() + task * C * C;
                 const float* dout = dmixed.data() + b * C * D + head * N;
                 float* ds = dscores.data() + task * query_rows * C;
                 // The last block of queries sees all keys: it writes dk and dv, the others add.
                 for (std::int64_t begin = (C - 1) / query_rows * query_rows; begin >= 0;
                      begin -= query_rows) {
                   const std::int64_t end = std::min(begin + query_rows, C);
                   const float add = end == C ? 0.0f : 1.0f;
                   small_multiply(transpose::no, transpose::yes, end - begin, end, N, 1.0f,
                                  dout + begin * D, D, v, 3 * D, 0.0f, ds, C);
                   small_multiply(transpose::yes, transpose::no, end, N, end - begin, 1.0f,
                                  p + begin * C, C, dout + begin * D, D, add, dv, 3 * D);
                   for (std::int64_t i = begin; i < end; ++i) {
                     const float* p_row = p + i * C;
                     float* ds_row = ds + (i - begin) * C;
                     float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
                     for (std::int64_t j = 0; j < end; ++j) dot += p_row[j] * ds_row[j];
#pragma omp simd
                     for (std::int64_t j = 0; j < end; ++j)
                       ds_row[j] = p_row[j] * (ds_row[j] - dot);
                   }
                   small_multiply(transpose::no, transpose::no, end - begin, N, end, scale, ds, C,
                                  k, 3 * D, 0.0f, dq + begin * 3 * D, 3 * D);
                   small_multiply(transpose::yes, transpose::no, end, N, end - begin, scale, ds, C,
                                  q + begin * 3 * D, 3 * D, add, dk, 3 * D);
                 }
               });
  }

  std::int64_t width_, heads_, context_;
  linear project_in_, project_out_;
  rotary positions_;
  matrix qkv_;            // (T, 3D) queries and keys turned
  matrix mixed_;          // (T, D)
  tensor probabilities_;  // (B*H, C, C), written up to each block's last query
  matrix dqkv_;           // (T, 3D)
  matrix dmixed_;         // (T, D)
  tensor dscores_;        // (B*H, query_rows, C)
};

}  // namespace train
