// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <lrmoe/quota/experts_of_ranks.hpp>
#include <lrmoe/quota/keep_all.hpp>

namespace lrmoe {

/// Another policy's quotas, lowered where a rank would have far more of them than the mean: with
/// wanted quotas w, every rank keeps at most
///   cap = floor((1 + slack) sum_e w[e] / R)
/// pairs, or one of each of its experts if that is more. Backward then takes as long as the mean rank
/// would, not as the busiest. An overloaded rank is filled like a vessel with water,
///   q[e] = min(w[e], level),
/// at the highest level that fits; single pairs that are left go to its lowest experts. No other
/// quotas within the cap have a higher smallest quota, or that and a higher second smallest, and so on
/// (lexicographic max-min). One rank is its own mean and keeps what it wants.
template <quota Inner = keep_all>
struct peak_capped {
  Inner inner{};
  double slack = 0.25;  ///< load above the mean that a rank may have, relative, not negative

  void validate() const {
    inner.validate();
    require(slack >= 0.0 && std::isfinite(slack), "peak_capped: slack = ", slack,
            " must be a number of at least 0: no rank can be asked to stay below the mean");
  }

  bool uses_history() const { return inner.uses_history(); }

  void assign(const quota_request& request, std::span<index_type> quotas) const {
    inner.assign(request, quotas);
    std::int64_t total = 0;
    for (const index_type q : quotas) total += q;
    const auto cap = static_cast<std::int64_t>(
        std::floor((1.0 + slack) * (static_cast<double>(total) / static_cast<double>(request.R))));
    const detail::experts_of_ranks experts(request);
    for (std::int64_t r = 0; r < request.R; ++r) {
      const auto mine = experts.of(r);
      std::int64_t load = 0, with_pairs = 0;
      for (const std::size_t e : mine) {
        load += quotas[e];
        with_pairs += quotas[e] > 0 ? 1 : 0;
      }
      const std::int64_t room = std::max(cap, with_pairs);
      if (load > room) fill(mine, room, quotas);
    }
  }

 private:
  static void fill(std::span<const std::size_t> experts, std::int64_t room,
                   std::span<index_type> quotas) {
    const auto filled_to = [&](index_type level) {
      std::int64_t sum = 0;
      for (const std::size_t e : experts) sum += std::min(quotas[e], level);
      return sum;
    };
    // fits at `level`, not at `above`
    index_type level = 1, above = 1;
    for (const std::size_t e : experts) above = std::max(above, quotas[e]);
    while (above - level > 1) {
      const index_type middle = level + (above - level) / 2;
      (filled_to(middle) <= room ? level : above) = middle;
    }
    std::int64_t left = room - filled_to(level);
    for (const std::size_t e : experts) {
      if (quotas[e] <= level) continue;
      quotas[e] = level + (left > 0 ? 1 : 0);
      --left;
    }
  }
};

}  // namespace lrmoe
