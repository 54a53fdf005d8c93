// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/estimator/gradient_scope.hpp>
#include <lrmoe/estimator/pps.hpp>
#include <lrmoe/memory/saved_activations.hpp>
#include <lrmoe/placement/static_ownership.hpp>
#include <lrmoe/quota/fixed_fraction.hpp>
#include <lrmoe/routing/softmax_top_k.hpp>
#include <lrmoe/scoring/lrm_score.hpp>

namespace lrmoe {

/// The decisions of a layer. Five are small types of their own, of which users may write more:
///   router     which experts see a token              routing/
///   quota      how many pairs of each are kept        quota/
///   scorer     what a pair is worth                   scoring/
///   estimator  which pairs are kept, at what weight   estimator/
///   planner    which ranks hold which experts         placement/
/// Three are choices among what the layer can do:
///   scope      which gradients use the kept pairs     estimator/gradient_scope.hpp
///   saved      what forward keeps for backward        memory/saved_activations.hpp
///   rebalance  whether kept pairs may change their rank for backward, where experts have replicas
template <router Router = softmax_top_k, quota Quota = fixed_fraction, scorer Scorer = lrm_score,
          estimator Estimator = pps, planner Planner = static_ownership>
struct policies {
  using router_type = Router;
  using quota_type = Quota;
  using scorer_type = Scorer;
  using estimator_type = Estimator;
  using planner_type = Planner;

  Router router{};
  Quota quota{};
  Scorer scorer{};
  Estimator estimator{};
  Planner planner{};
  gradient_scope scope{};
  saved_activations saved = saved_activations::save;
  bool rebalance = true;

  /// Throws argument_error when a policy's settings are out of range or do not fit each other.
  void validate(const layer_shape& shape) const {
    router.validate(shape.E, shape.K);
    quota.validate();
    estimator.validate();
    planner.validate();
    scope.validate();
    require(!estimator.keeps_all() || (scope.dx_share == 1.0 && scope.dw_share == 1.0),
            "policies: an estimator that keeps all pairs cannot draw the share dx_share = ",
            scope.dx_share, " or dw_share = ", scope.dw_share,
            ": use a sampling estimator with a quota of 1");
  }
};

}  // namespace lrmoe
