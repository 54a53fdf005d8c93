// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <string>

#include <lrmoe/types.hpp>

/// Kernels over the rows of matrices, written once for processors and GPUs. On a processor a thread has a
/// row to itself and walks it in long blocks, which compilers vectorise; on a GPU the lanes of a warp share
/// a row and take blocks of 16 bytes.
///
///   for_each_row("label", space, rows, KOKKOS_LAMBDA(const row_lanes<Space>& lanes, std::int64_t i) {
///     lanes.for_each_block<Element>(columns, [&](std::int64_t first, int width) { ... });
///   });
namespace lrmoe::detail {

template <class ExecutionSpace>
inline constexpr bool on_gpu =
    !Kokkos::SpaceAccessibility<Kokkos::HostSpace,
                                typename ExecutionSpace::memory_space>::accessible;

/// Columns that a lane takes at once.
template <class ExecutionSpace, class Element>
inline constexpr int row_block = on_gpu<ExecutionSpace> ? static_cast<int>(16 / sizeof(Element))
                                                        : 64;

/// Elements that one instruction of a GPU loads or stores.
template <class Element>
struct alignas(16) element_chunk {
  Element element[16 / sizeof(Element)];
};

template <class Element>
KOKKOS_FORCEINLINE_FUNCTION bool chunk_aligned(const Element* at) {
  return reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
}

/// body(i) for i in [0, width), width at most a block. On a GPU the loop has a fixed length, so that
/// arrays of a block stay in registers.
template <class ExecutionSpace, class Element, class Body>
KOKKOS_FORCEINLINE_FUNCTION void for_columns(int width, const Body& body) {
  if constexpr (on_gpu<ExecutionSpace>) {
    for (int i = 0; i < row_block<ExecutionSpace, Element>; ++i) {
      if (i < width) body(i);
    }
  } else {
    for (int i = 0; i < width; ++i) body(i);
  }
}

/// values[i] = from[i] for `width` elements of a block.
template <class ExecutionSpace, class Element, class Real>
KOKKOS_FORCEINLINE_FUNCTION void load_block(const Element* from, int width,
                                            Real (&values)[row_block<ExecutionSpace, Element>]) {
  constexpr int block = row_block<ExecutionSpace, Element>;
  if constexpr (on_gpu<ExecutionSpace>) {
    if (width == block && chunk_aligned(from)) {
      const auto chunk = *reinterpret_cast<const element_chunk<Element>*>(from);
      for (int i = 0; i < block; ++i) values[i] = static_cast<Real>(chunk.element[i]);
      return;
    }
  }
  for_columns<ExecutionSpace, Element>(width,
                                       [&](int i) { values[i] = static_cast<Real>(from[i]); });
}

/// to[i] = values[i], rounded to Element.
template <class ExecutionSpace, class Element, class Real>
KOKKOS_FORCEINLINE_FUNCTION void store_block(
    Element* to, int width, const Real (&values)[row_block<ExecutionSpace, Element>]) {
  constexpr int block = row_block<ExecutionSpace, Element>;
  if constexpr (on_gpu<ExecutionSpace>) {
    if (width == block && chunk_aligned(to)) {
      element_chunk<Element> chunk;
      for (int i = 0; i < block; ++i) chunk.element[i] = static_cast<Element>(values[i]);
      *reinterpret_cast<element_chunk<Element>*>(to) = chunk;
      return;
    }
  }
  for_columns<ExecutionSpace, Element>(width,
                                       [&](int i) { to[i] = static_cast<Element>(values[i]); });
}

/// The lanes that share a row: on a processor a single one.
template <class ExecutionSpace, bool Gpu = on_gpu<ExecutionSpace>>
class row_lanes {
 public:
  /// body(first, width) for every block of columns; width is row_block or, in the last block, less.
  template <class Element, class Body>
  KOKKOS_FORCEINLINE_FUNCTION void for_each_block(std::int64_t columns, const Body& body) const {
    constexpr int block = row_block<ExecutionSpace, Element>;
    std::int64_t first = 0;
    for (; first + block <= columns; first += block) body(first, block);
    if (first < columns) body(first, static_cast<int>(columns - first));
  }

  /// The sum of body(first, width) over all blocks, known to every lane.
  template <class Element, class Real, class Body>
  KOKKOS_FORCEINLINE_FUNCTION Real sum_blocks(std::int64_t columns, const Body& body) const {
    Real sum = 0;
    for_each_block<Element>(columns,
                            [&](std::int64_t first, int width) { sum += body(first, width); });
    return sum;
  }

  /// to[d] = from[d]
  template <class Element>
  KOKKOS_FORCEINLINE_FUNCTION void copy(const Element* from, Element* to,
                                        std::int64_t columns) const {
    for (std::int64_t d = 0; d < columns; ++d) to[d] = from[d];
  }

