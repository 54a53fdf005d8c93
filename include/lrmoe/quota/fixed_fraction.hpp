// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>

#include <lrmoe/quota/quota.hpp>

namespace lrmoe {

/// The same fraction of every expert's pairs:
///   q[e] = min(L[e], round_up(max(ceil(keep L[e]), floor), tile))
/// `floor` keeps cold experts learning; `tile` fills whole tiles of a matrix unit, whose remaining
/// rows would cost time without lowering variance.
struct fixed_fraction {
  double keep = 0.5;     ///< rho, in (0, 1]
  index_type floor = 1;  ///< least pairs kept of an expert that has any, at least 0
  index_type tile = 1;   ///< quotas are multiples of this where counts allow, at least 1

  void validate() const {
    require(keep > 0.0 && keep <= 1.0, "fixed_fraction: keep = ", keep,
            " is outside (0, 1]: keep at least some pairs of every expert");
    require(floor >= 0, "fixed_fraction: floor = ", floor, " must not be negative");
    require(tile >= 1, "fixed_fraction: tile = ", tile, " must be at least 1");
  }

  std::int64_t capacity(std::int64_t P, std::int64_t E) const {
    if (keep == 1.0) return P;
    const auto kept = static_cast<std::int64_t>(std::ceil(keep * static_cast<double>(P)));
    return std::min(P, kept + E * (static_cast<std::int64_t>(floor) + tile));
  }

  template <class ExecutionSpace, class Device>
  void assign(const ExecutionSpace& space, const vector_view<const index_type, Device>& counts,
              const vector_view<index_type, Device>& quotas) const {
    const auto self = *this;
    Kokkos::parallel_for(
        "lrmoe::fixed_fraction::assign",
        Kokkos::RangePolicy<ExecutionSpace>(space, 0, counts.extent(0)),
        KOKKOS_LAMBDA(const std::int64_t e) { quotas(e) = self.of(counts(e)); });
  }

  /// Quota of an expert with this many pairs.
  KOKKOS_FUNCTION index_type of(index_type count) const {
    // The slack keeps a product such as 0.07 * 100, which rounds to just above 7, from becoming 8.
    const double exact = keep * count * (1.0 - 1e-12);
    const std::int64_t wanted = Kokkos::max(static_cast<std::int64_t>(Kokkos::ceil(exact)),
                                            static_cast<std::int64_t>(floor));
    const std::int64_t rounded = (wanted + tile - 1) / tile * tile;
    return static_cast<index_type>(Kokkos::min(rounded, static_cast<std::int64_t>(count)));
  }
};

}  // namespace lrmoe
