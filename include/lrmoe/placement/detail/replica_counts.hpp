// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <lrmoe/types.hpp>

namespace lrmoe::detail {

/// Load of one slot of an expert with c slots, in 2^-16 pairs: whole numbers, so that sums do not depend on
/// their order.
inline std::int64_t slot_load(std::int64_t L, std::int64_t c) {
  return (L << 16) / c;
}

/// Gives `slots` more slots, one after the other, to the expert with the highest L[e] / c[e] (ties: lowest
/// expert). step(e) says how many it takes at once: 0 for none ever again.
///   loads, count (E)
/// Ensures   the slots that nobody took
/// Cost      O((E + slots) log E); storage is the thread's
template <class Step>
std::int64_t replicate_hottest(std::span<const std::int64_t> loads, std::int64_t slots,
                               std::span<std::int64_t> count, const Step& step) {
  thread_local std::vector<std::size_t> heap;
  const auto colder = [&](std::size_t a, std::size_t b) {
    const std::int64_t left = loads[a] * count[b], right = loads[b] * count[a];
    return left != right ? left < right : a > b;
  };
  heap.clear();
  for (std::size_t e = 0; e < loads.size(); ++e) heap.push_back(e);
  std::make_heap(heap.begin(), heap.end(), colder);
  while (slots > 0 && !heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), colder);
    const std::size_t e = heap.back();
    const std::int64_t taken = step(e, slots);
    if (taken == 0) {
      heap.pop_back();
      continue;
    }
    count[e] += taken;
    slots -= taken;
    std::push_heap(heap.begin(), heap.end(), colder);
  }
  return slots;
}

}  // namespace lrmoe::detail
