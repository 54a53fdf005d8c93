// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/detail/row_parallel.hpp>

namespace lrmoe {

/// Multiply rows of a matrix by factors, in place.
///   matrix[index[i]] *= factors[i]
/// Shapes    matrix (., columns); index (S), distinct, or empty for i itself; factors (S)
/// Numerics  product in the accumulation type, one rounding to Element
/// Order     asynchronous on the space
template <class ExecutionSpace, class Element, class Device, class Unit = detail::translation_unit>
void scale_rows(const ExecutionSpace& space, const matrix_view<Element, Device>& matrix,
                const vector_view<const index_type, Device>& index,
                const vector_view<const float, Device>& factors) {
  using real = accumulate_t<Element>;
  const auto columns = static_cast<std::int64_t>(matrix.extent(1));
  const bool indexed = index.extent(0) != 0;
  const bool chunked = detail::in_chunks<ExecutionSpace>(columns, matrix);
  detail::for_each_row(
      "lrmoe::scale_rows::multiply", space, static_cast<std::int64_t>(factors.extent(0)),
      KOKKOS_LAMBDA(const detail::row_lanes<ExecutionSpace>& lanes, const std::int64_t i) {
        Element* row = &matrix(indexed ? index(i) : i, 0);
        const auto factor = static_cast<real>(factors(i));
        lanes.template for_each_block<Element, 4>(
            columns, chunked,
            [&]<class Block>(const Block& block, typename Block::values& values) {
              block.for_each([&](const int d) { values[d] *= factor; });
              block.store(row, values);
            },
            row);
      });
}

}  // namespace lrmoe
