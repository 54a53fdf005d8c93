// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

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

  /// Floats in the order of `before`, the first as the largest number, so that a GPU finds it in one
  /// instruction; and back.
  KOKKOS_INLINE_FUNCTION std::uint32_t rank_bits() const requires std::is_same_v<Value, float> {
    const auto bits = Kokkos::bit_cast<std::uint32_t>(value + 0.0F);  // -0 becomes 0, its equal
    return (bits & sign) != 0 ? ~bits : bits | sign;
  }
  KOKKOS_INLINE_FUNCTION static ranked_expert of(
      std::uint32_t rank_bits, index_type id) requires std::is_same_v<Value, float> {
    return {Kokkos::bit_cast<float>((rank_bits & sign) != 0 ? rank_bits & ~sign : ~rank_bits), id};
  }

 private:
  static constexpr std::uint32_t sign = 0x80000000U;
};

/// The candidate that follows `previous` in descending order of values (lanes.values), ties by ascending id,
/// among ids e with eligible(e); NaN is no candidate. Begin with start(). Needs no marks of what was taken,
/// hence works for any K without local storage; K calls cost K comparisons for each value. On a GPU the lanes
/// of a row share them, and all know the answer.
template <class Value, class Lanes, class Values, class Eligible>
KOKKOS_INLINE_FUNCTION ranked_expert<Value> next_expert(const Lanes& lanes, const Values& values,
                                                        const ranked_expert<Value>& previous,
                                                        const Eligible& eligible) {
  return lanes.template first<ranked_expert<Value>>(values, [&](index_type e, Value value) {
    const ranked_expert<Value> candidate{value, e};
    return previous.before(candidate) && eligible(e) ? candidate : ranked_expert<Value>{};
  });
}

}  // namespace lrmoe::detail
