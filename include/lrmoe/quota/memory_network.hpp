// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <sstream>

#include <lrmoe/control/source_shares.hpp>
#include <lrmoe/quota/experts_of_ranks.hpp>
#include <lrmoe/quota/keep_all.hpp>

namespace lrmoe {

/// Another policy's quotas w, lowered to what every rank's memory and links can carry:
///   fixed_bytes + bytes kept_r                    <= available_bytes
///   fixed_s + s kept_r + remote_s remote_r        <= step_s            (with a time budget)
/// kept_r are the kept pairs that rank r computes; remote_r those of them that other ranks route plus
/// those that r routes and others compute. Every expert that w gives pairs keeps at least one.
/// Within these limits the kept fractions q[e] / w[e] are as even as possible: no other quotas have a
/// higher smallest fraction, or that and a higher second smallest, and so on (lexicographic max-min).
///
/// Method    Progressive filling: pairs are given one by one to the expert with the smallest fraction
///           (of equal fractions the smallest w, then the lowest id); an expert whose next pair breaks
///           a limit is done. As long as every limit is sure to hold, the common fraction jumps ahead.
///           Without a time budget on links every rank is filled alone.
/// Numerics  exact in integers when every rank is filled alone. With link limits, ties and experts of one
///           rank of which only some are stopped by links may be settled less evenly. There, filling takes an expert's sources in proportion to their pairs; the shares that are whole
///           numbers (split_by_source) can load a link more, so a rank found over its limit gets as
///           much less to fill and filling is repeated until the final shares keep every limit.
/// Throws    memory_error or argument_error when one pair of each expert does not fit
template <quota Inner = keep_all>
struct memory_network {
  Inner inner{};
  double step_s = 0;  ///< time budget of a call on the slowest rank, not negative; 0: none

  void validate() const {
    inner.validate();
    require(step_s >= 0.0 && std::isfinite(step_s), "memory_network: step_s = ", step_s,
            " must be a number of at least 0: use 0 for no time budget");
  }

  bool uses_history() const { return inner.uses_history(); }

  void assign(const quota_request& request, std::span<index_type> quotas) const {
    inner.assign(request, quotas);
    check_costs(request);
    const detail::experts_of_ranks experts(request);
    const bool linked = step_s > 0.0 && request.pair.remote_s > 0.0 && request.R > 1;
    const std::span<std::int64_t> room = detail::scratch<room_tag, std::int64_t>(ranks(request));
    for (std::int64_t r = 0; r < request.R; ++r) {
      std::int64_t least = 0;
      for (const std::size_t e : experts.of(r)) least += quotas[e] > 0 ? 1 : 0;
      room[at(r)] = room_in_memory(request, r, least);
      if (step_s > 0.0 && !linked) {
        room[at(r)] = std::min(room[at(r)], room_in_time(request, r, least));
      }
    }
    if (linked) {
      fill_linked(request, experts, room, quotas);
    } else {
      for (std::int64_t r = 0; r < request.R; ++r) fill(experts.of(r), room[at(r)], quotas);
    }
  }

 private:
  struct room_tag {};
  static constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();
  static constexpr double almost_1 = 1.0 - 1e-12;  // keeps rounding on the safe side

  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  static std::size_t ranks(const quota_request& request) { return at(request.R); }

  static void check_costs(const quota_request& request) {
    const auto is_time = [](double s) { return s >= 0.0 && std::isfinite(s); };
    const pair_cost& pair = request.pair;
    require(pair.bytes >= 0 && is_time(pair.s) && is_time(pair.remote_s),
            "memory_network: a kept pair costs ", pair.bytes, " bytes, ", pair.s, " s and ",
            pair.remote_s, " s on links: costs must be finite and not negative");
    for (const rank_cost& rank : request.ranks) {
      require(rank.fixed_bytes >= 0 && rank.available_bytes >= 0 && is_time(rank.fixed_s),
              "memory_network: a rank has ", rank.available_bytes, " bytes, and takes ",
              rank.fixed_bytes, " bytes and ", rank.fixed_s,
              " s without kept pairs: costs must be finite and not negative");
    }
  }

  /// Pairs that rank r's memory can keep.
  static std::int64_t room_in_memory(const quota_request& request, std::int64_t r,
                                     std::int64_t least) {
    const rank_cost& rank = request.ranks[at(r)];
    const std::int64_t bytes = request.pair.bytes;
    const std::int64_t left = rank.available_bytes - rank.fixed_bytes;
    const std::int64_t room = left < 0 ? -1 : bytes == 0 ? unlimited : left / bytes;
    if (room >= least) return room;
    std::ostringstream message;
    message << "lrmoe: memory_network: rank " << r << " needs " << rank.fixed_bytes + bytes * least
            << " bytes: " << rank.fixed_bytes << " whatever is kept, and " << bytes
            << " for one pair of each of " << least << " experts. Available are "
            << rank.available_bytes
            << ": raise the memory budget, or give a call fewer tokens or a rank fewer experts";
    throw memory_error(message.str());
  }

