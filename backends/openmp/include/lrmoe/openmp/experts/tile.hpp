// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include <omp.h>

#include <lrmoe/experts/operations.hpp>
#include <lrmoe/memory/workspace.hpp>

namespace lrmoe::openmp {

using device_type = Kokkos::Device<Kokkos::OpenMP, Kokkos::HostSpace>;

/// Rows first .. first + rows, all of one group.
struct tile {
  std::int64_t group;
  std::int64_t first;
  std::int64_t rows;
};

/// Enough rows for a product to run near its full rate, few enough for the results to stay in cache.
inline constexpr std::int64_t tile_rows = 512;

/// A matrix in memory: row i starts at data + i * stride.
template <class Real>
struct block {
  Real* data;
  std::int64_t stride;
};

/// Runs body(tile, part) for every tile of every group and every part in [0, parts), in parallel, one
/// thread each. Tiles have at most max_rows rows.
template <class Body>
void for_each_tile(const char* label, const Kokkos::OpenMP& space,
                   const row_groups<device_type>& rows_of, std::int64_t max_rows,
                   std::int64_t parts, const Body& body) {
  const std::int64_t groups = rows_of.size();
  std::int64_t most = 0;
  for (std::int64_t g = 0; g < groups; ++g) most = std::max(most, rows_of.rows(g));
  const std::int64_t tiles = (most + max_rows - 1) / max_rows;
  using policy = Kokkos::RangePolicy<Kokkos::OpenMP, Kokkos::Schedule<Kokkos::Dynamic>>;
  Kokkos::parallel_for(label, policy(space, 0, groups * tiles * parts, Kokkos::ChunkSize(1)),
                       [&](const std::int64_t i) {
                         const std::int64_t g = i / (tiles * parts);
                         const std::int64_t first = rows_of.first(g) + i / parts % tiles * max_rows;
                         const std::int64_t rows = std::min(max_rows, rows_of.first(g + 1) - first);
                         if (rows > 0) body(tile{g, first, rows}, i % parts);
                       });
}

inline buffer<device_type>& thread_scratch_buffer(workspace<device_type>& scratch) {
  return scratch["openmp::thread_scratch"];
}

/// Scratch arrays of each thread, cut from one buffer of the workspace.
template <class Real, std::size_t Count>
class thread_scratch {
 public:
  thread_scratch(workspace<device_type>& scratch, const Kokkos::OpenMP& space,
                 const std::array<std::int64_t, Count>& sizes)
      : sizes_(sizes), per_thread_(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})) {
    base_ = thread_scratch_buffer(scratch)
                .template vector<Real>(per_thread_ * space.concurrency())
                .data();
  }

  /// The arrays of the calling thread.
  std::array<Real*, Count> mine() const {
    std::array<Real*, Count> arrays;
    Real* next = base_ + omp_get_thread_num() * per_thread_;
    for (std::size_t i = 0; i < Count; ++i) {
      arrays[i] = next;
      next += sizes_[i];
    }
    return arrays;
  }

 private:
  std::array<std::int64_t, Count> sizes_;
  std::int64_t per_thread_;
  Real* base_;
};

/// Columns first_column .. first_column + columns of the tile's rows as Real: in place where the
/// rows are evenly spaced and of that type, else gathered and widened into scratch (rows x columns).
template <class Real, class Element>
block<const Real> load_rows(const gathered_rows<Element, device_type>& source, const tile& at,
                            std::int64_t first_column, std::int64_t columns, Real* scratch) {
  const auto stride = static_cast<std::int64_t>(source.matrix.extent(1));
  const bool gathered = source.index.extent(0) != 0;
  if constexpr (std::is_same_v<Real, Element>) {
    if (!gathered || at.rows == 1) {
      const std::int64_t row = gathered ? source.index(at.first) : at.first;
      return {source.matrix.data() + row * stride + first_column, stride};
    }
  }
  for (std::int64_t i = 0; i < at.rows; ++i) {
    const std::int64_t row = gathered ? source.index(at.first + i) : at.first + i;
    const Element* from = source.matrix.data() + row * stride + first_column;
    Real* to = scratch + i * columns;
    for (std::int64_t d = 0; d < columns; ++d) to[d] = static_cast<Real>(from[d]);
  }
  return {scratch, columns};
}

/// The weight matrix of a group as Real: in place, or widened into scratch.
template <class Real, class Element>
const Real* load_group(const tensor_view<const Element, device_type>& weights, std::int64_t group,
                       Real* scratch) {
  const auto size = static_cast<std::int64_t>(weights.extent(1) * weights.extent(2));
  const Element* from = weights.data() + group * size;
  if constexpr (std::is_same_v<Real, Element>) {
    return from;
  } else {
    for (std::int64_t i = 0; i < size; ++i) scratch[i] = static_cast<Real>(from[i]);
    return scratch;
  }
}

/// Scratch elements that load_group needs.
template <class Real, class Element>
std::int64_t group_scratch(const tensor_view<const Element, device_type>& weights) {
  if constexpr (std::is_same_v<Real, Element>) {
    return 0;
  } else {
    return static_cast<std::int64_t>(weights.extent(1) * weights.extent(2));
  }
}

}  // namespace lrmoe::openmp
