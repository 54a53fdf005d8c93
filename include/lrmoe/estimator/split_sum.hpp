// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/types.hpp>

namespace lrmoe::detail {

/// Running sums over the rows of a segment, apart for rows that are certain to be kept and for rows
/// that are open: those compete for the places that the certain ones leave.
struct split_sum {
  std::uint64_t certain = 0;
  std::uint64_t open = 0;

  // Kokkos' team reductions start from the literal 0.
  KOKKOS_FUNCTION split_sum(int /*zero*/ = 0) {}
  KOKKOS_FUNCTION split_sum& operator+=(const split_sum& other) {
    certain += other.certain;
    open += other.open;
    return *this;
  }
  KOKKOS_FUNCTION friend split_sum operator+(split_sum left, const split_sum& right) {
    return left += right;
  }
};

}  // namespace lrmoe::detail