  /// Pairs that rank r can compute in time, where links do not count.
  std::int64_t room_in_time(const quota_request& request, std::int64_t r,
                            std::int64_t least) const {
    const double s = request.pair.s;
    const double left = step_s - request.ranks[at(r)].fixed_s;
    const double room = left < 0.0 ? -1.0 : s == 0.0 ? 0x1p62 : std::floor(left / s);
    if (room < static_cast<double>(least)) {
      refuse_time(r, request.ranks[at(r)].fixed_s, s * static_cast<double>(least));
    }
    return static_cast<std::int64_t>(std::min(room, 0x1p62));
  }

  [[noreturn]] void refuse_time(std::int64_t r, double fixed_s, double pairs_s) const {
    std::ostringstream message;
    message << "lrmoe: memory_network: rank " << r << " needs " << fixed_s + pairs_s
            << " s: " << fixed_s << " whatever is kept, and " << pairs_s
            << " for one pair of each expert. The budget is step_s = " << step_s
            << ": raise it to at least that, or give a call fewer tokens";
    throw argument_error(message.str());
  }

  /// An expert's next pair, in the order of giving.
  struct next_pair {
    double fraction;
    index_type wanted;
    std::size_t e;

    /// Comparison for heaps, whose top is the largest.
    static bool later(const next_pair& a, const next_pair& b) {
      if (a.fraction != b.fraction) return a.fraction > b.fraction;
      return a.wanted != b.wanted ? a.wanted > b.wanted : a.e > b.e;
    }
  };
  static next_pair next_of(std::size_t e, index_type quota, index_type wanted) {
    return {static_cast<double>(quota) / wanted, wanted, e};
  }
  /// Pairs of an expert that come before this fraction.
  static index_type pairs_before(double fraction, index_type wanted) {
    return static_cast<index_type>(std::clamp(std::ceil(fraction * wanted), 1.0, double(wanted)));
  }

  /// Fill one rank whose only limit is a number of pairs.
  static void fill(std::span<const std::size_t> experts, std::int64_t room,
                   std::span<index_type> quotas) {
    std::int64_t wanted = 0, least = 0;
    for (const std::size_t e : experts) {
      wanted += quotas[e];
      least += quotas[e] > 0 ? 1 : 0;
    }
    if (wanted <= room) return;
    const std::span<next_pair> heap = detail::scratch<memory_network, next_pair>(experts.size());
    // With one pair more of each expert for rounding up, this fraction is sure to fit.
    const double fraction =
        almost_1 * static_cast<double>(room - least) / static_cast<double>(wanted);
    std::size_t size = 0;
    for (const std::size_t e : experts) {
      const index_type w = quotas[e];
      if (w == 0) continue;
      quotas[e] = pairs_before(fraction, w);
      room -= quotas[e];
      if (quotas[e] < w) heap[size++] = next_of(e, quotas[e], w);
    }
    std::make_heap(heap.begin(), heap.begin() + size, next_pair::later);
    for (; room > 0; --room) {
      std::pop_heap(heap.begin(), heap.begin() + size, next_pair::later);
      next_pair& next = heap[size - 1];
      if (++quotas[next.e] < next.wanted) {
        next = next_of(next.e, quotas[next.e], next.wanted);
        std::push_heap(heap.begin(), heap.begin() + size, next_pair::later);
      } else {
        --size;
      }
    }
  }

  /// Filling of all ranks together, with what it keeps track of.
  struct filling {
    const quota_request& request;
    std::span<const std::int64_t> room;  // (R)     pairs that fit into memory
    std::span<const double> time_room;   // (R)     time for kept pairs
    std::span<const double> pair_s;      // (E, R)  time of one pair of e at r
    std::span<const index_type> wanted;  // (E)
    std::span<const index_type> caps;    // (E)     quotas that memory alone allows
    std::span<index_type> quotas;        // (E)
    std::span<next_pair> heap;           // (E)
    // (R) Times: of the quotas; of all wanted pairs and of one pair of each expert, counting experts
    // that still grow; of the quotas of those that do not. Then working storage.
    std::span<double> time, growing, growing_pair, done, fractions;
    std::span<std::int64_t> kept;  // (R)  pairs of the quotas

    std::size_t R() const { return time.size(); }
    std::size_t home(std::size_t e) const { return static_cast<std::size_t>(request.home[e]); }

