// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <initializer_list>

#include <omp.h>

#include <lrmoe/compaction/expert_order.hpp>

#include "../support/harness.hpp"
#include "../support/layer_problem.hpp"

namespace bench {

/// Rows of each thread's scratch in seconds_to_pack.
inline constexpr std::int64_t pack_scratch_rows = 512;

/// Seconds to copy kept rows as the operations do on the host: those of each source, by every thread into
/// scratch of its own (threads x pack_scratch_rows, D).
template <class Element, class Real>
double seconds_to_pack(std::initializer_list<matrix<const Element>> sources,
                       const lrmoe::expert_order<host_device>& order,
                       const vector<const lrmoe::index_type>& rows, std::int64_t kept,
                       std::int64_t K, const matrix<Real>& scratch) {
  const auto D = static_cast<std::int64_t>(scratch.extent(1));
  const vector<lrmoe::index_type> tokens("tokens", kept);
  for (std::int64_t m = 0; m < kept; ++m)
    tokens(m) = order.pair_of_row(rows(m)) / static_cast<lrmoe::index_type>(K);
  const stopwatch time;
  for (const auto& source : sources) {
    Kokkos::parallel_for(
        "bench::pack", Kokkos::RangePolicy<Kokkos::OpenMP>(0, kept), [=](const std::int64_t m) {
          const Element* from = &source(tokens(m), 0);
          Real* to = &scratch(omp_get_thread_num() * pack_scratch_rows + m % pack_scratch_rows, 0);
          for (std::int64_t d = 0; d < D; ++d) to[d] = static_cast<Real>(from[d]);
        });
  }
  Kokkos::fence();
  return time.seconds();
}

}  // namespace bench
