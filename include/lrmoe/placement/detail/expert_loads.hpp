// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include <lrmoe/placement/planner.hpp>
#include <lrmoe/quota/scratch.hpp>

namespace lrmoe::detail {

/// L[e] (E) of this call.
inline void sum_over_sources(const placement_request& request, std::span<std::int64_t> loads) {
  std::fill(loads.begin(), loads.end(), std::int64_t{0});
  const index_type* n = request.source_counts.data();
  for (std::int64_t s = 0; s < request.R; ++s, n += loads.size())
    for (std::size_t e = 0; e < loads.size(); ++e) loads[e] += n[e];
}

/// Calls of the history that a planner with this window may use.
inline std::int64_t known_calls(const placement_request& request, std::int64_t window) {
  return request.history == nullptr ? 0 : std::min(window, request.history->size());
}

/// Sum of L[e] (E) over the last calls, as many as are known; all 1 when none is, or none had pairs: then no
/// expert is known to be hotter than another.
inline void sum_over_history(const placement_request& request, std::int64_t window,
                             std::span<std::int64_t> loads) {
  std::fill(loads.begin(), loads.end(), std::int64_t{0});
  std::int64_t total = 0;
  for (std::int64_t age = 0; age < known_calls(request, window); ++age) {
    const auto of_call = request.history->loads(age);
    for (std::size_t e = 0; e < loads.size(); ++e) total += of_call[e], loads[e] += of_call[e];
  }
  if (total == 0) std::fill(loads.begin(), loads.end(), std::int64_t{1});
}

/// Sum of n[s][e] (R, E) over the last calls; 0 when none is known.
inline void sum_matrices(const placement_request& request, std::int64_t window,
                         std::span<std::int64_t> counts) {
  std::fill(counts.begin(), counts.end(), std::int64_t{0});
  for (std::int64_t age = 0; age < known_calls(request, window); ++age) {
    const auto of_call = request.history->counts(age);
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += of_call[i];
  }
}

/// Numbers 0 .. n-1 in `order`, largest value first; of equal ones the lowest number.
template <class Value>
void sort_descending(std::span<const Value> values, std::span<index_type> order) {
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<index_type>(i);
  std::sort(order.begin(), order.end(), [&](index_type a, index_type b) {
    const Value va = values[static_cast<std::size_t>(a)], vb = values[static_cast<std::size_t>(b)];
    return va != vb ? va > vb : a < b;
  });
}

/// Whether the current placement has the extents that are asked for.
inline bool has_current(const placement_request& request) {
  return request.current != nullptr && request.current->R() == request.R &&
         request.current->S() == request.S && request.current->E() == request.E;
}

}  // namespace lrmoe::detail
