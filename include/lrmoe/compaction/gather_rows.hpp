// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/detail/row_parallel.hpp>

namespace lrmoe {

/// Copy rows together.
///   out[i] = rows[index[i]]
/// Shapes    rows (., columns); index (S); out (S, columns)
/// Order     asynchronous on the space
template <class ExecutionSpace, class Element, class Device, class Unit = detail::translation_unit>
void gather_rows(const ExecutionSpace& space, const matrix_view<const Element, Device>& rows,
                 const vector_view<const index_type, Device>& index,
                 const matrix_view<Element, Device>& out) {
  const auto columns = static_cast<std::int64_t>(rows.extent(1));
  const bool chunked = detail::in_chunks<ExecutionSpace>(columns, rows, out);
  detail::for_each_row(
      "lrmoe::gather_rows::copy", space, static_cast<std::int64_t>(out.extent(0)),
      KOKKOS_LAMBDA(const detail::row_lanes<ExecutionSpace>& lanes, const std::int64_t i) {
        lanes.copy(&rows(index(i), 0), &out(i, 0), columns, chunked);
      });
}

/// Copy rows apart, the inverse of gather_rows.
///   out[index[i]] = rows[i]
/// Shapes    rows (S, columns); index (S), no value twice; out (., columns)
/// Order     asynchronous on the space
template <class ExecutionSpace, class Element, class Device, class Unit = detail::translation_unit>
void scatter_rows(const ExecutionSpace& space, const matrix_view<const Element, Device>& rows,
                  const vector_view<const index_type, Device>& index,
                  const matrix_view<Element, Device>& out) {
  const auto columns = static_cast<std::int64_t>(rows.extent(1));
  const bool chunked = detail::in_chunks<ExecutionSpace>(columns, rows, out);
  detail::for_each_row(
      "lrmoe::scatter_rows::copy", space, static_cast<std::int64_t>(rows.extent(0)),
      KOKKOS_LAMBDA(const detail::row_lanes<ExecutionSpace>& lanes, const std::int64_t i) {
        lanes.copy(&rows(i, 0), &out(index(i), 0), columns, chunked);
      });
}

}  // namespace lrmoe
