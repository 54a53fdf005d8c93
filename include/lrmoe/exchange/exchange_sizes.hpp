// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>

namespace lrmoe {

/// What the exchange of a call carries on one rank, for the memory model.
struct exchange_sizes {
  bool many = false;             ///< false: one rank, and no exchange
  std::int64_t words = 0;        ///< numbers that describe the layout
  std::int64_t here = 0;         ///< rows computed here in forward
  std::int64_t kept_here = 0;    ///< kept rows computed here in backward
  std::int64_t moved_here = 0;   ///< rows whose activations move here
  std::int64_t moved_away = 0;   ///< and away
  std::int64_t listed = 0;       ///< rows of this source that move anywhere
  std::int64_t listed_here = 0;  ///< rows of any source that move away from here
  bool moves = false;            ///< some rank moves rows
};

}  // namespace lrmoe
