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

/// Copy rows apart, the inverse of gather_rows.
///   out[index[i]] = rows[i]
/// Shapes    rows (S, columns); index (S), no value twice; out (., columns)
/// Order     asynchronous on the space
template <class ExecutionSpace, class Element, class Device>
void scatter_rows(const ExecutionSpace& space, const matrix_view<const Element, Device>& rows,
                  const vector_view<const index_type, Device>& index,
                  const matrix_view<Element, Device>& out) {
  const auto columns = static_cast<std::int64_t>(rows.extent(1));
  Kokkos::parallel_for(
      "lrmoe::scatter_rows::copy", Kokkos::RangePolicy<ExecutionSpace>(space, 0, rows.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t i) {
        Element* to = &out(index(i), 0);
        for (std::int64_t d = 0; d < columns; ++d) to[d] = rows(i, d);
      });
}

}  // namespace lrmoe
