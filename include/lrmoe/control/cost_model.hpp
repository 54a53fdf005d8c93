// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include <lrmoe/types.hpp>

namespace lrmoe {

/// A link between two ranks, each direction by itself.
struct link_rate {
  double bytes_per_s = 0;
  double latency_s = 0;
};

/// What a machine can do, for predictions. The defaults are round numbers of a two-core laptop and a
/// 10 Gbit/s network; a calibration tool measures the real ones.
struct machine_rates {
  double product_flops_per_s = 1e11;  ///< of matrix products with wide inner extents
  /// Width at which products reach half that rate: rate(d) = product_flops_per_s d / (d + half_width).
  double product_half_width = 32;
  double memory_bytes_per_s = 1e10;
  link_rate inside{1e10, 1e-6};    ///< between ranks of one node
  link_rate across{1.25e9, 1e-5};  ///< between nodes
  std::int64_t ranks_per_node = 1;

  /// Throws argument_error naming the rate that is not a positive number.
  void validate() const {
    const auto positive = [](std::string_view name, double value) {
      require(value > 0.0 && std::isfinite(value), "machine_rates: ", name, " = ", value,
              " must be positive and finite: measure it, or leave the default");
    };
    positive("product_flops_per_s", product_flops_per_s);
    positive("memory_bytes_per_s", memory_bytes_per_s);
    positive("inside.bytes_per_s", inside.bytes_per_s);
    positive("across.bytes_per_s", across.bytes_per_s);
    for (const auto& [name, value] : {std::pair{"product_half_width", product_half_width},
                                      std::pair{"inside.latency_s", inside.latency_s},
                                      std::pair{"across.latency_s", across.latency_s}}) {
      require(value >= 0.0 && std::isfinite(value), "machine_rates: ", name, " = ", value,
              " must be finite and not negative: measure it, or leave the default");
    }
    require(ranks_per_node >= 1, "machine_rates: ranks_per_node = ", ranks_per_node,
            " must be at least 1");
  }
};

/// Predicted times of one layer's parts on one rank.
///   time = FLOPs / rate(sqrt(D F)) + bytes moved / memory_bytes_per_s
/// FLOPs are those of docs/method.md. Bytes count every row that an operation reads or writes and the
/// weights and gradients of each expert in use. Row work is taken as limited by memory.
class cost_model {
 public:
  cost_model(const machine_rates& rates, const layer_shape& shape, std::int64_t element_bytes,
             std::int64_t accumulate_bytes)
      : rates_(rates),
        element_(static_cast<double>(element_bytes)),
        accumulate_(static_cast<double>(accumulate_bytes)),
        D_(static_cast<double>(shape.D)),
        F_(static_cast<double>(shape.F)),
        F_shared_(static_cast<double>(shape.F_shared)) {}

  /// Forward of N pairs of T tokens over this many experts with pairs, and of the shared expert.
  double forward_s(std::int64_t T, std::int64_t N, std::int64_t experts_in_use) const {
    const double t = static_cast<double>(T);
    return forward_pairs_s(static_cast<double>(N), static_cast<double>(experts_in_use), F_) +
           shared_s([&](double F) { return forward_pairs_s(t, 1.0, F); }) + moved_s(t * D_);
  }

  /// What backward costs whatever is kept: row norms, scores, the draw, the router, the sum over rows, the
  /// shared expert, and the weights and gradients of the experts in use.
  double backward_fixed_s(std::int64_t T, std::int64_t N, std::int64_t experts_in_use) const {
    const double t = static_cast<double>(T);
    // Scores, certificate and draw pass over a pair about 24 times, 4 bytes each.
    const double selection = static_cast<double>(N) * 24.0 * 4.0 / rates_.memory_bytes_per_s;
    return selection + moved_s(2.0 * t * D_) + experts_s(static_cast<double>(experts_in_use), F_) +
           shared_s([&](double F) { return t * pair_s(F) + experts_s(1.0, F); });
  }

  /// Backward of one kept pair, of which only a share may enter dX or dW, and of making its g and u again
  /// where forward did not save them.
  double kept_pair_s(double dx_share = 1.0, double dw_share = 1.0, bool recompute = false) const {
    return pair_s(F_, dx_share, dw_share) + (recompute ? recomputed_s() : 0.0);
  }

  /// The exact router gradient of one dropped pair.
  double dropped_pair_s(bool recompute = false) const {
    return product_s(2.0 * D_ * F_, F_) + moved_s(D_ + 2.0 * F_) +
           (recompute ? recomputed_s() : 0.0);
  }

  /// One direction of a link for the rows of one pair: dO with weight, factor and position there; less on
  /// the other direction, dx and dw back.
  double remote_pair_s(const link_rate& link) const {
    return (D_ * element_ + accumulate_ + 8.0) / link.bytes_per_s;
  }

 private:
  double product_s(double flops, double F) const {
    const double width = std::sqrt(D_ * F);
    return flops * (width + rates_.product_half_width) / (width * rates_.product_flops_per_s);
  }
  double moved_s(double elements) const { return elements * element_ / rates_.memory_bytes_per_s; }
  // x in; g, u out; h out and in; y out, and in again for the sum over a token's rows.
  double forward_pairs_s(double N, double experts, double F) const {
    return product_s(6.0 * D_ * F * N, F) + moved_s(N * (3.0 * D_ + 4.0 * F)) +
           moved_s(experts * 3.0 * D_ * F);
  }
  // dh': dO, g and u in; dg, du and h out. dX: dg and du in, dx out and in. dW: both operands of both.
  double pair_s(double F, double dx_share = 1.0, double dw_share = 1.0) const {
    return product_s((2.0 + 4.0 * dx_share + 6.0 * dw_share) * D_ * F, F) +
           moved_s(D_ + 5.0 * F + dx_share * (2.0 * D_ + 2.0 * F) +
                   dw_share * (2.0 * D_ + 3.0 * F));
  }
  // x in; g, u and h out.
  double recomputed_s() const { return product_s(4.0 * D_ * F_, F_) + moved_s(D_ + 3.0 * F_); }
  // Weights in; gradients in and out.
  double experts_s(double experts, double F) const {
    return experts * 3.0 * D_ * F * (element_ + 2.0 * accumulate_) / rates_.memory_bytes_per_s;
  }
  template <class Part>
  double shared_s(const Part& part) const {
    return F_shared_ > 0 ? part(F_shared_) : 0.0;
  }

  machine_rates rates_;
  double element_, accumulate_;
  double D_, F_, F_shared_;
};

}  // namespace lrmoe
