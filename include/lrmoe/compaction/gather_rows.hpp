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
        lanes.copy(&rows(index(i), 0), columns, chunked, 1, [&](index_type) { return &out(i, 0); });
      });
}

/// Copy each row to all its places: what gather_rows does, from the side of the rows, which are read once.
///   out[places[r C + c] - first] = rows[r]
/// Shapes    rows (R, columns); places (R C), no value twice; those outside [first, first + S) are passed
///           over; out (S, columns)
/// Order     asynchronous on the space
template <class ExecutionSpace, class Element, class Device, class Unit = detail::translation_unit>
void spread_rows(const ExecutionSpace& space, const matrix_view<const Element, Device>& rows,
                 const vector_view<const index_type, Device>& places, std::int64_t first,
                 const matrix_view<Element, Device>& out) {
  const auto R = static_cast<std::int64_t>(rows.extent(0));
  const auto S = static_cast<std::int64_t>(out.extent(0));
  if (R == 0 || S == 0) return;
  const auto C = static_cast<index_type>(static_cast<std::int64_t>(places.extent(0)) / R);
  const auto columns = static_cast<std::int64_t>(rows.extent(1));
  const bool chunked = detail::in_chunks<ExecutionSpace>(columns, rows, out);
  detail::for_each_row(
      "lrmoe::spread_rows::copy", space, R,
      KOKKOS_LAMBDA(const detail::row_lanes<ExecutionSpace>& lanes, const std::int64_t r) {
        const auto to = [&](const index_type c) -> Element* {
          const std::int64_t i = places(r * C + c) - first;
          return i >= 0 && i < S ? &out(i, 0) : nullptr;
        };
        bool wanted = false;
        for (index_type c = 0; c < C; ++c) wanted = wanted || to(c) != nullptr;
        if (wanted) lanes.copy(&rows(r, 0), columns, chunked, C, to);
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
        lanes.copy(&rows(i, 0), columns, chunked, 1, [&](index_type) { return &out(index(i), 0); });
      });
}

}  // namespace lrmoe
