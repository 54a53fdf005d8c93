// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <limits>

#include <lrmoe/detail/row_parallel.hpp>

namespace lrmoe::detail {

/// Candidate of a descending order with ties to the lowest id. By default the one behind all others: none.
template <class Value>
struct ranked_expert {
  Value value = -Kokkos::Experimental::infinity_v<Value>;
  index_type id = std::numeric_limits<index_type>::max();

  /// The one before all others.
  KOKKOS_INLINE_FUNCTION static ranked_expert start() {
    return {Kokkos::Experimental::infinity_v<Value>, -1};
  }
  KOKKOS_INLINE_FUNCTION bool before(const ranked_expert& other) const {
    return value > other.value || (value == other.value && id < other.id);
  }
  KOKKOS_INLINE_FUNCTION bool none() const { return id == ranked_expert{}.id; }
};

/// The candidate that follows `previous` in descending order of value(e), ties by ascending id, among
/// e in [0, n) with eligible(e); NaN is no candidate. Begin with start(). Needs no marks of what was taken,
/// hence works for any K without local storage; K calls cost K n comparisons. On a GPU the lanes of a
/// row share them, and all know the answer.
template <class Value, class Lanes, class ValueOf, class Eligible>
KOKKOS_INLINE_FUNCTION ranked_expert<Value> next_expert(const Lanes& lanes, index_type n,
                                                        const ranked_expert<Value>& previous,
                                                        const ValueOf& value,
                                                        const Eligible& eligible) {
  return lanes.template first<ranked_expert<Value>>(n, [&](index_type e) {
    const ranked_expert<Value> candidate{value(e), e};
    return previous.before(candidate) && eligible(e) ? candidate : ranked_expert<Value>{};
  });
}

}  // namespace lrmoe::detail
