// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <ostream>

#include <lrmoe/estimator/certificate.hpp>
#include <lrmoe/estimator/variance_estimate.hpp>
#include <lrmoe/experts/operations.hpp>

namespace lrmoe {

/// Numbers of a report that only the device knows.
struct report_totals {
  certificate certified;
  variance_estimate variance;
};

/// Total the certificates of all experts (E, or empty for none) into totals (1), and clear the rest.
/// Order     asynchronous on the space. Deterministic: one team, in an order that the extents fix.
template <class ExecutionSpace, class Device, class Unit = detail::translation_unit>
void sum_certificates(const ExecutionSpace& space,
                      const vector_view<const certificate, Device>& of_expert,
                      const vector_view<report_totals, Device>& totals) {
  const auto E = static_cast<std::int64_t>(of_expert.extent(0));
  using team_policy = Kokkos::TeamPolicy<ExecutionSpace>;
  using team_member = typename team_policy::member_type;
  Kokkos::parallel_for(
      "lrmoe::report::sum", team_policy(space, 1, Kokkos::AUTO),
      KOKKOS_LAMBDA(const team_member& team) {
        report_totals sum;
        Kokkos::parallel_reduce(
            Kokkos::TeamThreadRange(team, E),
            [&](const std::int64_t e, certificate& part) { part += of_expert(e); }, sum.certified);
        Kokkos::single(Kokkos::PerTeam(team), [&] { totals(0) = sum; });
      });
}

/// What one backward call did, from the sizes it really used, and what the reduction cost in gradient
/// quality.
struct backward_report {
  std::int64_t pairs = 0;       ///< pairs that exist, sum of L
  std::int64_t pairs_kept = 0;  ///< pairs computed, sum of q

  product_cost routed;          ///< products of the routed experts' backward
  product_cost shared;          ///< products of the shared expert's backward, always complete
  std::int64_t bytes_sent = 0;  ///< bytes that an exchange between ranks would carry for the kept
                                ///< pairs: rows of dO and dx, row index and weight

  std::int64_t token_buffer_bytes = 0;      ///< routing, order, plan, selection; held by the layer
  std::int64_t saved_activation_bytes = 0;  ///< held by the layer from forward to backward
  std::int64_t workspace_bytes = 0;         ///< held by the context for all its layers

  bool unbiased = true;   ///< the estimator's kept pairs have the exact gradient as expectation
  certificate certified;  ///< sums over experts; zero when the estimator keeps all pairs
  variance_estimate variance;  ///< of what scores do not know; zero for biased rules

  /// Sum over layers, or over calls. Workspace is shared by layers, so the larger one counts.
  backward_report& operator+=(const backward_report& other) {
    pairs += other.pairs;
    pairs_kept += other.pairs_kept;
    routed += other.routed;
    shared += other.shared;
    bytes_sent += other.bytes_sent;
    token_buffer_bytes += other.token_buffer_bytes;
    saved_activation_bytes += other.saved_activation_bytes;
    workspace_bytes = std::max(workspace_bytes, other.workspace_bytes);
    unbiased = unbiased && other.unbiased;
    certified += other.certified;
    variance += other.variance;
    return *this;
  }

  std::int64_t held_bytes() const {
    return token_buffer_bytes + saved_activation_bytes + workspace_bytes;
  }
  double kept_fraction() const {
    return pairs == 0 ? 1.0 : static_cast<double>(pairs_kept) / static_cast<double>(pairs);
  }
  /// V / sum of scores: gradient noise added, relative to the batch's own. Reads "as if the batch were
  /// 1 + noise_ratio times smaller". NaN for a biased rule, whose error is no noise.
  double noise_ratio() const {
    if (!unbiased) return std::numeric_limits<double>::quiet_NaN();
    return certified.score_total > 0 ? certified.added_variance / certified.score_total : 0.0;
  }
  /// (1 + V/sum s) (1 + 2 rho) / 3: time to a loss relative to exact training in the worst regime,
  /// where gradient noise alone sets the number of steps and products alone the time of a step.
  /// Below 1 the setting pays even there. NaN for a biased rule. Counts the routed experts alone.
  double worst_case_time_ratio() const {
    return (1.0 + noise_ratio()) * (1.0 + 2.0 * kept_fraction()) / 3.0;
  }
};

inline std::ostream& operator<<(std::ostream& stream, const backward_report& report) {
  return stream << "pairs kept            " << report.pairs_kept << " of " << report.pairs << '\n'
                << "product FLOPs         " << report.routed.flops + report.shared.flops << '\n'
                << "product bytes read    " << report.routed.bytes_read + report.shared.bytes_read
                << '\n'
                << "product bytes written "
                << report.routed.bytes_written + report.shared.bytes_written << '\n'
                << "bytes to send         " << report.bytes_sent << '\n'
                << "bytes held            " << report.held_bytes() << '\n'
                << "noise ratio V/S       " << report.noise_ratio() << '\n'
                << "time ratio, worst     " << report.worst_case_time_ratio() << '\n'
                << "bias bound            " << report.certified.bias_bound << '\n';
}

}  // namespace lrmoe
