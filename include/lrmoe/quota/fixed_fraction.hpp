// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>

#include <lrmoe/quota/quota.hpp>

namespace lrmoe {

/// The same fraction of every expert's pairs:  q[e] = ceil(keep L[e]).
struct fixed_fraction {
  double keep = 0.5;  ///< rho, in (0, 1]

  void validate() const {
    require(keep > 0.0 && keep <= 1.0, "fixed_fraction: keep = ", keep,
            " is outside (0, 1]: keep at least some pairs of every expert");
  }

  static constexpr bool uses_history() { return false; }

  void assign(const quota_request& request, std::span<index_type> quotas) const {
    for (std::size_t e = 0; e < quotas.size(); ++e) quotas[e] = of(request.counts[e]);
  }

  /// Quota of an expert with this many pairs.
  index_type of(index_type count) const {
    // The slack keeps a product such as 0.07 * 100, which rounds to just above 7, from becoming 8.
    return static_cast<index_type>(std::ceil(keep * count * (1.0 - 1e-12)));
  }
};

}  // namespace lrmoe
