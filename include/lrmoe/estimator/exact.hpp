// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/estimator/estimator.hpp>

namespace lrmoe {

/// Keeps every pair with factor 1: an ordinary MoE layer, and the baseline of every comparison.
struct exact {
  static constexpr bool keeps_all() { return true; }
  static constexpr bool unbiased() { return true; }
  static constexpr void validate() {}

  template <class ExecutionSpace, class Device, class Unit = detail::translation_unit>
  void select(const ExecutionSpace& space, const segments<Device>& rows,
              const vector_view<const float, Device>& /*sizes*/, const draw_key& /*key*/,
              const selection<Device>& kept) const {
    const auto E = static_cast<std::int64_t>(rows.offsets.extent(0)) - 1;
    Kokkos::parallel_for(
        "lrmoe::exact::select", Kokkos::RangePolicy<ExecutionSpace>(space, 0, kept.rows.extent(0)),
        KOKKOS_LAMBDA(const std::int64_t m) {
          if (m >= rows.offsets(E)) return;
          kept.rows(m) = static_cast<index_type>(m);
          kept.factors(m) = 1.0F;
          kept.inclusion(m) = 1.0F;
        });
  }
};

}  // namespace lrmoe