  /// The sum of the row's squares, known to every lane.
  template <class Element>
  KOKKOS_FORCEINLINE_FUNCTION accumulate_t<Element> sum_squares(const Element* row,
                                                                std::int64_t columns) const {
    accumulate_t<Element> sum = 0;
    for (std::int64_t d = 0; d < columns; ++d) {
      const auto value = static_cast<accumulate_t<Element>>(row[d]);
      sum += value * value;
    }
    return sum;
  }

  /// body() once for the row.
  template <class Body>
  KOKKOS_FORCEINLINE_FUNCTION void once(const Body& body) const {
    body();
  }
};

template <class ExecutionSpace>
class row_lanes<ExecutionSpace, true> {
 public:
  using member_type = typename Kokkos::TeamPolicy<ExecutionSpace>::member_type;
  KOKKOS_FORCEINLINE_FUNCTION explicit row_lanes(const member_type& team) : team_(team) {}

  template <class Element, class Body>
  KOKKOS_FORCEINLINE_FUNCTION void for_each_block(std::int64_t columns, const Body& body) const {
    constexpr int block = row_block<ExecutionSpace, Element>;
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team_, blocks(columns, block)), [&](int i) {
      const std::int64_t first = static_cast<std::int64_t>(i) * block;
      body(first, static_cast<int>(Kokkos::min<std::int64_t>(block, columns - first)));
    });
  }

  template <class Element, class Real, class Body>
  KOKKOS_FORCEINLINE_FUNCTION Real sum_blocks(std::int64_t columns, const Body& body) const {
    constexpr int block = row_block<ExecutionSpace, Element>;
    Real total = 0;
    Kokkos::parallel_reduce(
        Kokkos::ThreadVectorRange(team_, blocks(columns, block)),
        [&](int i, Real& sum) {
          const std::int64_t first = static_cast<std::int64_t>(i) * block;
          sum += body(first, static_cast<int>(Kokkos::min<std::int64_t>(block, columns - first)));
        },
        total);
    return total;
  }

  template <class Element>
  KOKKOS_FORCEINLINE_FUNCTION void copy(const Element* from, Element* to,
                                        std::int64_t columns) const {
    const bool aligned = chunk_aligned(from) && chunk_aligned(to);
    for_each_block<Element>(columns, [&](std::int64_t first, int width) {
      constexpr int block = row_block<ExecutionSpace, Element>;
      if (aligned && width == block) {
        *reinterpret_cast<element_chunk<Element>*>(to + first) =
            *reinterpret_cast<const element_chunk<Element>*>(from + first);
      } else {
        for (int d = 0; d < width; ++d) to[first + d] = from[first + d];
      }
    });
  }

  template <class Element>
  KOKKOS_FORCEINLINE_FUNCTION accumulate_t<Element> sum_squares(const Element* row,
                                                                std::int64_t columns) const {
    using real = accumulate_t<Element>;
    return sum_blocks<Element, real>(columns, [&](std::int64_t first, int width) {
      constexpr int block = row_block<ExecutionSpace, Element>;
      real values[block], sum = 0;
      load_block<ExecutionSpace>(row + first, width, values);
      for_columns<ExecutionSpace, Element>(width, [&](int d) { sum += values[d] * values[d]; });
      return sum;
    });
  }

  template <class Body>
  KOKKOS_FORCEINLINE_FUNCTION void once(const Body& body) const {
    Kokkos::single(Kokkos::PerThread(team_), body);
  }

 private:
  static KOKKOS_FORCEINLINE_FUNCTION int blocks(std::int64_t columns, int block) {
    return static_cast<int>((columns + block - 1) / block);
  }

  const member_type& team_;
};

/// Row kernels of a GPU: warps of a block have rows of their own.
template <class ExecutionSpace, class Body>
struct row_team {
  std::int64_t rows;
  Body body;

  KOKKOS_FUNCTION void operator()(
      const typename Kokkos::TeamPolicy<ExecutionSpace>::member_type& team) const {
    const std::int64_t row =
        static_cast<std::int64_t>(team.league_rank()) * team.team_size() + team.team_rank();
    if (row < rows) body(row_lanes<ExecutionSpace>(team), row);
  }
};

/// body(lanes, i) for every row i in [0, rows), asynchronously on the space.
template <class ExecutionSpace, class Body>
void for_each_row(const std::string& label, const ExecutionSpace& space, std::int64_t rows,
                  const Body& body) {
  if constexpr (on_gpu<ExecutionSpace>) {
    constexpr int warps = 4, warp = 32;
    if (rows == 0) return;
    Kokkos::parallel_for(label,
                         Kokkos::TeamPolicy<ExecutionSpace>(
                             space, static_cast<int>((rows + warps - 1) / warps), warps, warp),
                         row_team<ExecutionSpace, Body>{rows, body});
  } else {
    Kokkos::parallel_for(label, Kokkos::RangePolicy<ExecutionSpace>(space, 0, rows),
                         [=](const std::int64_t i) { body(row_lanes<ExecutionSpace>{}, i); });
  }
}

}  // namespace lrmoe::detail
