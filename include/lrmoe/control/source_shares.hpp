// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <lrmoe/types.hpp>

namespace lrmoe {

namespace detail {

/// A remainder in units of L / 2^16, rounded down, less 2^15: two bytes, so that a vector instruction takes
/// many experts.
using coarse_remainder = std::int16_t;
constexpr int coarse_bits = 16;
constexpr index_type coarse_steps = 1 << coarse_bits;
constexpr coarse_remainder least_coarse = std::numeric_limits<coarse_remainder>::min(),
                           most_coarse = std::numeric_limits<coarse_remainder>::max();

/// One source's shares, rounded down, and their remainders q n - share L; `left` loses the shares.
/// Functions of their own, because only parameters keep their promise not to overlap.
/// In double, for L < 2^25: with q n below 2^50, rounding moves (q n + 1/2) / L by less than the distance to
/// the next whole number, which is 1 / (2 L) at least.
inline void floor_shares_in_double(std::size_t experts, const double* KOKKOS_RESTRICT q,
                                   const index_type* KOKKOS_RESTRICT n,
                                   const double* KOKKOS_RESTRICT L,
                                   const double* KOKKOS_RESTRICT reciprocal,
                                   index_type* KOKKOS_RESTRICT share,
                                   coarse_remainder* KOKKOS_RESTRICT remainder,
                                   index_type* KOKKOS_RESTRICT left) {
  for (std::size_t e = 0; e < experts; ++e) {
    const double product = q[e] * static_cast<double>(n[e]);
    const auto quotient = static_cast<index_type>((product + 0.5) * reciprocal[e]);
    const double rest = product - static_cast<double>(quotient) * L[e];
    const auto coarse = static_cast<index_type>(rest * reciprocal[e] * coarse_steps);
    share[e] = quotient;
    left[e] -= quotient;
    remainder[e] = static_cast<coarse_remainder>(coarse + least_coarse);
  }
}

inline void floor_shares_in_integers(std::size_t experts, const double* q, const index_type* n,
                                     const double* L, index_type* share,
                                     coarse_remainder* remainder, index_type* left) {
  for (std::size_t e = 0; e < experts; ++e) {
    const auto whole = static_cast<std::int64_t>(L[e]);
    const std::int64_t product = static_cast<std::int64_t>(q[e]) * n[e];
    share[e] = static_cast<index_type>(product / whole);
    left[e] -= share[e];
    remainder[e] =
        static_cast<coarse_remainder>(product % whole * coarse_steps / whole + least_coarse);
  }
}

/// Rows that are counted at a time, so that bounds and counts are read less often.
constexpr std::size_t counted_rows = 4;

/// Number of remainders below a bound, added up over rows of the experts.
inline void count_below(std::size_t experts, const coarse_remainder* KOKKOS_RESTRICT remainder,
                        const coarse_remainder* KOKKOS_RESTRICT bound,
                        std::int16_t* KOKKOS_RESTRICT count) {
  for (std::size_t e = 0; e < experts; ++e) {
    std::int16_t sum = count[e];
    for (std::size_t r = 0; r < counted_rows; ++r)
      sum = static_cast<std::int16_t>(sum + (remainder[r * experts + e] < bound[e] ? 1 : 0));
    count[e] = sum;
  }
}

/// Takes over the bounds tried that enough sources reach: `left` of them, or more.
inline void raise_bounds(std::size_t experts, const coarse_remainder* KOKKOS_RESTRICT tried,
                         const index_type* KOKKOS_RESTRICT reaching,
                         const index_type* KOKKOS_RESTRICT left,
                         coarse_remainder* KOKKOS_RESTRICT bound,
                         index_type* KOKKOS_RESTRICT reached) {
  for (std::size_t e = 0; e < experts; ++e) {
    const bool enough = reaching[e] >= left[e];
    bound[e] = enough ? tried[e] : bound[e];
    reached[e] = enough ? reaching[e] : reached[e];
  }
}

inline void subtract(std::size_t experts, const std::int16_t* KOKKOS_RESTRICT few,
                     index_type* KOKKOS_RESTRICT from) {
  for (std::size_t e = 0; e < experts; ++e) from[e] -= few[e];
}

/// One more pair for every remainder above a limit.
inline void add_above(std::size_t experts, const coarse_remainder* KOKKOS_RESTRICT remainder,
                      const coarse_remainder* KOKKOS_RESTRICT limit,
                      index_type* KOKKOS_RESTRICT share) {
  for (std::size_t e = 0; e < experts; ++e) share[e] += remainder[e] > limit[e] ? 1 : 0;
}

/// The largest-remainder method for many experts at once. Keeps its storage.
class largest_remainders {
 public:
  /// See split_by_source.
  void split(std::size_t sources, std::size_t experts, const index_type* source_counts,
             const index_type* quotas, index_type* shares) {
    sources_ = sources;
    experts_ = experts;
    n_ = source_counts;
    q_ = quotas;
    shares_ = shares;
    sum_counts();
    floor_shares();
    find_bounds();
    set_limits();
    for (std::size_t s = 0; s < sources_; ++s)
      add_above(experts_, row(s), limit_.data(), shares_ + s * experts_);
  }