    void add(std::span<double> sums, std::size_t e, double pairs) const {
      const double* const one = &pair_s[e * R()];
      double* const to = sums.data();
      for (std::size_t r = 0; r < R(); ++r) to[r] += pairs * one[r];
    }

    void give_one(std::size_t e) const {
      ++quotas[e];
      ++kept[home(e)];
      add(time, e, 1);
    }

    bool in_time_with_another(std::size_t e) const {
      const double* const one = &pair_s[e * R()];
      int late = 0;
      for (std::size_t r = 0; r < R(); ++r) {
        late |= (one[r] > 0.0 ? 1 : 0) & (time[r] + one[r] > time_room[r] ? 1 : 0);
      }
      return late == 0;
    }

    void finish(std::size_t e) const {
      add(growing, e, -wanted[e]);
      add(growing_pair, e, -1);
      add(done, e, quotas[e]);
    }

    /// A common fraction that is sure to be in time, whatever rounding up to whole pairs adds.
    double safe_fraction() const {
      // Taking experts out leaves rounding behind; a rank that none of them loads sets no limit.
      for (std::size_t r = 0; r < R(); ++r) {
        const double limit = (time_room[r] - done[r] - growing_pair[r]) / growing[r];
        fractions[r] = growing[r] > 1e-9 * time_room[r] ? limit : 1.0;
      }
      double least = 1.0;
      for (const double fraction : fractions) least = std::min(least, fraction);
      return least * almost_1;
    }

    /// Raise the common fraction as long as it is sure to be in time. Experts that memory stops on the
    /// way leave room to the others. Returns how many can still grow; they are in the heap, unordered.
    std::size_t jump(std::size_t size) const {
      for (bool some_left = true; some_left && size > 0;) {
        some_left = false;
        const double fraction = safe_fraction();
        std::size_t growing_still = 0;
        for (std::size_t i = 0; i < size; ++i) {
          const std::size_t e = heap[i].e;
          quotas[e] = std::clamp(pairs_before(fraction, wanted[e]), quotas[e], caps[e]);
          if (quotas[e] < caps[e]) {
            heap[growing_still++] = next_of(e, quotas[e], wanted[e]);
          } else {
            finish(e);
            some_left = true;
          }
        }
        size = growing_still;
      }
      std::fill(time.begin(), time.end(), 0.0);
      std::fill(kept.begin(), kept.end(), 0);
      for (std::size_t e = 0; e < quotas.size(); ++e) {
        if (quotas[e] == 0) continue;
        add(time, e, quotas[e]);
        kept[home(e)] += quotas[e];
      }
      return size;
    }

    void run() const {
      for (const auto sums : {growing, growing_pair, done})
        std::fill(sums.begin(), sums.end(), 0.0);
      std::size_t size = 0;
      for (std::size_t e = 0; e < quotas.size(); ++e) {
        quotas[e] = std::min(wanted[e], 1);
        if (wanted[e] == 0) continue;
        add(growing, e, wanted[e]);
        add(growing_pair, e, 1);
        heap[size++].e = e;
      }
      const std::size_t between_jumps = R() / 8 + 1;
      while (size > 0) {
        size = jump(size);
        std::make_heap(heap.begin(), heap.begin() + size, next_pair::later);
        for (std::size_t given = 0; size > 0; ++given) {
          std::pop_heap(heap.begin(), heap.begin() + size, next_pair::later);
          next_pair& next = heap[size - 1];
          if (in_time_with_another(next.e)) {
            give_one(next.e);
            if (quotas[next.e] < caps[next.e]) {
              next = next_of(next.e, quotas[next.e], next.wanted);
              std::push_heap(heap.begin(), heap.begin() + size, next_pair::later);
              continue;
            }
          }
          finish(next.e);
          --size;
          // Without this expert the others may be sure to be in time further on.
          if (size == 0 || given < between_jumps) continue;
          given = 0;
          if (safe_fraction() > heap.front().fraction + 2.0 / heap.front().wanted) break;
        }
      }
      // Memory that links left unused goes to other experts of the same rank.
      for (std::size_t e = 0; e < quotas.size(); ++e) {
        if (quotas[e] < wanted[e] && kept[home(e)] < room[home(e)]) {
          heap[size++] = next_of(e, quotas[e], wanted[e]);
        }
      }
      std::make_heap(heap.begin(), heap.begin() + size, next_pair::later);
      while (size > 0) {
        std::pop_heap(heap.begin(), heap.begin() + size, next_pair::later);
        next_pair& next = heap[size - 1];
        const bool fits = kept[home(next.e)] < room[home(next.e)] && in_time_with_another(next.e);
        if (fits) give_one(next.e);
        if (fits && quotas[next.e] < next.wanted) {
          next = next_of(next.e, quotas[next.e], next.wanted);
          std::push_heap(heap.begin(), heap.begin() + size, next_pair::later);
        } else {
          --size;
        }
      }
    }
  };

