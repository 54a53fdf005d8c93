// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "layer_results.hpp"

namespace bench::compare {

/// The library's estimators again, one row after the other: what every backend must draw bit by bit, ties
/// included. Follows the definitions in lrmoe/estimator/{pps,top,uniform}.hpp with their default settings.
class plain_selection {
 public:
  plain_selection(const compare_case& of, std::uint64_t seed) : rule_(of.estimator), seed_(seed) {}

  drawn select(const std::vector<index_type>& offsets, const std::vector<index_type>& kept_offsets,
               const std::vector<float>& sizes, const lrmoe::draw_key& key) const {
    drawn kept;
    kept.inclusion.assign(static_cast<std::size_t>(offsets.back()), 0.0F);
    for (std::size_t e = 0; e + 1 < offsets.size(); ++e) {
      const segment here{offsets[e], offsets[e + 1] - offsets[e],
                         kept_offsets[e + 1] - kept_offsets[e], static_cast<std::uint32_t>(e)};
      switch (rule_) {
        case estimator_kind::exact:
          for (index_type i = 0; i < here.L; ++i) keep(here.begin + i, 1.0F, 1.0F, kept);
          break;
        case estimator_kind::pps:
          draw_pps(here, sizes, key, kept);
          break;
        case estimator_kind::top:
          keep_largest(
              here, [&](index_type row) { return key_of_size(sizes[index(row)]); }, 1.0F, 1.0F,
              0.0F, kept);
          break;
        case estimator_kind::uniform: {
          const auto L = static_cast<float>(here.L), q = static_cast<float>(here.q);
          keep_largest(
              here,
              [&](index_type row) {
                return key.words(seed_, static_cast<std::uint32_t>(row)).word[0];
              },
              L / q, q / L, q / L, kept);
        }
      }
    }
    return kept;
  }

 private:
  struct segment {
    index_type begin, L, q;
    std::uint32_t number;
  };
  static std::size_t index(index_type i) { return static_cast<std::size_t>(i); }

  static void keep(index_type row, float factor, float inclusion, drawn& to) {
    to.rows.push_back(row);
    to.factors.push_back(factor);
    to.inclusion[index(row)] = inclusion;
  }

  /// NaN above all, as `top` orders sizes.
  static std::uint32_t key_of_size(float size) {
    if (std::isnan(size)) return std::numeric_limits<std::uint32_t>::max();
    std::uint32_t bits = 0;
    if (size > 0) std::memcpy(&bits, &size, sizeof bits);
    return bits;
  }

  template <class Key>
  static void keep_largest(const segment& here, const Key& key, float factor, float kept_inclusion,
                           float dropped_inclusion, drawn& to) {
    std::vector<index_type> order;
    for (index_type i = 0; i < here.L; ++i) order.push_back(here.begin + i);
    std::stable_sort(order.begin(), order.end(),
                     [&](index_type a, index_type b) { return key(a) > key(b); });
    for (const index_type row : order) to.inclusion[index(row)] = dropped_inclusion;
    order.resize(index(here.q));
    std::sort(order.begin(), order.end());
    for (const index_type row : order) keep(row, factor, kept_inclusion, to);
  }

  void draw_pps(const segment& here, const std::vector<float>& sizes, const lrmoe::draw_key& key,
                drawn& to) const {
    __extension__ using wide = unsigned __int128;
    if (here.q == 0) return;
    const auto L = static_cast<std::uint64_t>(here.L), q = static_cast<std::uint64_t>(here.q);
    double most = 0;
    for (index_type i = 0; i < here.L; ++i) {
      const float size = sizes[index(here.begin + i)];
      if (std::isfinite(size)) most = std::max(most, static_cast<double>(size));
    }
    // Integers of 31 bits, at least 1/1024 of their mean.
    std::vector<std::uint64_t> whole;
    std::uint64_t sum = 0;
    for (index_type i = 0; i < here.L; ++i) {
      const auto size = static_cast<double>(sizes[index(here.begin + i)]);
      const double scaled = !std::isfinite(size) ? 0x1p31 : most > 0 ? size * (0x1p31 / most) : 0.0;
      whole.push_back(static_cast<std::uint64_t>(scaled));
      sum += whole.back();
    }
    const std::uint64_t least = std::max<std::uint64_t>(sum / (L * 1024), 1);
    sum = 0;
    for (auto& size : whole) sum += size = std::max(size, least);
    // Whoever would be kept more than once is certain; the others share what is left.
    std::uint64_t open_quota = q == L ? 0 : q, open_total = q == L ? 0 : sum;
    const auto certain = [&](std::uint64_t size) { return size * open_quota >= open_total; };
    for (std::uint64_t before = 0; open_quota > 0;) {
      std::uint64_t count = 0, total = 0;
      for (const auto size : whole) {
        if (!certain(size)) continue;
        ++count;
        total += size;
      }
      if (count == before) break;
      before = count;
      open_quota = q - count;
      open_total = sum - total;
    }
    const std::uint64_t start = key.words(seed_, here.number).word[0];
    std::uint64_t certain_rows = 0, open = 0, low = 0;
    for (index_type i = 0; i < here.L; ++i) {
      const std::uint64_t size = whole[index(i)];
      if (certain(size))
        ++certain_rows;
      else
        open += size;
      std::uint64_t high = certain_rows << 32;
      if (open_total > 0)
        high +=
            static_cast<std::uint64_t>((static_cast<wide>(open) * open_quota << 32) / open_total);
      const float probability = static_cast<float>(high - low) * 0x1p-32F;
      to.inclusion[index(here.begin + i)] = probability;
      if ((high + start) >> 32 != (low + start) >> 32)
        keep(here.begin + i, 1.0F / probability, probability, to);
      low = high;
    }
  }

  estimator_kind rule_;
  std::uint64_t seed_;
};

}  // namespace bench::compare
