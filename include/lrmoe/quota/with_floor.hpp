// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>

#include <lrmoe/quota/fixed_fraction.hpp>

namespace lrmoe {

/// Another policy's quotas, but at least min(L[e], floor): a cold expert keeps learning.
template <quota Inner = fixed_fraction>
struct with_floor {
  Inner inner{};
  index_type floor = 1;  ///< least pairs kept of an expert that has them

  void validate() const {
    inner.validate();
    require(floor >= 0, "with_floor: floor = ", floor, " must not be negative");
  }

  bool uses_history() const { return inner.uses_history(); }

  void assign(const quota_request& request, std::span<index_type> quotas) const {
    inner.assign(request, quotas);
    for (std::size_t e = 0; e < quotas.size(); ++e) {
      quotas[e] = std::max(quotas[e], std::min(request.counts[e], floor));
    }
  }
};

}  // namespace lrmoe
