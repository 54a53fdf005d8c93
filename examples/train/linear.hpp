// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <string>

#include "multiply.hpp"
#include "parameters.hpp"

namespace train {

/// y = x W, without a bias.
class linear {
 public:
  linear(parameter_list& parameters, const std::string& name, std::int64_t inputs,
         std::int64_t outputs, double deviation) {
    const parameter& weight = parameters.add_random(name, inputs * outputs, deviation);
    weight_ = matrix(weight.value.data(), inputs, outputs);
    gradient_ = matrix(weight.gradient.data(), inputs, outputs);
  }

  /// y = x W + beta * y.   x (T, inputs), y (T, outputs)
  void forward(const const_matrix& x, const matrix& y, float beta = 0.0f) const {
    multiply("train::linear::forward", transpose::no, x, transpose::no, weight_, beta, y);
  }

  /// dW += xᵀ dy; dx = dy Wᵀ + beta * dx.
  void backward(const const_matrix& x, const const_matrix& dy, const matrix& dx,
                float beta = 0.0f) const {
    multiply("train::linear::weight_gradient", transpose::yes, x, transpose::no, dy, 1.0f,
             gradient_);
    multiply("train::linear::input_gradient", transpose::no, dy, transpose::yes, weight_, beta, dx);
  }

 private:
  matrix weight_;    // (inputs, outputs)
  matrix gradient_;  // (inputs, outputs)
};

}  // namespace train
