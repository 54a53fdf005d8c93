// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/types.hpp>

namespace lrmoe {

/// Where the gradient of a dropped pair's routing weight comes from.
///   kept    nowhere: the gradient of kept pairs with their factors is unbiased by itself
///   exact   one more product, 2 D F FLOPs a dropped pair: dw = <dO W_down^T, h>
///   sketch  k numbers a pair from forward: dw ~ 1/k sum_j <dO, r_j> <y, r_j> with random signs r_j,
///           unbiased, of variance about ||dO||^2 ||y||^2 / k
/// With the last two, kept pairs have their exact dw, without a factor.
enum class router_gradient { kept, exact, sketch };

/// Which gradients use how many of the kept pairs. A share below 1 draws a second time, among the kept
/// pairs, with the layer's estimator and the sizes that their factors give them; a pair that is kept
/// twice has the product of both factors (two-phase sampling), so what was unbiased stays so.
///   dX exact, dW of a quarter:   quota 1, dw_share 1/4
///   dX of a half, dW of a quarter:   quota 1/2, dw_share 1/2
struct gradient_scope {
  double dx_share = 1.0;  ///< of the kept pairs, those that enter dX, in (0, 1]
  double dw_share =
      1.0;  ///< of the kept pairs, those that enter dW_gate, dW_up, dW_down, in (0, 1]
  router_gradient router = router_gradient::kept;
  index_type sketch_size = 8;     ///< k, random directions of `sketch`, in [1, 1024]
  std::uint64_t sketch_seed = 0;  ///< of the random directions

  void validate() const {
    require(dx_share > 0.0 && dx_share <= 1.0, "gradient_scope: dx_share = ", dx_share,
            " is outside (0, 1]: use 1 for all kept pairs");
    require(dw_share > 0.0 && dw_share <= 1.0, "gradient_scope: dw_share = ", dw_share,
            " is outside (0, 1]: use 1 for all kept pairs");
    require(router != router_gradient::sketch || (sketch_size >= 1 && sketch_size <= 1024),
            "gradient_scope: sketch_size = ", sketch_size,
            " is outside [1, 1024]: set the number of random directions");
  }
};

}  // namespace lrmoe
