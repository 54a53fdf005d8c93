// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/placement/detail/slot_table.hpp>
#include <lrmoe/placement/home_ranks.hpp>
#include <lrmoe/placement/placement.hpp>

namespace lrmoe {

/// Every expert on its home rank, in the first of S slots; the others are empty.
/// Throws    argument_error when a rank owns more than S experts
inline placement home_placement(std::int64_t R, std::int64_t S, std::int64_t E) {
  detail::slot_table slots(R, S);
  slots.put_home(home_ranks(R, E));
  placement placed;
  slots.write(E, placed);
  return placed;
}

}  // namespace lrmoe
