// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <utility>

#include <lrmoe/compaction/gather_rows.hpp>

namespace lrmoe {

/// Rows of a matrix read through an index: row i is matrix(index(i)), or matrix(i) when the index is
/// empty. Whoever knows the index's inverse can give it: places has equally many numbers for each row r
/// of the matrix, among them every i with index(i) = r, and no_expert for the rest.
template <class Element, class Device>
struct gathered_rows {
  matrix_view<const Element, Device> matrix;
  vector_view<const index_type, Device> index{};
  vector_view<const index_type, Device> places{};
};

/// Copy the rows first .. first + S of an index that is not empty, each row of the matrix read once where
/// places are known.
/// Shapes    out (S, columns)
/// Order     asynchronous on the space
template <class ExecutionSpace, class Element, class Device>
void pack_rows(const ExecutionSpace& space, const gathered_rows<Element, Device>& rows,
               std::int64_t first, const matrix_view<Element, Device>& out) {
  if (rows.places.extent(0) != 0) {
    spread_rows(space, rows.matrix, rows.places, first, out);
    return;
  }
  const auto end = first + static_cast<std::int64_t>(out.extent(0));
  gather_rows(
      space, rows.matrix,
      vector_view<const index_type, Device>(Kokkos::subview(rows.index, std::pair(first, end))),
      out);
}

}  // namespace lrmoe
