// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/optimizer/adamw.hpp>

#include "parameters.hpp"

namespace train {

/// Squared norm of the gradients of all parameters that every rank holds and that are not frozen.
inline double squared_gradient_norm(const parameter_list& parameters) {
  double total = 0.0;
  for (const parameter& p : parameters)
    if (!p.frozen && !p.expert) total += squared_norm(p.gradient);
  return total;
}

/// One step of AdamW for these parameters.
inline void adamw_step(const parameter_list& parameters, const lrmoe::adamw_settings& settings,
                       const lrmoe::adamw_step& now) {
  lrmoe::adamw_settings without_decay = settings;
  without_decay.weight_decay = 0.0;
  for (const parameter& p : parameters) {
    if (p.frozen || p.expert) continue;
    lrmoe::adamw(space(), p.decayed ? settings : without_decay, now, p.value, p.first_moment,
                 p.second_moment, const_vector(p.gradient), vector{});
  }
}

}  // namespace train
