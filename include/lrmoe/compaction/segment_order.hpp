// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <vector>

#include <lrmoe/compaction/expert_order.hpp>
#include <lrmoe/control/replica_plan.hpp>
#include <lrmoe/exchange/device_blocks.hpp>
#include <lrmoe/memory/upload.hpp>

namespace lrmoe {

namespace detail {

/// Move the rows of an order by blocks: row i of `to` is row blocks.other(i) of `from`.
template <class ExecutionSpace, class Device, class Unit = detail::translation_unit>
void reorder_rows(const ExecutionSpace& space, const device_blocks<Device>& blocks, std::int64_t N,
                  const expert_order<Device>& from, const expert_order<Device>& to) {
  Kokkos::parallel_for(
      "lrmoe::segment_order::reorder", Kokkos::RangePolicy<ExecutionSpace>(space, 0, N),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const auto row = static_cast<index_type>(i);
        const index_type other = blocks.other(blocks.find(row), row);
        const index_type pair = from.pair_of_row(other);
        to.pair_of_row(i) = pair;
        to.token_of_row(i) = from.token_of_row(other);
        to.row_of_pair(pair) = row;
      });
}

}  // namespace detail

/// Turns the expert order of one source into the order of segments, where experts have replicas or do not
/// lie on ranks in their order. Owns the result's storage.
template <class Device>
class segment_sorter {
 public:
  segment_sorter(const typename Device::execution_space& space, ledger& account)
      : words_(space, account, memory_category::token_buffers, "segment_sorter::words"),
        pair_of_row_(space, account, memory_category::token_buffers, "segment_sorter::pair_of_row"),
        token_of_row_(space, account, memory_category::token_buffers,
                      "segment_sorter::token_of_row") {}

  /// Numbers of index_type that describe the order of H segments.
  static constexpr std::int64_t words(std::int64_t H) { return 2 * H + 1; }

  /// An expert's rows go to its segments in ascending order, each a run of them.
  /// Shapes    order of N rows with host_offsets (E+1) by expert; the result has offsets (H+1) by segment.
  ///           It takes over row_of_pair, and its other rows are its own
  /// Order     asynchronous on the space
  template <class ExecutionSpace>
  expert_order<Device> sort(const ExecutionSpace& space, const replica_plan& plan,
                            std::int64_t source, const expert_order<Device>& order,
                            const std::vector<index_type>& host_offsets) {
    blocks_.clear();
    next_.assign(host_offsets.begin(), host_offsets.end() - 1);
    for (std::int64_t h = 0; h < plan.H; ++h) {
      const index_type count = plan.count(source, h);
      index_type& next = next_[static_cast<std::size_t>(plan.expert[static_cast<std::size_t>(h)])];
      blocks_.add(next, count);
      next += count;
    }
    host_words_.clear();
    for (const auto* values : {&blocks_.to, &blocks_.from})
      host_words_.insert(host_words_.end(), values->begin(), values->end());
    const std::int64_t N = blocks_.rows(), H = plan.H;
    const auto on_device = upload(space, host_words_, words_);
    const auto part = [&](std::int64_t first, std::int64_t count) {
      return vector_view<index_type, Device>(
          Kokkos::subview(on_device, std::pair(first, first + count)));
    };
    const expert_order<Device> sorted{part(0, H + 1), pair_of_row_.template vector<index_type>(N),
                                      token_of_row_.template vector<index_type>(N),
                                      order.row_of_pair};
    const device_blocks<Device> blocks{sorted.offsets, part(H + 1, H), {}};
    detail::reorder_rows(space, blocks, N, order, sorted);
    return sorted;
  }

  std::int64_t size_bytes() const {
    return words_.size_bytes() + pair_of_row_.size_bytes() + token_of_row_.size_bytes();
  }

 private:
  buffer<Device> words_, pair_of_row_, token_of_row_;
  row_blocks blocks_;
  std::vector<index_type> next_;        // (E)
  std::vector<index_type> host_words_;  // offsets and blocks, for the device
};

}  // namespace lrmoe
