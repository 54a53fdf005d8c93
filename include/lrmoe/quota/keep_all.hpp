// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>

#include <lrmoe/quota/quota.hpp>

namespace lrmoe {

/// Every pair:  q[e] = L[e]. What caps start from unless told otherwise.
struct keep_all {
  void validate() const {}
  static constexpr bool uses_history() { return false; }
  void assign(const quota_request& request, std::span<index_type> quotas) const {
    std::copy(request.counts.begin(), request.counts.end(), quotas.begin());
  }
};

}  // namespace lrmoe
