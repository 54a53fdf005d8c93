// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>

#include <lrmoe/experts/row_groups.hpp>

namespace lrmoe {

/// What is done with the numbers that a gradient holds before. The first micro-batch of a step overwrites:
/// that needs no zeros and reads nothing. Those after it add.
enum class gradient_update {
  add,        ///< gradient += sum
  overwrite,  ///< gradient = sum, whatever it was, NaN included
};

/// Zeros in the gradients of groups without rows, for products that write the other groups' alone.
/// Shapes    gradient (G, A, B)
/// Order     asynchronous on the space, one fill for groups that lie side by side; allocates nothing
template <class ExecutionSpace, class Real, class Device>
void zero_groups_without_rows(const ExecutionSpace& space, const row_groups<Device>& groups,
                              const tensor_view<Real, Device>& gradient) {
  const auto size = static_cast<std::int64_t>(gradient.extent(1) * gradient.extent(2));
  for (std::int64_t begin = 0, end = 0; begin < groups.size(); begin = end) {
    end = begin + 1;
    if (groups.rows(begin) > 0) continue;
    while (end < groups.size() && groups.rows(end) == 0) ++end;
    Kokkos::deep_copy(space,
                      vector_view<Real, Device>(gradient.data() + begin * size,
                                                static_cast<std::size_t>((end - begin) * size)),
                      Real(0));
  }
}

}  // namespace lrmoe
