// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/scoring/gradient_norm_score.hpp>
#include <lrmoe/scoring/lrm_score.hpp>
#include <lrmoe/scoring/random_score.hpp>
#include <lrmoe/scoring/routing_weight_score.hpp>

namespace lrmoe {

enum class scorer_kind { lrm, routing_weight, gradient_norm, random };

/// The library's scorers behind a run-time choice, for programs that take it from a command line.
struct any_scorer {
  scorer_kind kind = scorer_kind::lrm;
  std::uint64_t seed = 0;  ///< of random_score

  KOKKOS_FUNCTION float size(const pair_features& pair) const {
    switch (kind) {
      case scorer_kind::routing_weight:
        return routing_weight_score{}.size(pair);
      case scorer_kind::gradient_norm:
        return gradient_norm_score{}.size(pair);
      case scorer_kind::random:
        return random_score{seed}.size(pair);
      case scorer_kind::lrm:
        break;
    }
    return lrm_score{}.size(pair);
  }
};

}  // namespace lrmoe
