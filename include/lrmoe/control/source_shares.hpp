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
/// Functions of their own, because only parameters keep their promise not to overlap.
/// In double, where q n is exact below 2^52: a quotient from the reciprocal of L is off by one at most,
/// which the remainder shows.
template <class Rest>
void floor_shares_in_double(std::size_t experts, const index_type* KOKKOS_RESTRICT q,
                            const index_type* KOKKOS_RESTRICT n,
                            const index_type* KOKKOS_RESTRICT L,
                            const double* KOKKOS_RESTRICT reciprocal,
                            index_type* KOKKOS_RESTRICT share, Rest* KOKKOS_RESTRICT remainder,
                            index_type* KOKKOS_RESTRICT left) {
  for (std::size_t e = 0; e < experts; ++e) {
    const double product = static_cast<double>(q[e]) * static_cast<double>(n[e]);
    index_type quotient = static_cast<index_type>(product * reciprocal[e]);
    auto rest = static_cast<index_type>(product -
                                        static_cast<double>(quotient) * static_cast<double>(L[e]));
    const index_type low = rest < 0 ? 1 : 0, high = rest >= L[e] ? 1 : 0;
    quotient += high - low;
    rest += (low - high) * L[e];
    share[e] = quotient;
    remainder[e] = static_cast<Rest>(rest);
    left[e] -= quotient;
  }
}

template <class Rest>
void floor_shares_in_integers(std::size_t experts, const index_type* q, const index_type* n,
                              const index_type* L, index_type* share, Rest* remainder,
                              index_type* left) {
  for (std::size_t e = 0; e < experts; ++e) {
    const std::int64_t product = std::int64_t{q[e]} * n[e];
    share[e] = static_cast<index_type>(product / L[e]);
    remainder[e] = static_cast<Rest>(product % L[e]);
    left[e] -= share[e];
  }
}

/// Number of rests that reach a bound, added up over the rows of one expert.
template <class Rest>
void count_reaching(std::size_t experts, const Rest* KOKKOS_RESTRICT rest,
                    const Rest* KOKKOS_RESTRICT bound, Rest* KOKKOS_RESTRICT count) {
  for (std::size_t e = 0; e < experts; ++e)
    count[e] = static_cast<Rest>(count[e] + (rest[e] >= bound[e] ? 1 : 0));
}

/// The pairs that floors leave over go to the largest remainders. Rest holds remainders and numbers of
/// sources: the narrower it is, the more experts a vector instruction takes.
template <class Rest>
void split_by_source(std::size_t sources, std::size_t experts, const index_type* source_counts,
                     const index_type* q, index_type* shares, const index_type* L,
                     index_type largest, index_type* left) {
  // Kept as long as the thread, so that nothing is allocated while sizes stay the same.
  thread_local std::vector<Rest> storage;
  thread_local std::vector<double> reciprocal;
  storage.resize(std::max(storage.size(), (5 + sources) * experts));
  reciprocal.resize(std::max(reciprocal.size(), experts));
  std::fill_n(storage.begin(), 5 * experts, Rest{0});
  Rest* const wins = storage.data();   // a remainder of at least this wins
  Rest* const tried = wins + experts;  // one that may be too high
  Rest* const winners = tried + experts;
  Rest* const open = winners + experts;  // pairs left over
  Rest* const ties = open + experts;
  Rest* const remainder = ties + experts;  // (R, E)

  for (std::size_t e = 0; e < experts; ++e) reciprocal[e] = 1.0 / L[e];
  for (std::size_t s = 0; s < sources; ++s) {
    const index_type* const n = source_counts + s * experts;
    index_type* const share = shares + s * experts;
    Rest* const rest = remainder + s * experts;
    if (largest < index_type{1} << 26) {
      floor_shares_in_double(experts, q, n, L, reciprocal.data(), share, rest, left);
    } else {
      floor_shares_in_integers(experts, q, n, L, share, rest, left);
    }
  }
  for (std::size_t e = 0; e < experts; ++e) open[e] = static_cast<Rest>(left[e]);

  // The highest remainder that at least `open` sources reach, bit by bit. All reach 0.
  for (int bit = std::bit_width(static_cast<std::uint32_t>(largest)) - 1; bit >= 0; --bit) {
    for (std::size_t e = 0; e < experts; ++e) {
      tried[e] = static_cast<Rest>(wins[e] + (Rest{1} << bit));
      winners[e] = 0;
    }
    for (std::size_t s = 0; s < sources; ++s)
      count_reaching(experts, remainder + s * experts, tried, winners);
    for (std::size_t e = 0; e < experts; ++e) wins[e] = winners[e] >= open[e] ? tried[e] : wins[e];
  }
  std::copy_n(open, experts, ties);
  for (std::size_t s = 0; s < sources; ++s) {
    const Rest* const rest = remainder + s * experts;
    for (std::size_t e = 0; e < experts; ++e)
      ties[e] = static_cast<Rest>(ties[e] - (rest[e] > wins[e] ? 1 : 0));
  }
  for (std::size_t s = 0; s < sources; ++s) {
    const Rest* const rest = remainder + s * experts;
    index_type* const share = shares + s * experts;
    for (std::size_t e = 0; e < experts; ++e) {
      const Rest tie = static_cast<Rest>((rest[e] == wins[e] ? 1 : 0) & (ties[e] > 0 ? 1 : 0));
      ties[e] = static_cast<Rest>(ties[e] - tie);
      share[e] += (rest[e] > wins[e] ? 1 : 0) + tie;
    }
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
  thread_local std::vector<index_type> storage;
  storage.resize(std::max(storage.size(), 2 * experts));
  index_type* const L = storage.data();
  index_type* const left = L + experts;  // pairs that the floors leave over
  std::fill_n(L, experts, 0);
  for (std::size_t s = 0; s < sources; ++s) {
    const index_type* const n = &source_counts[s * experts];
    for (std::size_t e = 0; e < experts; ++e) L[e] += n[e];
  }
  index_type largest = 1;
  for (std::size_t e = 0; e < experts; ++e) {
    L[e] = std::max(L[e], 1);
    left[e] = quotas[e];
    largest = std::max(largest, L[e]);
  }
  constexpr index_type narrow = index_type{1} << 15;
  const auto split = largest < narrow && R < narrow ? detail::split_by_source<std::int16_t>
                                                    : detail::split_by_source<index_type>;
  split(sources, experts, source_counts.data(), quotas.data(), shares.data(), L, largest, left);
}

}  // namespace lrmoe
