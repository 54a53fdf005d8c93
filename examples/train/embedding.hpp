// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <string>

#include "multiply.hpp"
#include "parameters.hpp"

namespace train {

/// Embedding of tokens, and the output head that shares its table.
///   x_t = table[token_t];   logits = x tableᵀ
class embedding {
 public:
  embedding(parameter_list& parameters, const std::string& name, std::int64_t vocabulary,
            std::int64_t width, double deviation) {
    const parameter& table = parameters.add_random(name, vocabulary * width, deviation);
    table_ = matrix(table.value.data(), vocabulary, width);
    gradient_ = matrix(table.gradient.data(), vocabulary, width);
  }

  /// input (T), x (T, D)
  void forward(const const_tokens& input, const matrix& x) const {
    const auto table = table_;
    const auto width = static_cast<std::int64_t>(table.extent(1));
    for_chunks("train::embedding::forward", static_cast<std::int64_t>(input.extent(0)),
               rows_per_chunk, [=](std::int64_t, std::int64_t begin, std::int64_t end) {
                 for (std::int64_t t = begin; t < end; ++t)
                   std::copy_n(table.data() + input(t) * width, width, x.data() + t * width);
               });
  }

  /// dtable[token_t] += dx_t. Columns, not rows, are shared among threads: rows repeat.
  void backward(const const_tokens& input, const const_matrix& dx) const {
    const auto gradient = gradient_;
    const auto rows = static_cast<std::int64_t>(input.extent(0));
    const auto width = static_cast<std::int64_t>(gradient.extent(1));
    for_chunks("train::embedding::backward", width, 16,
               [=](std::int64_t, std::int64_t begin, std::int64_t end) {
                 for (std::int64_t t = 0; t < rows; ++t) {
                   float* sum = gradient.data() + input(t) * width;
                   const float* row = dx.data() + t * width;
                   for (std::int64_t d = begin; d < end; ++d) sum[d] += row[d];
                 }
               });
  }

  /// x (T, D), logits (T, V)
  void head_forward(const const_matrix& x, const matrix& logits) const {
    multiply("train::head::forward", transpose::no, x, transpose::yes, table_, 0.0f, logits);
  }

  /// dtable += dlogitsᵀ x; dx = dlogits table.
  void head_backward(const const_matrix& x, const const_matrix& dlogits, const matrix& dx) const {
    multiply("train::head::table_gradient", transpose::yes, dlogits, transpose::no, x, 1.0f,
             gradient_);
    multiply("train::head::input_gradient", transpose::no, dlogits, transpose::no, table_, 0.0f,
             dx);
  }

 private:
  matrix table_;     // (V, D)
  matrix gradient_;  // (V, D)
};

}  // namespace train
