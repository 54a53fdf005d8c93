// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/estimator/estimator.hpp>

namespace lrmoe {

namespace detail {

/// Running sum of inclusion probabilities, exact: certain rows count 1 each, the others share what
/// is left of the quota in proportion to their integer sizes.
struct inclusion_sum {
  std::uint64_t certain = 0;
  std::uint64_t open = 0;

  // Kokkos' team scan starts from the literal 0.
  KOKKOS_FUNCTION inclusion_sum(int /*zero*/ = 0) {}
  KOKKOS_FUNCTION inclusion_sum& operator+=(const inclusion_sum& other) {
    certain += other.certain;
    open += other.open;
    return *this;
  }
  KOKKOS_FUNCTION friend inclusion_sum operator+(inclusion_sum left, const inclusion_sum& right) {
    return left += right;
  }

  /// The sum in multiples of 2^-32: floor of the exact value.
  KOKKOS_FUNCTION std::uint64_t units(std::uint64_t open_quota, std::uint64_t open_total) const {
    __extension__ using wide = unsigned __int128;
    const std::uint64_t whole = certain << 32;
    if (open_total == 0) return whole;
    return whole +
           static_cast<std::uint64_t>((static_cast<wide>(open) * open_quota << 32) / open_total);
  }
};

}  // namespace detail

/// Sampling with probability proportional to size, fixed sample size, weights 1/pi. The default.
///
/// In a segment of L rows with quota q, row r is kept with
///   pi_r = min(1, a_r / tau),   sum_r pi_r = q,
/// where a_r is the row's size. Systematic sampling draws exactly q rows: one uniform number U in
/// [0, 1) a segment, and row r is kept when an integer lies in (C_{r-1} + U, C_r + U], C being the
/// running sum of pi. A kept row enters every gradient with factor 1/pi_r, so all gradients (dW, dX,
/// router) have the exact ones as expectation.
///
/// Integers make the draw the same on every backend and in every summation order: sizes are rounded
/// to multiples of 2^-31 of the segment's largest, C is kept in multiples of 2^-32, and pi is *defined*
/// as the difference of consecutive C, so rounding costs no bias. Sizes are not let below
/// 1/1024 of their mean, which raises their sum by at most 1/1024: a pair whose score vanishes may
/// still matter to the router (w = 0) and must be reachable, and the weights stay bounded. The floor
/// reaches every row while L/q is below 2^22. Non-finite sizes count as the largest finite one.
///
/// Cost      one team a segment: a maximum, a sum, a few threshold passes, one scan
/// Source    sizes: Hansen and Hurwitz 1943; systematic draw: Madow 1949; fixed point: this library
struct pps {
  std::uint64_t seed = 0;

  static constexpr bool keeps_all() { return false; }
  static constexpr bool unbiased() { return true; }

  template <class ExecutionSpace, class Device>
  void select(const ExecutionSpace& space, const segments<Device>& rows,
              const vector_view<const float, Device>& sizes, const draw_key& key,
              const selection<Device>& kept) const {
    using team_policy = Kokkos::TeamPolicy<ExecutionSpace>;
    using team_member = typename team_policy::member_type;
    const auto E = static_cast<int>(rows.offsets.extent(0)) - 1;
    const std::uint64_t draw_seed = seed;
    Kokkos::parallel_for(
        "lrmoe::pps::select", team_policy(space, E, Kokkos::AUTO),
        KOKKOS_LAMBDA(const team_member& team) {
          const int e = team.league_rank();
          const index_type begin = rows.offsets(e);
          const index_type L = rows.offsets(e + 1) - begin;
          const index_type kept_begin = rows.kept_offsets(e);
          const index_type q = rows.kept_offsets(e + 1) - kept_begin;
          const auto all_rows = Kokkos::TeamThreadRange(team, L);

          if (q == 0) {
            Kokkos::parallel_for(all_rows,
                                 [&](const index_type i) { kept.inclusion(begin + i) = 0.0F; });
            return;
          }

          float largest = 0;
          Kokkos::parallel_reduce(
              all_rows,
              [&](const index_type i, float& most) {
                const float size = sizes(begin + i);
                if (Kokkos::isfinite(size) && size > most) most = size;
              },
              Kokkos::Max<float>(largest));
          const double scale = largest > 0 ? 0x1p31 / static_cast<double>(largest) : 0.0;
          const auto rounded = [&](index_type i) -> std::uint64_t {
            const float size = sizes(begin + i);
            if (!Kokkos::isfinite(size)) return std::uint64_t{1} << 31;
            return static_cast<std::uint64_t>(static_cast<double>(size) * scale);
          };
          std::uint64_t sum = 0;
          Kokkos::parallel_reduce(
              all_rows, [&](const index_type i, std::uint64_t& s) { s += rounded(i); }, sum);
          const std::uint64_t least =
              Kokkos::max(sum / (static_cast<std::uint64_t>(L) * 1024), std::uint64_t{1});
          const auto size_of = [&](index_type i) { return Kokkos::max(rounded(i), least); };

          // Rows whose share of the remaining quota reaches 1 are certain. Taking them out raises
          // the share of the others, so repeat until none is added; the set only grows.
          Kokkos::parallel_reduce(
              all_rows, [&](const index_type i, std::uint64_t& s) { s += size_of(i); }, sum);
          std::uint64_t open_quota = q == L ? 0 : static_cast<std::uint64_t>(q);
          std::uint64_t open_total = q == L ? 0 : sum;
          const auto is_certain = [&](std::uint64_t size) {
            return size * open_quota >= open_total;
          };
          for (std::uint64_t certain_before = 0; open_quota > 0;) {
            detail::inclusion_sum certain;  // .certain counts them, .open adds their sizes
            Kokkos::parallel_reduce(
                all_rows,
                [&](const index_type i, detail::inclusion_sum& s) {
                  const std::uint64_t size = size_of(i);
                  if (!is_certain(size)) return;
                  ++s.certain;
                  s.open += size;
                },
                certain);
            if (certain.certain == certain_before) break;
            certain_before = certain.certain;
            open_quota = static_cast<std::uint64_t>(q) - certain.certain;
            open_total = sum - certain.open;
          }

          const std::uint64_t start = key.words(draw_seed, static_cast<std::uint32_t>(e)).word[0];
          Kokkos::parallel_scan(
              all_rows, [&](const index_type i, detail::inclusion_sum& running, const bool final) {
                const detail::inclusion_sum before = running;
                const std::uint64_t size = size_of(i);
                if (is_certain(size)) {
                  ++running.certain;
                } else {
                  running.open += size;
                }
                if (!final) return;
                const std::uint64_t low = before.units(open_quota, open_total);
                const std::uint64_t high = running.units(open_quota, open_total);
                const auto probability = static_cast<float>(high - low) * 0x1p-32F;
                kept.inclusion(begin + i) = probability;
                const std::uint64_t position = (low + start) >> 32;
                if ((high + start) >> 32 == position) return;
                kept.rows(kept_begin + position) = begin + i;
                kept.factors(kept_begin + position) = 1.0F / probability;
              });
        });
  }
};

}  // namespace lrmoe