 private:
  coarse_remainder* row(std::size_t s) { return remainder_.data() + s * experts_; }

  void sum_counts() {
    left_.assign(experts_, 0);
    for (std::size_t s = 0; s < sources_; ++s) {
      const index_type* const n = n_ + s * experts_;
      for (std::size_t e = 0; e < experts_; ++e) left_[e] += n[e];
    }
    for (auto* values : {&L_, &reciprocal_, &quota_}) values->resize(experts_);
    largest_ = 1;
    for (std::size_t e = 0; e < experts_; ++e) {
      const index_type L = std::max(left_[e], 1);
      largest_ = std::max(largest_, L);
      L_[e] = L;
      reciprocal_[e] = 1.0 / L;
      quota_[e] = left_[e] = q_[e];
    }
  }

  void floor_shares() {
    rows_ = (sources_ + counted_rows - 1) / counted_rows * counted_rows;
    remainder_.resize(std::max(remainder_.size(), rows_ * experts_));
    std::fill(row(sources_), row(rows_), most_coarse);  // below no bound
    for (std::size_t s = 0; s < sources_; ++s) {
      const index_type* const n = n_ + s * experts_;
      index_type* const share = shares_ + s * experts_;
      if (largest_ < index_type{1} << 25) {
        floor_shares_in_double(experts_, quota_.data(), n, L_.data(), reciprocal_.data(), share,
                               row(s), left_.data());
      } else {
        floor_shares_in_integers(experts_, quota_.data(), n, L_.data(), share, row(s),
                                 left_.data());
      }
    }
  }

  /// The highest coarse remainder that at least `left` sources reach, bit by bit. All reach the least. Ends
  /// when few experts are left whose winners are not just those that reach it, or further bits tell nothing.
  void find_bounds() {
    bound_.assign(experts_, least_coarse);
    reached_.assign(experts_, static_cast<index_type>(sources_));
    tried_.resize(experts_);
    open_bits_ = coarse_bits;
    while (open_bits_ > 0 && !told_apart(largest_) && undecided() > experts_ / 8) {
      const int bit = 1 << --open_bits_;
      std::transform(bound_.begin(), bound_.end(), tried_.begin(), [bit](coarse_remainder bound) {
        return static_cast<coarse_remainder>(bound + bit);
      });
      count_reaching_tried();
      raise_bounds(experts_, tried_.data(), reaching_.data(), left_.data(), bound_.data(),
                   reached_.data());
    }
  }

  /// Whether different remainders below L differ in the bits tried.
  bool told_apart(double L) const { return L * (1 << open_bits_) <= coarse_steps; }

  std::size_t undecided() const {
    std::size_t count = 0;
    for (std::size_t e = 0; e < experts_; ++e)
      count += reached_[e] != left_[e] && left_[e] != 0 ? 1 : 0;
    return count;
  }

  void count_reaching_tried() {
    reaching_.assign(experts_, static_cast<index_type>(sources_));
    constexpr std::size_t most = 4096 * counted_rows;  // rows that 16 bits can count
    for (std::size_t first = 0; first < rows_; first += most) {
      few_.assign(experts_, 0);
      for (std::size_t s = first; s < std::min(rows_, first + most); s += counted_rows)
        count_below(experts_, row(s), tried_.data(), few_.data());
      subtract(experts_, few_.data(), reaching_.data());
    }
  }

  /// The last that cannot be told from the bound with the bits tried.
  coarse_remainder top(std::size_t e) const {
    return static_cast<coarse_remainder>(bound_[e] + (1 << open_bits_) - 1);
  }

