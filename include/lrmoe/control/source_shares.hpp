// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <lrmoe/types.hpp>

namespace lrmoe {

namespace detail {

/// One source's shares, rounded down, and their remainders q n - share L; `left` loses the shares.
/// A function of its own, because only parameters keep their promise not to overlap.
template <class Number>
void floor_shares(std::size_t experts, const index_type* KOKKOS_RESTRICT q,
                  const index_type* KOKKOS_RESTRICT n, const index_type* KOKKOS_RESTRICT L,
                  index_type* KOKKOS_RESTRICT share, index_type* KOKKOS_RESTRICT remainder,
                  index_type* KOKKOS_RESTRICT left) {
  for (std::size_t e = 0; e < experts; ++e) {
    const Number product = static_cast<Number>(q[e]) * static_cast<Number>(n[e]);
    const auto quotient = static_cast<index_type>(product / static_cast<Number>(L[e]));
    const Number rest = product - static_cast<Number>(quotient) * static_cast<Number>(L[e]);
    share[e] = quotient;
    remainder[e] = static_cast<index_type>(rest);
    left[e] -= quotient;
  }
}

}  // namespace detail

/// Split every expert's quota over the source ranks in proportion to their pairs, by largest
/// remainder (Hamilton's method); of equal remainders the lowest source wins.
///   shares[s][e] = floor(q[e] n[s][e] / L[e]), plus 1 for the sources with the largest remainders
/// Shapes    source_counts, shares (R, E); quotas (E), 0 <= quotas[e] <= L[e] = sum_s n[s][e], and
///           L[e] < 2^31
/// Ensures   sum_s shares[s][e] = quotas[e];  0 <= shares[s][e] <= source_counts[s][e]
/// Numerics  the shares are those of exact integer arithmetic, so every rank finds the same
/// Cost      O(R E log max L). All loops run along rows, so that a compiler computes several experts
///           at once; the least remainder that wins is found by bisection, for all experts together.
inline void split_by_source(std::int64_t R, std::int64_t E,
                            std::span<const index_type> source_counts,
                            std::span<const index_type> quotas, std::span<index_type> shares) {
  const auto experts = static_cast<std::size_t>(E);
  const auto sources = static_cast<std::size_t>(R);
  // Kept as long as the thread, so that nothing is allocated while sizes stay the same.
  thread_local std::vector<index_type> storage;
  storage.resize(std::max(storage.size(), (6 + sources) * experts));
  std::fill_n(storage.begin(), 6 * experts, 0);
  index_type* const L = storage.data();
  index_type* const left = L + experts;      // pairs that the floors leave over
  index_type* const wins = left + experts;   // a remainder of at least this wins
  index_type* const tried = wins + experts;  // one that may be too high
  index_type* const winners = tried + experts;
  index_type* const ties = winners + experts;
  index_type* const remainder = ties + experts;  // (R, E)
  const index_type* const q = quotas.data();

  for (std::size_t s = 0; s < sources; ++s) {
    const index_type* const n = &source_counts[s * experts];
    for (std::size_t e = 0; e < experts; ++e) L[e] += n[e];
  }
  index_type largest = 1;
  for (std::size_t e = 0; e < experts; ++e) {
    L[e] = std::max(L[e], 1);
    left[e] = q[e];
    largest = std::max(largest, L[e]);
  }

  // Below 2^26, products are exact in double, and a quotient that is no whole number is further from
  // the next one, by at least 1 / L, than rounding takes it.
  const bool exact_in_double = largest < index_type{1} << 26;
  for (std::size_t s = 0; s < sources; ++s) {
    const auto divide =
        exact_in_double ? detail::floor_shares<double> : detail::floor_shares<std::int64_t>;
    divide(experts, q, &source_counts[s * experts], L, &shares[s * experts],
           remainder + s * experts, left);
  }

  // The highest remainder that at least `left` sources reach, bit by bit. All reach 0.
  for (int bit = std::bit_width(static_cast<std::uint32_t>(largest)) - 1; bit >= 0; --bit) {
    for (std::size_t e = 0; e < experts; ++e) {
      tried[e] = wins[e] + (index_type{1} << bit);
      winners[e] = 0;
    }
    for (std::size_t s = 0; s < sources; ++s) {
      const index_type* const rest = remainder + s * experts;
      for (std::size_t e = 0; e < experts; ++e) winners[e] += rest[e] >= tried[e] ? 1 : 0;
    }
    for (std::size_t e = 0; e < experts; ++e) wins[e] = winners[e] >= left[e] ? tried[e] : wins[e];
  }
  for (std::size_t e = 0; e < experts; ++e) ties[e] = left[e];
  for (std::size_t s = 0; s < sources; ++s) {
    const index_type* const rest = remainder + s * experts;
    for (std::size_t e = 0; e < experts; ++e) ties[e] -= rest[e] > wins[e] ? 1 : 0;
  }
  for (std::size_t s = 0; s < sources; ++s) {
    const index_type* const rest = remainder + s * experts;
    index_type* const share = &shares[s * experts];
    for (std::size_t e = 0; e < experts; ++e) {
      const index_type tie = (rest[e] == wins[e] ? 1 : 0) & (ties[e] > 0 ? 1 : 0);
      ties[e] -= tie;
      share[e] += (rest[e] > wins[e] ? 1 : 0) + tie;
    }
  }
}

}  // namespace lrmoe
