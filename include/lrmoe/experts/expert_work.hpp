// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>

namespace lrmoe {

/// What the scratch of the expert operations depends on: the largest forward and backward that experts of
/// one shape run through in a call.
struct expert_work {
  std::int64_t D = 0;
  std::int64_t F = 0;
  std::int64_t forward_rows = 0;   ///< rows of gate_up
  std::int64_t backward_rows = 0;  ///< rows of down_backward
  std::int64_t drawn_dx = 0;       ///< rows of a second draw for dX, 0 for none
  std::int64_t drawn_dw = 0;       ///< rows of a second draw for dW, 0 for none
  bool gathered = true;            ///< inputs are read through an index
  bool saved = true;               ///< g and u have a place of their own
};

}  // namespace lrmoe
