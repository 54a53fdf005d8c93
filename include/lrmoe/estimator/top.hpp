// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/estimator/select_largest.hpp>

namespace lrmoe {

/// The published rule: the q largest sizes of every segment, ties to the lowest pair, factor 1.
/// Biased: what it drops is missing from the expectation too, and training suffers (docs/method.md
/// has the measurements). Here for comparison. A NaN size counts as larger than any other.
struct top {
  static constexpr bool keeps_all() { return false; }
  static constexpr bool unbiased() { return false; }
  static constexpr void validate() {}

  template <class ExecutionSpace, class Device, class Unit = detail::translation_unit>
  void select(const ExecutionSpace& space, const segments<Device>& rows,
              const vector_view<const float, Device>& sizes, const draw_key& /*key*/,
              const selection<Device>& kept) const {
    select_largest(
        "lrmoe::top::select", space, rows,
        KOKKOS_LAMBDA(const index_type row) { return detail::size_key(sizes(row)); },
        KOKKOS_LAMBDA(index_type, index_type) { return 1.0F; },
        KOKKOS_LAMBDA(index_type, index_type, const bool keep) { return keep ? 1.0F : 0.0F; },
        kept);
  }
};

}  // namespace lrmoe
