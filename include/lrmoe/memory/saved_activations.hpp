// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

namespace lrmoe {

/// What the routed experts keep from forward to backward, beside ||h|| of every pair. x stays with the
/// caller. Gradients of kept pairs are exact with each; what differs is memory and time.
///   save       g and u of every pair: 2 F elements a pair, nothing computed twice
///   recompute  nothing: backward computes g and u of the kept pairs again, 4 D F more FLOPs each
///   proxy      g and u of the kept pairs alone: they are selected before forward ends, so the scorer sees
///              ||dO|| = 1. Unbiased like any scorer, with more variance where gradient norms spread.
enum class saved_activations { save, recompute, proxy };

}  // namespace lrmoe
