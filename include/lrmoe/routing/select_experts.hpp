// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/types.hpp>

namespace lrmoe::detail {

/// Candidate of a descending order with ties to the lowest id.
template <class Value>
struct ranked_expert {
  Value value;
  index_type id;
};

/// The candidate that follows `previous` in descending order of value(e), ties by ascending id, among
/// e in [0, n) with eligible(e). Start with previous.id == no_expert. Needs no marks of what was
/// taken, hence works for any K without local storage; K calls cost K n comparisons.
template <class Value, class ValueOf, class Eligible>
KOKKOS_INLINE_FUNCTION ranked_expert<Value> next_expert(index_type n, ranked_expert<Value> previous,
                                                        const ValueOf& value,
                                                        const Eligible& eligible) {
  ranked_expert<Value> best{Value(0), no_expert};
  for (index_type e = 0; e < n; ++e) {
    if (!eligible(e)) continue;
    const Value candidate = value(e);
    const bool after_previous = previous.id == no_expert || candidate < previous.value ||
                                (candidate == previous.value && e > previous.id);
    if (after_previous && (best.id == no_expert || candidate > best.value)) best = {candidate, e};
  }
  return best;
}

}  // namespace lrmoe::detail
