// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include <lrmoe/types.hpp>

namespace lrmoe {

/// What is fixed for one layer call before any expert runs, backward included. On the host, and the
/// same on every rank.
struct plan {
  std::int64_t R = 0;                     ///< ranks
  std::int64_t E = 0;                     ///< experts
  std::vector<index_type> source_counts;  ///< (R, E)  n[s][e], pairs of source rank s for expert e
  std::vector<index_type> counts;         ///< (E)     L[e], sum over sources
  std::vector<index_type> quotas;         ///< (E)     q[e], pairs of e kept for backward
  std::vector<index_type> source_quotas;  ///< (R, E)  q[s][e], shares of the sources
  double noise_forecast = 0;  ///< V / sum s expected of these quotas; 0 where nothing is forecast

  std::int64_t pairs() const { return sum(counts); }
  std::int64_t pairs_kept() const { return sum(quotas); }
  /// Of the pairs that one source rank routes.
  std::int64_t pairs_of(std::int64_t source) const { return sum_row(source_counts, source); }
  std::int64_t pairs_kept_of(std::int64_t source) const { return sum_row(source_quotas, source); }

 private:
  static std::int64_t sum(const std::vector<index_type>& values) {
    return std::accumulate(values.begin(), values.end(), std::int64_t{0});
  }
  std::int64_t sum_row(const std::vector<index_type>& values, std::int64_t source) const {
    const auto first = values.begin() + source * E;
    return std::accumulate(first, first + E, std::int64_t{0});
  }
};

}  // namespace lrmoe
