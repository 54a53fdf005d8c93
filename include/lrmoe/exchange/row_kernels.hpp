// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/estimator/estimator.hpp>
#include <lrmoe/exchange/device_blocks.hpp>

/// Index work around the messages of row_exchange. Everything is asynchronous on the space.
namespace lrmoe {

/// What travels with a kept row beside dO.
template <class Real>
struct kept_header {
  Real weight;
  float factor;
  index_type position;  // among the rows of its source and segment
};

namespace detail {

/// index[i] = i from `first` on.
template <class ExecutionSpace, class Device, class Unit = detail::translation_unit>
void continue_index(const ExecutionSpace& space, std::int64_t first,
                    const vector_view<index_type, Device>& index) {
  Kokkos::parallel_for(
      "lrmoe::row_exchange::tail",
      Kokkos::RangePolicy<ExecutionSpace>(space, first, index.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t i) { index(i) = static_cast<index_type>(i); });
}

/// out[index[i]] = values[i]
template <class ExecutionSpace, class T, class Device, class Unit = detail::translation_unit>
void scatter_values(const ExecutionSpace& space, const vector_view<const T, Device>& values,
                    const vector_view<const index_type, Device>& index,
                    const vector_view<T, Device>& out) {
  Kokkos::parallel_for(
      "lrmoe::row_exchange::scatter",
      Kokkos::RangePolicy<ExecutionSpace>(space, 0, values.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t i) { out(index(i)) = values(i); });
}

/// Rows and factors of a selection in another order of its blocks.
template <class ExecutionSpace, class Device, class Unit = detail::translation_unit>
void reorder_selection(const ExecutionSpace& space, const device_blocks<Device>& blocks,
                       const selection<Device>& from, const selection<Device>& to) {
  Kokkos::parallel_for(
      "lrmoe::row_exchange::departing",
      Kokkos::RangePolicy<ExecutionSpace>(space, 0, to.rows.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const auto row = static_cast<index_type>(i);
        const index_type other = blocks.other(blocks.find(row), row);
        to.rows(i) = from.rows(other);
        to.factors(i) = from.factors(other);
      });
}

/// Shapes    offsets (H+1) of a source's segments; rows, factors, weights and headers (M)
template <class ExecutionSpace, class Real, class Device, class Unit = detail::translation_unit>
void fill_headers(const ExecutionSpace& space, const vector_view<const index_type, Device>& offsets,
                  const selection<Device>& kept, const vector_view<Real, Device>& weights,
                  const vector_view<kept_header<Real>, Device>& headers) {
  Kokkos::parallel_for(
      "lrmoe::row_exchange::headers",
      Kokkos::RangePolicy<ExecutionSpace>(space, 0, headers.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t m) {
        const index_type row = kept.rows(m);
        headers(m) = {weights(m), kept.factors(m), row - offsets(run_of(offsets, row))};
      });
}

/// Positions, in their segments, of the selected rows that blocks name.
template <class ExecutionSpace, class Device, class Unit = detail::translation_unit>
void fill_list(const ExecutionSpace& space, const vector_view<const index_type, Device>& offsets,
               const device_blocks<Device>& named, const selection<Device>& selected,
               const vector_view<index_type, Device>& list) {
  Kokkos::parallel_for(
      "lrmoe::row_exchange::list", Kokkos::RangePolicy<ExecutionSpace>(space, 0, list.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const auto to = static_cast<index_type>(i);
        const index_type row = selected.rows(named.other(named.find(to), to));
        list(i) = row - offsets(run_of(offsets, row));
      });
}

/// Rows, in expert order, of the positions in a list that arrived.
template <class ExecutionSpace, class Device, class Unit = detail::translation_unit>
void find_listed(const ExecutionSpace& space, const device_blocks<Device>& blocks,
                 const vector_view<const index_type, Device>& list,
                 const vector_view<index_type, Device>& rows) {
  Kokkos::parallel_for(
      "lrmoe::row_exchange::listed", Kokkos::RangePolicy<ExecutionSpace>(space, 0, rows.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const auto to = static_cast<index_type>(i);
        const index_type block = blocks.find(to);
        rows(i) = blocks.base(block) + list(blocks.other(block, to));
      });
}

/// index[i] = map[index[i]]
template <class ExecutionSpace, class Device, class Unit = detail::translation_unit>
void map_index(const ExecutionSpace& space, const vector_view<const index_type, Device>& map,
               const vector_view<index_type, Device>& index) {
  Kokkos::parallel_for(
      "lrmoe::row_exchange::map", Kokkos::RangePolicy<ExecutionSpace>(space, 0, index.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t i) { index(i) = map(index(i)); });
}

/// Weight and factor of the kept rows in expert order, the row of their saved activations, and the row of
/// their x.
/// Shapes    headers (M_here) in arrival order; arrived: row of x of each row of forward, of `here` rows and
///           of those that moved in behind them; all others (M_here)
template <class ExecutionSpace, class Real, class Device, class Unit = detail::translation_unit>
void locate_kept(const ExecutionSpace& space, const device_blocks<Device>& blocks,
                 std::int64_t here, const vector_view<const kept_header<Real>, Device>& headers,
                 const vector_view<const index_type, Device>& arrived,
                 const vector_view<Real, Device>& weights,
                 const vector_view<float, Device>& factors,
                 const vector_view<index_type, Device>& pre_rows,
                 const vector_view<index_type, Device>& x_rows) {
  Kokkos::parallel_for(
      "lrmoe::row_exchange::locate",
      Kokkos::RangePolicy<ExecutionSpace>(space, 0, weights.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const auto row = static_cast<index_type>(i);
        const index_type block = blocks.find(row);
        const kept_header<Real>& header = headers(blocks.other(block, row));
        weights(i) = header.weight;
        factors(i) = header.factor;
        const index_type base = blocks.base(block);
        const index_type at =
            base >= 0 ? base + header.position
                      : static_cast<index_type>(here) - 1 - base + (row - blocks.to(block));
        pre_rows(i) = at;
        x_rows(i) = arrived(at);
      });
}

}  // namespace detail
}  // namespace lrmoe
