// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/detail/row_parallel.hpp>
#include <lrmoe/memory/buffer.hpp>
#include <lrmoe/memory/workspace.hpp>

namespace lrmoe {

/// The pairs of one call in expert order: rows offsets(e) .. offsets(e+1) belong to expert e, each
/// expert's rows in ascending pair order (the order is a stable sort).
template <class Device>
struct expert_order {
  vector_view<index_type, Device> offsets;       // (E+1)
  vector_view<index_type, Device> pair_of_row;   // (P)  entries past offsets(E) are not written
  vector_view<index_type, Device> token_of_row;  // (P)  likewise
  vector_view<index_type, Device> row_of_pair;   // (P)  no_expert for a pair that does not exist
};

/// Sorts pairs by expert with a counting sort. Owns the order's storage.
template <class Device>
class expert_sorter {
 public:
  expert_sorter(const typename Device::execution_space& space, ledger& account)
      : offsets_(space, account, memory_category::token_buffers, "expert_sorter::offsets"),
        pair_of_row_(space, account, memory_category::token_buffers, "expert_sorter::pair_of_row"),
        token_of_row_(space, account, memory_category::token_buffers,
                      "expert_sorter::token_of_row"),
        row_of_pair_(space, account, memory_category::token_buffers, "expert_sorter::row_of_pair") {
  }

  /// Sort the pairs of `experts` (T, K). A pair whose id is outside [0, E) does not exist.
  /// Chunks of pairs count their experts, one scan turns all counts into first rows, and the chunks
  /// place their pairs: no atomics, hence the same order on every backend.
  /// Order     asynchronous on the space
  /// Cost      counters<ExecutionSpace>(P, E) of scratch, two passes over the ids
  template <class ExecutionSpace, class Unit = detail::translation_unit>
  expert_order<Device> sort(const ExecutionSpace& space, workspace<Device>& scratch,
                            const matrix_view<const index_type, Device>& experts, std::int64_t E) {
    const auto P = static_cast<std::int64_t>(experts.size());
    const auto K = static_cast<index_type>(experts.extent(1));
    constexpr std::int64_t chunk = pairs_of_thread<ExecutionSpace>;
    const std::int64_t num_chunks = chunks<ExecutionSpace>(P);
    const expert_order<Device> order{
        offsets_.template vector<index_type>(E + 1), pair_of_row_.template vector<index_type>(P),
        token_of_row_.template vector<index_type>(P), row_of_pair_.template vector<index_type>(P)};
    const auto next_row =
        scratch["expert_sorter::next_row"].template matrix<index_type>(E, num_chunks);
    const vector_view<const index_type, Device> expert_of_pair(experts.data(), P);

    Kokkos::parallel_for(
        "lrmoe::expert_sorter::count", Kokkos::RangePolicy<ExecutionSpace>(space, 0, num_chunks),
        KOKKOS_LAMBDA(const std::int64_t c) {
          for (std::int64_t e = 0; e < E; ++e) next_row(e, c) = 0;
          for (std::int64_t p = c * chunk; p < Kokkos::min(P, (c + 1) * chunk); ++p) {
            const index_type e = expert_of_pair(p);
            if (e >= 0 && e < E) ++next_row(e, c);
          }
        });
    // One step past the last counter delivers the total. With no pair there is no counter either.
    Kokkos::parallel_scan(
        "lrmoe::expert_sorter::scan",
        Kokkos::RangePolicy<ExecutionSpace>(space, 0, E * num_chunks + 1),
        KOKKOS_LAMBDA(const std::int64_t i, index_type& sum, const bool final) {
          if (i == E * num_chunks) {
            if (final) order.offsets(E) = sum;
            return;
          }
          const std::int64_t e = i / num_chunks;
          const std::int64_t c = i % num_chunks;
          const index_type count = next_row(e, c);
          if (final) {
            next_row(e, c) = sum;
            if (c == 0) order.offsets(e) = sum;
          }
          sum += count;
        });
    if (P == 0) Kokkos::deep_copy(space, order.offsets, 0);
    Kokkos::parallel_for(
        "lrmoe::expert_sorter::place", Kokkos::RangePolicy<ExecutionSpace>(space, 0, num_chunks),
        KOKKOS_LAMBDA(const std::int64_t c) {
          for (std::int64_t p = c * chunk; p < Kokkos::min(P, (c + 1) * chunk); ++p) {
            const index_type e = expert_of_pair(p);
            const index_type row = e >= 0 && e < E ? next_row(e, c)++ : no_expert;
            order.row_of_pair(p) = row;
            if (row == no_expert) continue;
            order.pair_of_row(row) = static_cast<index_type>(p);
            order.token_of_row(row) = static_cast<index_type>(p) / K;
          }
        });
    return order;
  }

  /// Counters that sorting P pairs of E experts takes from the workspace.
  template <class ExecutionSpace>
  static std::int64_t counters(std::int64_t P, std::int64_t E) {
    return E * chunks<ExecutionSpace>(P);
  }

  std::int64_t size_bytes() const {
    return offsets_.size_bytes() + pair_of_row_.size_bytes() + token_of_row_.size_bytes() +
           row_of_pair_.size_bytes();
  }

 private:
  // A thread of a GPU is slow and one of thousands.
  template <class ExecutionSpace>
  static constexpr std::int64_t pairs_of_thread = detail::on_gpu<ExecutionSpace> ? 64 : 1024;
  template <class ExecutionSpace>
  static constexpr std::int64_t chunks(std::int64_t P) {
    return (P + pairs_of_thread<ExecutionSpace> - 1) / pairs_of_thread<ExecutionSpace>;
  }

  buffer<Device> offsets_;
  buffer<Device> pair_of_row_;
  buffer<Device> token_of_row_;
  buffer<Device> row_of_pair_;
};

}  // namespace lrmoe
