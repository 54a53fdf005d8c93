// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/types.hpp>

namespace lrmoe {

/// Multiply rows of a matrix by factors, in place.
///   matrix[index[i]] *= factors[i]
/// Shapes    matrix (., columns); index (S), distinct, or empty for i itself; factors (S)
/// Numerics  product in the accumulation type, one rounding to Element
/// Order     asynchronous on the space
template <class ExecutionSpace, class Element, class Device>
void scale_rows(const ExecutionSpace& space, const matrix_view<Element, Device>& matrix,
                const vector_view<const index_type, Device>& index,
                const vector_view<const float, Device>& factors) {
  using real = accumulate_t<Element>;
  const auto columns = static_cast<std::int64_t>(matrix.extent(1));
  const bool indexed = index.extent(0) != 0;
  Kokkos::parallel_for(
      "lrmoe::scale_rows::multiply",
      Kokkos::RangePolicy<ExecutionSpace>(space, 0, factors.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t row = indexed ? index(i) : i;
        const auto factor = static_cast<real>(factors(i));
        for (std::int64_t d = 0; d < columns; ++d) {
          matrix(row, d) = static_cast<Element>(static_cast<real>(matrix(row, d)) * factor);
        }
      });
}

}  // namespace lrmoe
