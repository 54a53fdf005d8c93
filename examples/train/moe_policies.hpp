// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/estimator/any_estimator.hpp>
#include <lrmoe/estimator/exact.hpp>
#include <lrmoe/estimator/top.hpp>
#include <lrmoe/estimator/top_plus_sampled.hpp>
#include <lrmoe/estimator/uniform.hpp>
#include <lrmoe/placement/all_planners.hpp>
#include <lrmoe/policies.hpp>
#include <lrmoe/quota/annealed.hpp>
#include <lrmoe/quota/any_quota.hpp>
#include <lrmoe/quota/error_bounded.hpp>
#include <lrmoe/quota/keep_all.hpp>
#include <lrmoe/quota/memory_network.hpp>
#include <lrmoe/quota/shared_threshold.hpp>
#include <lrmoe/quota/time_optimal.hpp>
#include <lrmoe/scoring/any_scorer.hpp>

#include "options.hpp"

namespace train {

using moe_estimator = lrmoe::any_estimator<lrmoe::exact, lrmoe::pps, lrmoe::top,
                                           lrmoe::top_plus_sampled, lrmoe::uniform>;
using annealed_fraction = lrmoe::annealed<lrmoe::fixed_fraction, &lrmoe::fixed_fraction::keep>;
/// The memory budget, if there is one, lowers whatever the controller's rule asks for.
using moe_quota = lrmoe::memory_network<
    lrmoe::any_quota<lrmoe::fixed_fraction, lrmoe::keep_all, lrmoe::shared_threshold,
                     lrmoe::error_bounded, lrmoe::time_optimal, annealed_fraction>>;
using moe_policies = lrmoe::policies<lrmoe::softmax_top_k, moe_quota, lrmoe::any_scorer,
                                     moe_estimator, lrmoe::library_planner>;

/// The policies that the flags ask for.
inline moe_policies policies_of(const options& o) {
  moe_policies policies;
  policies.scorer.kind = o.scorer;
  policies.planner = lrmoe::planner_by_name(o.planner);
  policies.rebalance = o.rebalance;
  if (o.method != method::lrmoe) {
    policies.estimator = lrmoe::exact{};
    return policies;
  }
  switch (o.controller) {
    case controller_choice::fixed_fraction:
      policies.quota.inner = lrmoe::fixed_fraction{o.keep};
      break;
    case controller_choice::memory_network:
      policies.quota.inner = lrmoe::keep_all{};
      break;
    case controller_choice::shared_threshold:
      policies.quota.inner = lrmoe::shared_threshold{o.keep};
      break;
    case controller_choice::error_bounded:
      policies.quota.inner = lrmoe::error_bounded{o.epsilon};
      break;
    case controller_choice::time_optimal:
      policies.quota.inner = lrmoe::time_optimal{o.noise_weight};
      break;
    case controller_choice::annealed:
      policies.quota.inner =
          annealed_fraction{{}, 1.0, o.keep, 0, static_cast<std::uint64_t>(o.steps / 2)};
      break;
  }
  policies.quota.step_s = o.step_budget_ms * 1e-3;
  switch (o.estimator) {
    case estimator_choice::pps:
      policies.estimator = lrmoe::pps{.seed = o.seed};
      break;
    case estimator_choice::pps_shuffled:
      policies.estimator = lrmoe::pps{.seed = o.seed, .order = lrmoe::pps_order::shuffled};
      break;
    case estimator_choice::top:
      policies.estimator = lrmoe::top{};
      break;
    case estimator_choice::top_plus_sampled:
      policies.estimator = lrmoe::top_plus_sampled{.seed = o.seed};
      break;
    case estimator_choice::uniform:
      policies.estimator = lrmoe::uniform{o.seed, true};
      break;
    case estimator_choice::uniform_unscaled:
      policies.estimator = lrmoe::uniform{o.seed, false};
      break;
  }
  policies.saved = o.saved;
  policies.scope = {.dx_share = o.dx_share,
                    .dw_share = o.dw_share,
                    .router = o.router_gradient,
                    .sketch_size = static_cast<lrmoe::index_type>(o.sketch_size),
                    .sketch_seed = o.seed};
  return policies;
}

}  // namespace train
