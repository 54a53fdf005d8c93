// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>

#include <lrmoe/quota/fixed_fraction.hpp>

namespace lrmoe {

/// Another policy's quotas, rounded up to whole tiles of a matrix unit where the count allows: the rows
/// that fill a started tile cost no time and lower the variance.
/// A cap that must hold goes around this policy, not inside it.
template <quota Inner = fixed_fraction>
struct tile_rounded {
  Inner inner{};
  index_type tile = 128;  ///< rows of a tile, at least 1

  void validate() const {
    inner.validate();
    require(tile >= 1, "tile_rounded: tile = ", tile, " must be at least 1");
  }

  bool uses_history() const { return inner.uses_history(); }

  void assign(const quota_request& request, std::span<index_type> quotas) const {
    inner.assign(request, quotas);
    for (std::size_t e = 0; e < quotas.size(); ++e) {
      const std::int64_t rounded = (std::int64_t{quotas[e]} + tile - 1) / tile * tile;
      quotas[e] = static_cast<index_type>(std::min<std::int64_t>(rounded, request.counts[e]));
    }
  }
};

}  // namespace lrmoe