  /// Sources above the limit win: all that reach the bound, or those above what is as good as the bound.
  void set_limits() {
    limit_.resize(experts_);
    for (std::size_t e = 0; e < experts_; ++e) {
      const bool all = reached_[e] == left_[e];
      limit_[e] =
          left_[e] == 0 ? most_coarse : static_cast<coarse_remainder>(all ? bound_[e] - 1 : top(e));
      if (!all && left_[e] > 0) decide_at_bound(e);
    }
  }

  /// More sources are at the bound of an expert than win: compare their remainders exactly.
  void decide_at_bound(std::size_t e) {
    at_bound_.resize(std::max(at_bound_.size(), sources_));
    const coarse_remainder low = bound_[e], high = top(e);
    std::ptrdiff_t winners = left_[e], found = 0;
    for (std::size_t s = 0; s < sources_; ++s) {
      const coarse_remainder remainder = row(s)[e];
      at_bound_[static_cast<std::size_t>(found)].source = static_cast<index_type>(s);
      found += remainder >= low && remainder <= high ? 1 : 0;
      winners -= remainder > high ? 1 : 0;
    }
    const auto first = at_bound_.begin(), last = first + found;
    // Equal ones are in the order of sources as they are.
    if (!told_apart(L_[e])) {
      bool equal = true;
      for (auto at = first; at != last; ++at) {
        const std::size_t i = static_cast<std::size_t>(at->source) * experts_ + e;
        at->remainder = static_cast<index_type>(std::int64_t{q_[e]} * n_[i] -
                                                static_cast<std::int64_t>(L_[e]) * shares_[i]);
        equal = equal && at->remainder == first->remainder;
      }
      if (!equal) std::nth_element(first, first + winners, last);
    }
    for (auto at = first; at != first + winners; ++at)
      ++shares_[static_cast<std::size_t>(at->source) * experts_ + e];
  }

  struct candidate {
    index_type remainder, source;
    bool operator<(const candidate& other) const {
      return remainder != other.remainder ? remainder > other.remainder : source < other.source;
    }
  };

  // Of the call at hand.
  std::size_t sources_ = 0, experts_ = 0;
  std::size_t rows_ = 0;  // sources, rounded up
  int open_bits_ = 0;     // of bounds: zero, and not tried
  const index_type *n_ = nullptr, *q_ = nullptr;
  index_type* shares_ = nullptr;
  index_type largest_ = 0;  // L

  std::vector<double> L_, reciprocal_, quota_;   // (E)
  std::vector<index_type> left_;                 // (E) pairs that floors leave over
  std::vector<coarse_remainder> remainder_;      // (rows, E)
  std::vector<coarse_remainder> bound_, tried_;  // (E)
  std::vector<coarse_remainder> limit_;          // (E) sources above it get one more
  std::vector<index_type> reached_, reaching_;   // (E) sources that reach bound and tried
  std::vector<std::int16_t> few_;                // (E)
  std::vector<candidate> at_bound_;              // of one expert
};

}  // namespace detail

/// Split every expert's quota over the source ranks in proportion to their pairs, by largest
/// remainder (Hamilton's method); of equal remainders the lowest source wins.
///   shares[s][e] = floor(q[e] n[s][e] / L[e]), plus 1 for the sources with the largest remainders
/// Shapes    source_counts, shares (R, E); quotas (E), 0 <= quotas[e] <= L[e] = sum_s n[s][e], and
///           L[e] < 2^31
/// Ensures   sum_s shares[s][e] = quotas[e];  0 <= shares[s][e] <= source_counts[s][e]
/// Method    the coarse remainder of the last winner is found by bisection, for all experts together; only
///           sources that have just this one are compared exactly
/// Numerics  the shares are those of exact integer arithmetic, so every rank finds the same
/// Cost      O(R E). Loops over all counts run along rows, so that a compiler computes several experts at
///           once
inline void split_by_source(std::int64_t R, std::int64_t E,
                            std::span<const index_type> source_counts,
                            std::span<const index_type> quotas, std::span<index_type> shares) {
  if (R == 1) {
    std::copy(quotas.begin(), quotas.end(), shares.begin());
    return;
  }
  // Kept as long as the thread, so that nothing is allocated while sizes stay the same.
  thread_local detail::largest_remainders storage;
  storage.split(static_cast<std::size_t>(R), static_cast<std::size_t>(E), source_counts.data(),
                quotas.data(), shares.data());
}

}  // namespace lrmoe
