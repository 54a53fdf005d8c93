// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/experts/row_groups.hpp>

namespace lrmoe {

/// Those of M kept rows that one of the gradients uses: all of them (rows, tokens and factors are
/// then empty), or S drawn among them.
template <class Device>
struct kept_subset {
  std::int64_t size = 0;                         // S
  row_groups<Device> groups;                     // E
  vector_view<const index_type, Device> rows;    // (S)  position among the kept rows, ascending
  vector_view<const index_type, Device> tokens;  // (S)  their tokens
  vector_view<const float, Device> factors;      // (S)  factor of the second draw

  bool all() const { return factors.extent(0) == 0; }
};

}  // namespace lrmoe