  void fill_linked(const quota_request& request, const detail::experts_of_ranks& experts,
                   std::span<const std::int64_t> room, std::span<index_type> quotas) const {
    const std::size_t R = ranks(request), E = quotas.size();
    const pair_cost& pair = request.pair;
    const std::span<double> pair_s = detail::scratch<struct pair_s_tag, double>(E * R);
    for (std::size_t s = 0; s < R; ++s) {
      const index_type* const n = &request.source_counts[s * E];
      for (std::size_t e = 0; e < E; ++e) {
        const double of_all = request.counts[e] == 0 ? 0.0 : 1.0 / request.counts[e];
        const bool here = static_cast<std::size_t>(request.home[e]) == s;
        pair_s[e * R + s] = here ? pair.s + pair.remote_s * (request.counts[e] - n[e]) * of_all
                                 : pair.remote_s * n[e] * of_all;
      }
    }
    const std::span<index_type> both = detail::scratch<struct wanted_tag, index_type>(2 * E);
    const std::span<index_type> wanted = both.first(E), caps = both.subspan(E);
    std::copy(quotas.begin(), quotas.end(), wanted.begin());
    std::copy(quotas.begin(), quotas.end(), caps.begin());
    for (std::int64_t r = 0; r < request.R; ++r) fill(experts.of(r), room[at(r)], caps);
    std::int64_t least = 0;
    for (const index_type w : wanted) least += w > 0 ? 1 : 0;

    const std::span<double> sums = detail::scratch<struct sums_tag, double>(6 * R);
    const std::span<double> time_room = sums.first(R);
    for (std::size_t r = 0; r < R; ++r) time_room[r] = step_s - request.ranks[r].fixed_s;
    const filling all{.request = request,
                      .room = room,
                      .time_room = time_room,
                      .pair_s = pair_s,
                      .wanted = wanted,
                      .caps = caps,
                      .quotas = quotas,
                      .heap = detail::scratch<memory_network, next_pair>(E),
                      .time = sums.subspan(R, R),
                      .growing = sums.subspan(2 * R, R),
                      .growing_pair = sums.subspan(3 * R, R),
                      .done = sums.subspan(4 * R, R),
                      .fractions = sums.subspan(5 * R, R),
                      .kept = detail::scratch<struct kept_tag, std::int64_t>(R)};
    for (int round = 0;; ++round) {
      all.run();
      std::int64_t kept = 0;
      for (const index_type q : quotas) kept += q;
      if (take_excess(request, quotas, round, time_room, kept == least)) return;
    }
  }

  /// Whether every rank is in time with the final shares; takes from time_room what some exceed. With
  /// the least quotas an excess is an error.
  bool take_excess(const quota_request& request, std::span<const index_type> quotas, int round,
                   std::span<double> time_room, bool least) const {
    const std::size_t R = ranks(request), E = quotas.size();
    const std::span<index_type> shares = detail::scratch<struct shares_tag, index_type>(R * E);
    split_by_source(request.R, request.E, request.source_counts, quotas, shares);
    const std::span<std::int64_t> kept = detail::scratch<struct kept_tag, std::int64_t>(2 * R);
    const std::span<std::int64_t> remote = kept.subspan(R);
    std::fill(kept.begin(), kept.end(), 0);
    for (std::size_t e = 0; e < E; ++e) {
      const auto home = static_cast<std::size_t>(request.home[e]);
      kept[home] += quotas[e];
      remote[home] += quotas[e] - 2 * shares[home * E + e];
    }
    bool in_time = true;
    for (std::size_t r = 0; r < R; ++r) {
      // A rank's own pairs are in this sum too; they were taken off twice above.
      for (std::size_t e = 0; e < E; ++e) remote[r] += shares[r * E + e];
      const double pairs_s = request.pair.s * static_cast<double>(kept[r]) +
                             request.pair.remote_s * static_cast<double>(remote[r]);
      const double excess = request.ranks[r].fixed_s + pairs_s - step_s;
      if (excess <= 0.0) continue;
      if (least) refuse_time(static_cast<std::int64_t>(r), request.ranks[r].fixed_s, pairs_s);
      in_time = false;
      // And a little more, as whole shares fall differently next time: their rounding adds up to about
      // the root of E pairs.
      time_room[r] -=
          excess + request.pair.remote_s * 0.25 * round * std::sqrt(static_cast<double>(E));
    }
    return in_time;
  }
};

}  // namespace lrmoe
