// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <string>
#include <vector>

#include <lrmoe/context.hpp>

namespace lrmoe {

namespace detail {

/// parts[0][i] = sum_r parts[r][i], in ascending order of r.
/// Shapes    parts (R, size)
template <class ExecutionSpace, class T, class Device, class Unit = detail::translation_unit>
void add_parts(const ExecutionSpace& space, const vector_view<T, Device>& parts, std::int64_t size,
               std::int64_t R) {
  Kokkos::parallel_for(
      "lrmoe::sum_array::add", Kokkos::RangePolicy<ExecutionSpace>(space, 0, size),
      KOKKOS_LAMBDA(const std::int64_t i) {
        T sum = parts(i);
        for (std::int64_t r = 1; r < R; ++r) sum += parts(r * size + i);
        parts(i) = sum;
      });
}

}  // namespace detail

/// Sum an array over the ranks of a context: gradients of what every rank holds, such as the shared expert's.
///   values[i] = sum_r values_r[i], on every rank
/// Shapes    values (n), n the same on all ranks
/// Method    each rank adds up one R-th of the array and gives the others its sums
/// Numerics  in ascending rank order: the same bits on every rank and from run to run
/// Order     collective; as the communicator's all_to_all
/// Space     n values of workspace, rounded up to a multiple of R
/// Cost      sends 2 n (R - 1) / R values a rank
template <class T, backend Backend>
void sum_array(context<Backend>& on, const vector_view<T, typename Backend::device_type>& values) {
  const std::int64_t R = on.ranks.size(), rank = on.ranks.rank();
  if (R == 1) return;
  const auto n = static_cast<std::int64_t>(values.extent(0));
  const auto begin = [&](std::int64_t r) { return n / R * r + n % R * r / R; };
  const std::int64_t own = begin(rank + 1) - begin(rank);
  const auto offsets = [&](const auto& first) {
    std::vector<std::int64_t> bytes;
    for (std::int64_t r = 0; r <= R; ++r)
      bytes.push_back(first(r) * static_cast<std::int64_t>(sizeof(T)));
    return bytes;
  };
  const auto slices = offsets(begin);
  const auto parts_of_own = offsets([&](std::int64_t r) { return r * own; });
  const auto parts = on.scratch["sum_array::parts"].template vector<T>(R * own);
  auto* const bytes = reinterpret_cast<std::byte*>(values.data());
  on.ranks.all_to_all(on.space, bytes, slices, reinterpret_cast<std::byte*>(parts.data()),
                      parts_of_own);
  detail::add_parts(on.space, parts, own, R);
  // Every rank sends the same sums to all.
  for (std::int64_t r = 1; r < R; ++r) {
    Kokkos::deep_copy(on.space, Kokkos::subview(parts, std::pair(r * own, (r + 1) * own)),
                      Kokkos::subview(parts, std::pair(std::int64_t{0}, own)));
  }
  on.ranks.all_to_all(on.space, reinterpret_cast<const std::byte*>(parts.data()), parts_of_own,
                      bytes, slices);
}

}  // namespace lrmoe
