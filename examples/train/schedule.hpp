// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace train {

/// Learning rate of a step (0, 1, ..., steps-1): a linear rise over the first `warmup` steps, then
/// half a cosine down to a tenth of the peak.
struct schedule {
  double peak = 1e-3;
  std::int64_t warmup = 0;
  std::int64_t steps = 1;

  double rate(std::int64_t step) const {
    if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
    const double done = static_cast<double>(step - warmup) /
                        static_cast<double>(std::max<std::int64_t>(1, steps - warmup));
    return peak * (0.1 + 0.45 * (1.0 + std::cos(std::numbers::pi * done)));
  }
};

}  // namespace train
