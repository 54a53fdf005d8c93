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
  /// place their pairs, each behind those of its expert that come before it in the chunk: no atomics,
  /// hence the same order on every backend.
  /// Order     asynchronous on the space
  /// Cost      counters(P, E) of scratch; E P comparisons, which the lanes of a GPU share
  template <class ExecutionSpace, class Unit = detail::translation_unit>
  expert_order<Device> sort(const ExecutionSpace& space, workspace<Device>& scratch,
                            const matrix_view<const index_type, Device>& experts, std::int64_t E) {
    const auto P = static_cast<std::int64_t>(experts.size());
    const auto K = static_cast<index_type>(experts.extent(1));
    constexpr std::int64_t chunk = pairs_of_chunk;
    const std::int64_t num_chunks = chunks(P);
    const expert_order<Device> order{
        offsets_.template vector<index_type>(E + 1), pair_of_row_.template vector<index_type>(P),
        token_of_row_.template vector<index_type>(P), row_of_pair_.template vector<index_type>(P)};
    const auto next_row =
        scratch["expert_sorter::next_row"].template matrix<index_type>(E, num_chunks);
    const vector_view<const index_type, Device> expert_of_pair(experts.data(), P);
    using lanes_type = detail::row_lanes<ExecutionSpace>;

    detail::for_each_row(
        "lrmoe::expert_sorter::count", space, num_chunks,
        KOKKOS_LAMBDA(const lanes_type& lanes, const std::int64_t c) {
          const index_type* ids = &expert_of_pair(c * chunk);
          const auto pairs = static_cast<int>(Kokkos::min(P - c * chunk, chunk));
          lanes.for_each(static_cast<index_type>(E), [&](const index_type e) {
            index_type count = 0;
            for (int i = 0; i < pairs; ++i) count += ids[i] == e ? 1 : 0;
            next_row(e, c) = count;
          });
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
    detail::for_each_row(
        "lrmoe::expert_sorter::place", space, num_chunks,
        KOKKOS_LAMBDA(const lanes_type& lanes, const std::int64_t c) {
          const index_type* ids = &expert_of_pair(c * chunk);
          const auto pairs = static_cast<index_type>(Kokkos::min(P - c * chunk, chunk));
          lanes.for_each(pairs, [&](const index_type i) {
            const index_type e = ids[i];
            const auto p = static_cast<index_type>(c * chunk + i);
            if (e < 0 || e >= E) {
              order.row_of_pair(p) = no_expert;
              return;
            }
            index_type row = next_row(e, c);
            for (index_type j = 0; j < i; ++j) row += ids[j] == e ? 1 : 0;
            order.row_of_pair(p) = row;
            order.pair_of_row(row) = p;
            order.token_of_row(row) = p / K;
          });
        });
    return order;
  }

  /// Counters that sorting P pairs of E experts takes from the workspace.
  static std::int64_t counters(std::int64_t P, std::int64_t E) { return E * chunks(P); }

  std::int64_t size_bytes() const {
    return offsets_.size_bytes() + pair_of_row_.size_bytes() + token_of_row_.size_bytes() +
           row_of_pair_.size_bytes();
  }

 private:
  // Two pairs for each lane of a warp; counters are then a sixteenth of a byte for each pair and expert.
  static constexpr std::int64_t pairs_of_chunk = 64;
  static constexpr std::int64_t chunks(std::int64_t P) {
    return (P + pairs_of_chunk - 1) / pairs_of_chunk;
  }

  buffer<Device> offsets_;
  buffer<Device> pair_of_row_;
  buffer<Device> token_of_row_;
  buffer<Device> row_of_pair_;
};

}  // namespace lrmoe
