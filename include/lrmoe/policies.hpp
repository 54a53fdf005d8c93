// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/estimator/pps.hpp>
#include <lrmoe/quota/fixed_fraction.hpp>
#include <lrmoe/routing/softmax_top_k.hpp>
#include <lrmoe/scoring/lrm_score.hpp>

namespace lrmoe {

/// The four decisions of a layer, each a small type of its own:
///   router     which experts see a token          routing/
///   quota      how many pairs of each are kept    quota/
///   scorer     what a pair is worth               scoring/
///   estimator  which pairs are kept, at what weight   estimator/
template <router Router = softmax_top_k, quota Quota = fixed_fraction, scorer Scorer = lrm_score,
          estimator Estimator = pps>
struct policies {
  using router_type = Router;
  using quota_type = Quota;
  using scorer_type = Scorer;
  using estimator_type = Estimator;

  Router router{};
  Quota quota{};
  Scorer scorer{};
  Estimator estimator{};
};

}  // namespace lrmoe
