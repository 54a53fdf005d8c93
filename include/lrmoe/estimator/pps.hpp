// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/estimator/estimator.hpp>
#include <lrmoe/estimator/keep_in_order.hpp>
#include <lrmoe/estimator/permutation.hpp>

namespace lrmoe {

namespace detail {

/// Running sum of inclusion probabilities in multiples of 2^-32, floor of the exact value: certain
/// rows (a number of rows) count 1 each, the open ones (a sum of integer sizes) share the open
/// quota in proportion to their sizes.
KOKKOS_INLINE_FUNCTION std::uint64_t inclusion_units(const split_sum& sum, std::uint64_t open_quota,
                                                     std::uint64_t open_total) {
  __extension__ using wide = unsigned __int128;
  const std::uint64_t whole = sum.certain << 32;
  if (open_total == 0) return whole;
  return whole +
         static_cast<std::uint64_t>((static_cast<wide>(sum.open) * open_quota << 32) / open_total);
}

}  // namespace detail

/// Order in which the running sum of a systematic draw visits the rows of a segment.
enum class pps_order {
  rows,     ///< as they come, in token order: neighbours exclude each other, which spreads the kept
            ///< rows over the batch
  shuffled  ///< pseudo-random, new in every draw
};

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
/// Settings that change the draw, and keep it unbiased and of fixed size:
///   uniform_share  lambda: sizes become (1 - lambda) a + lambda mean(a), so that no factor exceeds
///                  L/(lambda q) but by rounding. For sizes that are a poor guide, or where other
///                  gradients than dW_down matter more.
///   order          `shuffled` visits the rows of a segment in a keyed pseudo-random permutation. Pairs
///                  of rows are then kept together about as often as in a simple random sample,
///                  where `rows` never keeps close neighbours, and often rows at certain distances.
///   joint          all experts draw with the same U (and permutation key) instead of their own. Pairs
///                  of a token are then kept together where the running sums of its experts agree:
///                  always if all experts see the same tokens with equal sizes (K = E), hardly ever
///                  if each token chooses among many experts, as running sums drift apart within a
///                  few rows.
///
/// Cost      one team a segment: a maximum, a sum, a few threshold passes, one scan; `shuffled` reads
///           the rows of that scan in random order and adds a second one
/// Source    sizes: Hansen and Hurwitz 1943; systematic draw: Madow 1949, in random order: Goodman
///           and Kish 1950; fixed point: this library
struct pps {
  std::uint64_t seed = 0;
  double uniform_share = 0;  ///< lambda, in [0, 0.5], rounded to multiples of 2^-32
  pps_order order = pps_order::rows;
  bool joint = false;

  static constexpr bool keeps_all() { return false; }
  static constexpr bool unbiased() { return true; }
  void validate() const {
    require(uniform_share >= 0.0 && uniform_share <= 0.5, "pps: uniform_share = ", uniform_share,
            " is outside [0, 0.5]: lower it, or choose the estimator uniform");
    require(order == pps_order::rows || order == pps_order::shuffled,
            "pps: order = ", static_cast<int>(order),
            " is neither pps_order::rows (0) nor pps_order::shuffled (1): choose one of them");
  }

  template <class ExecutionSpace, class Device, class Unit = detail::translation_unit>
  void select(const ExecutionSpace& space, const segments<Device>& rows,
              const vector_view<const float, Device>& sizes, const draw_key& key,
              const selection<Device>& kept) const {
    using team_policy = Kokkos::TeamPolicy<ExecutionSpace>;
    using team_member = typename team_policy::member_type;
    const auto E = static_cast<int>(rows.offsets.extent(0)) - 1;
    const std::uint64_t draw_seed = seed;
    const auto lambda = static_cast<std::uint64_t>(uniform_share * 0x1p32);
    const bool shuffled = order == pps_order::shuffled;
    const bool one_start = joint;
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
          // Below 2^63, as sizes are at most 2^31 and lambda is at most 2^31; lambda = 0 changes none.
          const std::uint64_t mean_part = lambda * (sum / static_cast<std::uint64_t>(L));
          const auto size_of = [&](index_type i) {
            const std::uint64_t own_part = ((std::uint64_t{1} << 32) - lambda) * rounded(i);
            return Kokkos::max((own_part + mean_part) >> 32, least);
          };

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
            detail::split_sum certain;  // .certain counts them, .open adds their sizes
            Kokkos::parallel_reduce(
                all_rows,
                [&](const index_type i, detail::split_sum& s) {
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

          const detail::random_block random =
              key.words(draw_seed, one_start ? 0 : static_cast<std::uint32_t>(e));
          const std::uint64_t start = random.word[0];
          const detail::permutation shuffle(L, random);
          detail::scan_rows(
              team, L,
              [&](const index_type visit) {
                const std::uint64_t size = size_of(shuffled ? shuffle(visit) : visit);
                detail::split_sum value;
                if (is_certain(size)) {
                  value.certain = 1;
                } else {
                  value.open = size;
                }
                return value;
              },
              [&](const index_type visit, const detail::split_sum& before,
                  const detail::split_sum& running) {
                const index_type i = shuffled ? shuffle(visit) : visit;
                const std::uint64_t low = detail::inclusion_units(before, open_quota, open_total);
                const std::uint64_t high = detail::inclusion_units(running, open_quota, open_total);
                const auto probability = static_cast<float>(high - low) * 0x1p-32F;
                const std::uint64_t position = (low + start) >> 32;
                const bool keep = (high + start) >> 32 != position;
                if (shuffled) {
                  // The place of a kept row is not known yet; until then the sign says that it is.
                  kept.inclusion(begin + i) = keep ? -probability : probability;
                  return;
                }
                kept.inclusion(begin + i) = probability;
                if (!keep) return;
                kept.rows(kept_begin + position) = begin + i;
                kept.factors(kept_begin + position) = 1.0F / probability;
              });
          if (!shuffled) return;
          team.team_barrier();
          detail::keep_in_order(
              team, L, 0,
              [&](const index_type i) {
                return kept.inclusion(begin + i) < 0.0F ? detail::claim::certain
                                                        : detail::claim::none;
              },
              [&](const index_type i, const bool keep, const index_type place) {
                if (!keep) return;
                const float probability = -kept.inclusion(begin + i);
                kept.inclusion(begin + i) = probability;
                kept.rows(kept_begin + place) = begin + i;
                kept.factors(kept_begin + place) = 1.0F / probability;
              });
        });
  }
};

}  // namespace lrmoe
