// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <vector>

#include <lrmoe/memory/buffer.hpp>
#include <lrmoe/types.hpp>

namespace lrmoe::detail {

/// Host entries where kernels can read them: as they are, or copied to the device.
template <class T, class ExecutionSpace, class Device>
const T* readable_on(const ExecutionSpace& space, const std::vector<T>& entries,
                     buffer<Device>& storage) {
  if constexpr (Kokkos::SpaceAccessibility<typename Device::execution_space,
                                           Kokkos::HostSpace>::accessible) {
    return entries.data();
  } else {
    const auto view = storage.template vector<T>(static_cast<std::int64_t>(entries.size()));
    Kokkos::deep_copy(space, view,
                      Kokkos::View<const T*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(
                          entries.data(), entries.size()));
    space.fence("lrmoe::detail::readable_on");  // the host entries change next
    return view.data();
  }
}

/// Numbers of a run that one work item takes.
inline constexpr std::int64_t block_size = 4096;

/// Copies between contiguous runs of memory, all by one kernel. From and To may differ: values are
/// rounded to nearest even.
template <class From, class To>
class copy_list {
 public:
  // Public, as nvcc asks of what a kernel captures.
  struct block {
    const From* from;
    To* to;
    std::int64_t count;
  };

  void clear() { blocks_.clear(); }

  void add(const From* from, To* to, std::int64_t count) {
    for (std::int64_t at = 0; at < count; at += block_size)
      blocks_.push_back({from + at, to + at, std::min(block_size, count - at)});
  }

  template <class ExecutionSpace, class Device, class Unit = detail::translation_unit>
  void run(const ExecutionSpace& space, buffer<Device>& storage) const {
    const auto* blocks = readable_on(space, blocks_, storage);
    Kokkos::parallel_for(
        "lrmoe::copy_list",
        Kokkos::RangePolicy<ExecutionSpace>(space, 0, static_cast<std::int64_t>(blocks_.size())),
        KOKKOS_LAMBDA(const std::int64_t b) {
          const block& work = blocks[b];
          for (std::int64_t i = 0; i < work.count; ++i) work.to[i] = static_cast<To>(work.from[i]);
        });
  }

 private:
  std::vector<block> blocks_;
};

/// Sums of several runs of memory into one each, in the order in which the runs were added.
template <class T>
class sum_list {
 public:
  // Public, as nvcc asks of what a kernel captures.
  struct block {
    T* to;
    std::int64_t count;
    std::int64_t at;  ///< of the run
    std::int64_t first_source;
    std::int64_t num_sources;
  };

  void clear() {
    blocks_.clear();
    sources_.clear();
  }

  /// Begins the sum of what add() names next.
  void begin(T* to, std::int64_t count) {
    for (std::int64_t at = 0; at < count; at += block_size)
      blocks_.push_back({to + at, std::min(block_size, count - at), at,
                         static_cast<std::int64_t>(sources_.size()), 0});
    blocks_of_run_ = (count + block_size - 1) / block_size;
  }
  void add(const T* from) {
    sources_.push_back(from);
    for (std::int64_t b = 0; b < blocks_of_run_; ++b)
      ++blocks_[blocks_.size() - 1 - static_cast<std::size_t>(b)].num_sources;
  }

  std::int64_t num_blocks() const { return static_cast<std::int64_t>(blocks_.size()); }

  /// squares (num_blocks) receives each block's sum of squares, added in a fixed order.
  template <class ExecutionSpace, class Device, class Unit = detail::translation_unit>
  void run(const ExecutionSpace& space, const vector_view<double, Device>& squares,
           buffer<Device>& block_storage, buffer<Device>& source_storage) const {
    const auto* blocks = readable_on(space, blocks_, block_storage);
    const auto* sources = readable_on(space, sources_, source_storage);
    Kokkos::parallel_for(
        "lrmoe::sum_list", Kokkos::RangePolicy<ExecutionSpace>(space, 0, num_blocks()),
        KOKKOS_LAMBDA(const std::int64_t b) {
          const block& work = blocks[b];
          const T* const* from = sources + work.first_source;
          for (std::int64_t i = 0; i < work.count; ++i) work.to[i] = from[0][work.at + i];
          for (std::int64_t s = 1; s < work.num_sources; ++s) {
            const T* source = from[s] + work.at;
            for (std::int64_t i = 0; i < work.count; ++i) work.to[i] += source[i];
          }
          // Independent sums keep the adder busy.
          constexpr int lanes = 8;
          double partial[lanes] = {};
          std::int64_t i = 0;
          for (; i + lanes <= work.count; i += lanes)
            for (int lane = 0; lane < lanes; ++lane) {
              const auto value = static_cast<double>(work.to[i + lane]);
              partial[lane] += value * value;
            }
          double sum = 0.0;
          for (int lane = 0; lane < lanes; ++lane) sum += partial[lane];
          for (; i < work.count; ++i) {
            const auto value = static_cast<double>(work.to[i]);
            sum += value * value;
          }
          squares(b) = sum;
        });
  }

 private:
  std::vector<block> blocks_;
  std::vector<const T*> sources_;
  std::int64_t blocks_of_run_ = 0;
};

}  // namespace lrmoe::detail
