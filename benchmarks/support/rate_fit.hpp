// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <array>
#include <cmath>
#include <vector>

namespace bench {

/// One measured time and what it consists of: seconds = sum_j amounts[j] * cost[j].
struct timed_work {
  std::array<double, 3> amounts;
  double seconds;
};

/// Costs, none negative, with the least sum of squared relative errors. Every subset of costs that are
/// not zero is tried: with three there are seven.
inline std::array<double, 3> fit_costs(const std::vector<timed_work>& measured) {
  std::array<double, 3> best{};
  double least = INFINITY;
  for (unsigned used = 1; used < 8; ++used) {
    // Normal equations of the used costs, the others fixed at 0; Gauss with pivots of a symmetric
    // positive matrix needs no exchange of rows, and a singular one is another subset's case.
    double a[3][4] = {};
    for (const auto& m : measured) {
      double row[3];
      for (int j = 0; j < 3; ++j)
        row[j] = (used >> j & 1U) != 0 ? m.amounts[static_cast<std::size_t>(j)] / m.seconds : 0.0;
      for (int i = 0; i < 3; ++i) {
        for (int j = 0; j < 3; ++j) a[i][j] += row[i] * row[j];
        a[i][3] += row[i];
      }
    }
    for (int j = 0; j < 3; ++j)
      if ((used >> j & 1U) == 0) a[j][j] = 1.0;
    // Amounts differ by many orders of magnitude: bring the diagonal to 1 first.
    double unit[3];
    for (int j = 0; j < 3; ++j) unit[j] = std::sqrt(a[j][j]);
    for (int i = 0; i < 3; ++i) {
      for (int j = 0; j < 3; ++j) a[i][j] /= unit[i] * unit[j];
      a[i][3] /= unit[i];
    }
    bool singular = false;
    for (int p = 0; p < 3; ++p) {
      if (std::abs(a[p][p]) < 1e-9) singular = true;
      for (int i = 0; i < 3 && !singular; ++i) {
        if (i == p) continue;
        const double f = a[i][p] / a[p][p];
        for (int j = p; j < 4; ++j) a[i][j] -= f * a[p][j];
      }
    }
    if (singular) continue;
    std::array<double, 3> cost{};
    bool allowed = true;
    for (std::size_t j = 0; j < 3; ++j) {
      if ((used >> j & 1U) != 0) cost[j] = a[j][3] / a[j][j] / unit[j];
      allowed = allowed && cost[j] >= 0.0;
    }
    if (!allowed) continue;
    double error = 0;
    for (const auto& m : measured) {
      double predicted = 0;
      for (std::size_t j = 0; j < 3; ++j) predicted += cost[j] * m.amounts[j];
      error += std::pow(predicted / m.seconds - 1.0, 2);
    }
    if (error < least) {
      least = error;
      best = cost;
    }
  }
  return best;
}

}  // namespace bench
