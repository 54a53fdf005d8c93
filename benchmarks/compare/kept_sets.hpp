// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "finding.hpp"
#include "layer_reference.hpp"
#include "plain_selection.hpp"

namespace bench::compare {

/// Which pairs a candidate kept, judged in four steps that together leave no difference unexplained:
///   sizes        what the estimator saw lies within rounding of the reference's sizes, pair by pair
///   redraw       the plain estimator keeps bit for bit the same rows, factors and probabilities when it
///                is given the sizes that the candidate saw
///   same_scores  given the reference's sizes, and these made to tie, the candidate's estimator and the
///                plain one agree bit for bit
///   differences  pairs kept here and not by the reference, or the other way round: each must lie where
///                rounding of sizes reaches the threshold, or the running sum of a systematic draw shifts
template <class Element>
class kept_sets {
 public:
  kept_sets(const layer_inputs<Element>& in, const layer_results<Element>& results,
            const layer_comparison& reference)
      : in_(in), results_(results), reference_(reference), plain_(in.of, in.seed) {}

  tensor_comparison compare_sizes(tensor_comparison to) const {
    for (const auto& rank : results_.selections) {
      to.add_rows(to.rows(), static_cast<std::int64_t>(rank.sizes.size()), 1,
                  [&](std::int64_t row, std::int64_t) {
                    const auto& size = of_row(rank, static_cast<std::size_t>(row));
                    return element_check{
                        static_cast<double>(rank.sizes[static_cast<std::size_t>(row)]),
                        size.value,
                        {0.0, 0.0, size.error}};
                  });
    }
    return to;
  }

  finding redraw() const {
    std::int64_t wrong = 0;
    std::string text = "the plain draw from the candidate's own sizes, bit by bit";
    for (std::size_t r = 0; r < results_.selections.size(); ++r) {
      const auto& rank = results_.selections[r];
      if (plain_.select(rank.offsets, rank.kept_offsets, rank.sizes, key(r)) == rank.kept) continue;
      if (wrong++ == 0)
        text = fmt::format(
            "rank {} kept other rows, factors or probabilities than the plain draw "
            "from its sizes",
            r);
    }
    return {"kept/redraw", wrong == 0, static_cast<double>(wrong), "ranks", text};
  }

  finding same_scores(const candidate<Element>& one) const {
    std::int64_t wrong = 0, draws = 0;
    for (std::size_t r = 0; r < results_.selections.size(); ++r) {
      const auto& rank = results_.selections[r];
      if (in_.of.estimator == estimator_kind::exact) continue;
      const auto own = reference_sizes(rank);
      for (const auto& sizes : {own, tied(own)}) {
        const auto estimator = estimator_for(in_.of, in_.seed);
        ++draws;
        if (!(one.select(estimator, rank.offsets, rank.kept_offsets, sizes, key(r)) ==
              plain_.select(rank.offsets, rank.kept_offsets, sizes, key(r))))
          ++wrong;
      }
    }
    return {
        "kept/same_scores", wrong == 0, static_cast<double>(wrong), "draws",
        fmt::format("{} of {} draws from equal sizes differ from the plain draw", wrong, draws)};
  }

  finding differences() const {
    std::int64_t different = 0, unexplained = 0;
    double shift = 0;
    std::string text;
    for (std::size_t r = 0; r < results_.selections.size(); ++r) {
      const auto& rank = results_.selections[r];
      if (in_.of.estimator == estimator_kind::exact) continue;
      const drawn own =
          plain_.select(rank.offsets, rank.kept_offsets, reference_sizes(rank), key(r));
      for (std::size_t e = 0; e + 1 < rank.offsets.size(); ++e) {
        const auto found = segment_differences(rank, own, e, key(r));
        different += found.different;
        unexplained += found.unexplained;
        shift = std::max(shift, found.shift);
        if (found.unexplained > 0 && text.empty())
          text = fmt::format("rank {}, segment {}: {}", r, e, found.text);
      }
    }
    if (text.empty() && different > 0)
      text =
          in_.of.estimator == estimator_kind::pps
              ? fmt::format("where the running sum, shifted by up to {:.1e} pairs, passes a place",
                            shift)
              : "where the sizes' rounding reaches the threshold";
    if (text.empty()) text = "the reference's set";
    return {"kept/differences", unexplained == 0, static_cast<double>(different), "pairs", text};
  }

