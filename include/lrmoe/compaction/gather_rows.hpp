// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/types.hpp>

namespace lrmoe {

/// Copy rows together.
///   out[i] = rows[index[i]]
/// Shapes    rows (., columns); index (S); out (S, columns)
/// Order     asynchronous on the space
template <class ExecutionSpace, class Element, class Device>
void gather_rows(const ExecutionSpace& space, const matrix_view<const Element, Device>& rows,
                 const vector_view<const index_type, Device>& index,
                 const matrix_view<Element, Device>& out) {
  const auto columns = static_cast<std::int64_t>(rows.extent(1));
  Kokkos::parallel_for(
      "lrmoe::gather_rows::copy", Kokkos::RangePolicy<ExecutionSpace>(space, 0, out.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const Element* from = &rows(index(i), 0);
        for (std::int64_t d = 0; d < columns; ++d) out(i, d) = from[d];
      });
}

}  // namespace lrmoe
