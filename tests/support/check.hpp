// Comparison of a tensor with the oracle's, element by element, reported per tensor and per row.
//
// An element passes if |got - exact| <= error, where the oracle derives `error` from the arithmetic
// (see oracle.hpp); NaN and infinity never pass. No constant is tuned.
#pragma once

#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "oracle.hpp"

namespace check {

struct comparison {
  bool passed = true;
  std::string message;
};

inline comparison compare(const std::string& name, const std::vector<double>& got,
                          const oracle::tensor& expected) {
  std::ostringstream text;
  text.precision(9);
  if (got.size() != expected.data.size()) {
    text << name << " has " << got.size() << " elements, the oracle " << expected.data.size();
    return {false, text.str()};
  }
  oracle::integer wrong_rows = 0, wrong = 0;
  std::size_t worst = 0;
  double worst_ratio = 0.0;
  for (oracle::integer r = 0; r < expected.rows; ++r) {
    bool row_passed = true;
    for (oracle::integer c = 0; c < expected.columns; ++c) {
      const auto i = static_cast<std::size_t>(r * expected.columns + c);
      const double deviation = std::abs(got[i] - expected.data[i].value);
      if (deviation <= expected.data[i].error) continue;
      row_passed = false;
      ++wrong;
      double ratio = deviation / expected.data[i].error;
      if (std::isnan(ratio)) ratio = std::numeric_limits<double>::infinity();
      if (ratio > worst_ratio) worst_ratio = ratio, worst = i;
    }
    if (!row_passed) ++wrong_rows;
  }
  if (wrong == 0) return {true, name + " agrees with the oracle"};
  const auto columns = static_cast<std::size_t>(expected.columns);
  text << name << ": " << wrong_rows << " of " << expected.rows << " rows (" << wrong
       << " elements) deviate; worst at row " << worst / columns << ", column " << worst % columns
       << ": got " << got[worst] << ", exact " << expected.data[worst].value << ", allowed error "
       << expected.data[worst].error << " (" << worst_ratio << " times)";
  return {false, text.str()};
}

inline void check_close(const std::string& name, const std::vector<double>& got,
                        const oracle::tensor& expected) {
  const comparison result = compare(name, got, expected);
  INFO(result.message);
  CHECK(result.passed);
}

/// Every tensor of a backward pass; the message names the ones that deviate.
inline comparison compare(const oracle::gradients& got, const oracle::gradients& expected) {
  comparison result;
  const auto one = [&](const char* name, const oracle::tensor& a, const oracle::tensor& b) {
    const comparison part = compare(name, a.values(), b);
    if (!part.passed) result = {false, result.message + part.message + "\n"};
  };
  one("dx", got.dx, expected.dx);
  one("d_weights", got.d_weights, expected.d_weights);
  one("d_gate_up", got.gate_up, expected.gate_up);
  one("d_down", got.down, expected.down);
  one("d_shared_gate_up", got.shared_gate_up, expected.shared_gate_up);
  one("d_shared_down", got.shared_down, expected.shared_down);
  return result;
}

}  // namespace check
