// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/exchange/rank_layout.hpp>
#include <lrmoe/types.hpp>

namespace lrmoe {

/// The run that holds entry i, from the runs' offsets (n+1). Empty runs hold none.
template <class Device>
KOKKOS_FUNCTION index_type run_of(const vector_view<const index_type, Device>& offsets,
                                  index_type i) {
  index_type low = 0, high = static_cast<index_type>(offsets.extent(0)) - 1;
  while (high - low > 1) {
    const index_type middle = low + (high - low) / 2;
    (offsets(middle) <= i ? low : high) = middle;
  }
  return low;
}

/// row_blocks in the memory of a device.
template <class Device>
struct device_blocks {
  vector_view<const index_type, Device> to;    // (n+1)
  vector_view<const index_type, Device> from;  // (n)
  vector_view<const index_type, Device> base;  // (n)

  /// The block of row i, which some block holds.
  KOKKOS_FUNCTION index_type find(index_type i) const { return run_of(to, i); }
  /// Where row i is in the other order, given its block.
  KOKKOS_FUNCTION index_type other(index_type block, index_type i) const {
    return from(block) + (i - to(block));
  }
};

/// index[i] = where row i of the `to` order is in the `from` order, for the first blocks.rows() entries.
/// Order     asynchronous on the space
template <class ExecutionSpace, class Device, class Unit = detail::translation_unit>
void fill_index(const ExecutionSpace& space, const device_blocks<Device>& blocks, std::int64_t rows,
                const vector_view<index_type, Device>& index) {
  Kokkos::parallel_for(
      "lrmoe::device_blocks::fill", Kokkos::RangePolicy<ExecutionSpace>(space, 0, rows),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const auto row = static_cast<index_type>(i);
        index(row) = blocks.other(blocks.find(row), row);
      });
}

}  // namespace lrmoe
