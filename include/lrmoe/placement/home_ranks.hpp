// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <vector>

#include <lrmoe/types.hpp>

namespace lrmoe {

/// Rank that owns each expert, (E): contiguous blocks in ascending order,
///   home[e] = floor(e R / E),
/// so that no rank owns more than ceil(E / R). Where R > E some ranks own none.
/// Throws    argument_error unless R >= 1 and E >= 1
inline std::vector<index_type> home_ranks(std::int64_t R, std::int64_t E) {
  require(R >= 1 && E >= 1, "home_ranks: R = ", R, " ranks and E = ", E,
          " experts must be at least 1");
  std::vector<index_type> home;
  home.reserve(static_cast<std::size_t>(E));
  for (std::int64_t e = 0; e < E; ++e) home.push_back(static_cast<index_type>(e * R / E));
  return home;
}

}  // namespace lrmoe
