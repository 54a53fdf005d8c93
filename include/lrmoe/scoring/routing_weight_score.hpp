// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/scoring/scorer.hpp>

namespace lrmoe {

/// Size of a pair = |w_p|: what the router alone knows.
struct routing_weight_score {
  KOKKOS_FUNCTION float size(const pair_features& pair) const { return Kokkos::abs(pair.weight); }
};

}  // namespace lrmoe
