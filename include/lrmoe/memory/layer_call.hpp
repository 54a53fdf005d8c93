// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <cstdint>

#include <lrmoe/estimator/gradient_scope.hpp>
#include <lrmoe/exchange/exchange_sizes.hpp>
#include <lrmoe/memory/saved_activations.hpp>

namespace lrmoe {

/// What the memory of one forward and backward depends on beside the layer's shape.
struct layer_call {
  std::int64_t T = 0;        ///< tokens
  std::int64_t pairs = 0;    ///< N, pairs that exist
  std::int64_t kept = 0;     ///< M, pairs kept
  std::int64_t kept_dx = 0;  ///< of those, pairs that enter dX
  std::int64_t kept_dw = 0;  ///< of those, pairs that enter dW
  bool backward = true;      ///< false: forward alone, nothing is saved
  bool scores = false;       ///< the estimator draws by score
  bool variance = false;     ///< the report estimates variances
  bool history = false;      ///< the quota policy wants sizes
  saved_activations saved = saved_activations::save;
  router_gradient router = router_gradient::kept;
  std::int64_t sketch_size = 0;
  std::int64_t segments = 0;  ///< H, replicas of all experts; 0: one of each
  bool by_expert = true;      ///< segments are experts, in their order
  exchange_sizes exchange{};

  /// Rows that this rank computes in forward and in backward.
  std::int64_t pairs_here() const { return exchange.many ? exchange.here : pairs; }
  std::int64_t kept_here() const { return exchange.many ? exchange.kept_here : kept; }
  /// Rows of x from which this rank's experts read in backward.
  std::int64_t x_rows() const {
    if (!exchange.many) return T;
    return saved == saved_activations::proxy ? exchange.kept_here
                                             : exchange.here + exchange.moved_here;
  }
};

/// The call that these policies make of N pairs, of which they keep so many.
template <class Policies>
layer_call call_of(const Policies& choices, std::int64_t T, std::int64_t N, std::int64_t kept,
                   bool backward, const exchange_sizes& carried) {
  const bool keeps_all = choices.estimator.keeps_all();
  if (keeps_all) kept = N;
  const auto share = [&](double of_kept) {
    return static_cast<std::int64_t>(std::ceil(of_kept * static_cast<double>(kept)));
  };
  return {.T = T,
          .pairs = N,
          .kept = kept,
          .kept_dx = share(choices.scope.dx_share),
          .kept_dw = share(choices.scope.dw_share),
          .backward = backward,
          .scores = !keeps_all,
          .variance = !keeps_all && choices.estimator.unbiased(),
          .history = !keeps_all && choices.quota.uses_history(),
          .saved = keeps_all && choices.saved == saved_activations::proxy ? saved_activations::save
                                                                          : choices.saved,
          .router = keeps_all ? router_gradient::kept : choices.scope.router,
          .sketch_size = choices.scope.sketch_size,
          .exchange = carried};
}

}  // namespace lrmoe
