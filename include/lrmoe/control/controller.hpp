// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/memory/buffer.hpp>
#include <lrmoe/quota/quota.hpp>

namespace lrmoe {

/// What is fixed for one layer call before any expert runs, backward included.
template <class Device>
struct plan {
  vector_view<index_type, Device> counts;        // (E)    L[e], pairs of expert e
  vector_view<index_type, Device> quotas;        // (E)    q[e], pairs of e kept for backward
  vector_view<index_type, Device> kept_offsets;  // (E+1)  exclusive sum of q
  std::int64_t kept_capacity = 0;  // upper bound of kept_offsets(E), known on the host
};

/// Turns counts into a plan with a quota policy. Owns the plan's storage.
template <class Device>
class controller {
 public:
  explicit controller(ledger& account)
      : counts_(account, memory_category::token_buffers, "controller::counts"),
        quotas_(account, memory_category::token_buffers, "controller::quotas"),
        kept_offsets_(account, memory_category::token_buffers, "controller::kept_offsets") {}

  /// Plan one call of at most P pairs.
  ///   L[e] = offsets[e+1] - offsets[e];  q = quota(L), or L when every pair is kept
  /// Order     asynchronous on the space; nothing is read back
  template <class ExecutionSpace, quota Quota>
  plan<Device> make(const ExecutionSpace& space,
                    const vector_view<const index_type, Device>& offsets, std::int64_t P,
                    const Quota& policy, bool keep_all) {
    const auto E = static_cast<std::int64_t>(offsets.extent(0)) - 1;
    plan<Device> made{
        counts_.template vector<index_type>(E), quotas_.template vector<index_type>(E),
        kept_offsets_.template vector<index_type>(E + 1), keep_all ? P : policy.capacity(P, E)};
    const auto counts = made.counts;
    Kokkos::parallel_for(
        "lrmoe::controller::count", Kokkos::RangePolicy<ExecutionSpace>(space, 0, E),
        KOKKOS_LAMBDA(const std::int64_t e) { counts(e) = offsets(e + 1) - offsets(e); });
    if (keep_all) {
      Kokkos::deep_copy(space, made.quotas, made.counts);
    } else {
      policy.assign(space, vector_view<const index_type, Device>(made.counts), made.quotas);
    }
    const auto quotas = made.quotas;
    const auto kept_offsets = made.kept_offsets;
    Kokkos::parallel_scan(
        "lrmoe::controller::kept_offsets", Kokkos::RangePolicy<ExecutionSpace>(space, 0, E + 1),
        KOKKOS_LAMBDA(const std::int64_t e, index_type& sum, const bool final) {
          if (final) kept_offsets(e) = sum;
          if (e < E) sum += quotas(e);
        });
    return made;
  }

  std::int64_t size_bytes() const {
    return counts_.size_bytes() + quotas_.size_bytes() + kept_offsets_.size_bytes();
  }

 private:
  buffer<Device> counts_;
  buffer<Device> quotas_;
  buffer<Device> kept_offsets_;
};

}  // namespace lrmoe