 private:
  struct difference {
    std::int64_t different = 0, unexplained = 0;
    double shift = 0;
    std::string text;
  };

  static lrmoe::draw_key key(std::size_t rank) { return key_of(static_cast<std::int64_t>(rank)); }

  const number& of_row(const rank_selection& rank, std::size_t row) const {
    return reference_.sizes[static_cast<std::size_t>(rank.pair_of_row[row])];
  }
  std::vector<float> reference_sizes(const rank_selection& rank) const {
    std::vector<float> sizes;
    for (std::size_t row = 0; row < rank.pair_of_row.size(); ++row)
      sizes.push_back(static_cast<float>(of_row(rank, row).value));
    return sizes;
  }
  /// Rounded to three significant bits, and every eleventh zero.
  static std::vector<float> tied(std::vector<float> sizes) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      int exponent = 0;
      const float fraction = std::frexp(sizes[i], &exponent);
      sizes[i] = i % 11 == 10 ? 0.0F : std::ldexp(std::round(fraction * 8.0F), exponent - 3);
    }
    return sizes;
  }

  difference segment_differences(const rank_selection& rank, const drawn& own, std::size_t e,
                                 const lrmoe::draw_key& key) const {
    const auto begin = static_cast<std::size_t>(rank.offsets[e]),
               end = static_cast<std::size_t>(rank.offsets[e + 1]);
    const auto flags = [&](const drawn& of) {
      std::vector<char> kept(end - begin, 0);
      for (index_type m = rank.kept_offsets[e]; m < rank.kept_offsets[e + 1]; ++m) {
        const auto row = static_cast<std::size_t>(of.rows[static_cast<std::size_t>(m)]);
        if (row >= begin && row < end) kept[row - begin] = 1;
      }
      return kept;
    };
    const auto here = flags(rank.kept), there = flags(own);
    difference found;
    // Sizes that kept rows must not be below, as far as rounding can tell.
    double threshold = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < here.size(); ++i) {
      if (there[i] == 0 || here[i] != 0) continue;
      const number& size = of_row(rank, begin + i);
      threshold = std::min(threshold, size.value - size.error);
    }
    const double start =
        static_cast<double>(key.words(in_.seed, static_cast<std::uint32_t>(e)).word[0]) * 0x1p-32;
    double sum_here = 0, sum_there = 0;
    for (std::size_t i = 0; i < here.size(); ++i) {
      const double low = sum_there + start, moved_low = std::abs(sum_here - sum_there);
      sum_here += static_cast<double>(rank.kept.inclusion[begin + i]);
      sum_there += static_cast<double>(own.inclusion[begin + i]);
      const double high = sum_there + start, moved_high = std::abs(sum_here - sum_there);
      found.shift = std::max({found.shift, moved_low, moved_high});
      if (here[i] == there[i]) continue;
      ++found.different;
      const number& size = of_row(rank, begin + i);
      bool explained = false;
      if (in_.of.estimator == estimator_kind::top) {
        explained = here[i] == 0 || size.value + size.error >= threshold;
      } else if (in_.of.estimator == estimator_kind::pps) {
        // Probabilities are floats here: each adds half a unit of its last place.
        const double rounding = std::ldexp(sum_there + 1.0, -23);
        const auto reaches = [&](double sum, double moved) {
          return std::abs(sum - std::round(sum)) <= moved + rounding;
        };
        explained = reaches(low, moved_low) || reaches(high, moved_high);
      }
      if (explained) continue;
      if (found.unexplained++ == 0)
        found.text = fmt::format(
            "pair {} of size {:.9g} is {} and rounding of {:.1e} cannot be why",
            rank.pair_of_row[begin + i], size.value, here[i] != 0 ? "kept" : "dropped", size.error);
    }
    return found;
  }

  const layer_inputs<Element>& in_;
  const layer_results<Element>& results_;
  const layer_comparison& reference_;
  plain_selection plain_;
};

}  // namespace bench::compare
