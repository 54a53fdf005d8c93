// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "layer_results.hpp"

namespace bench::compare {

/// Faults that show that the comparison can fail. A tensor's name: one of its elements is off by four times
/// its allowance. The others change a candidate's results before they are judged.
inline const std::vector<std::string>& injections() {
  static const std::vector<std::string> names{
      "out",           "dx",       "d_gate_up", "d_down", "d_shared_gate_up",
      "d_shared_down", "d_logits", "d_given",   "sizes",  "routing_weights",
      "nan",           "kept",     "factor",    "quota",  "placement",
      "routing",       "bits"};
  return names;
}

/// Applies a fault that is none of a tensor's. Returns whether there was something to damage.
template <class Element>
bool inject(const std::string& fault, const compare_case& of, layer_results<Element>& results) {
  if (fault == "nan") {
    if (results.dx.empty()) return false;
    results.dx[results.dx.size() / 2] = element_of<Element>(std::nan(""));
    return true;
  }
  if (fault == "kept" || fault == "factor") {
    for (auto& rank : results.selections) {
      auto& rows = rank.kept.rows;
      if (fault == "factor") {
        if (rows.empty() || rank.sizes.empty()) continue;
        rank.kept.factors[0] = std::nextafter(rank.kept.factors[0], 2e9F);
        return true;
      }
      for (std::size_t e = 0; e + 1 < rank.offsets.size(); ++e)
        for (index_type row = rank.offsets[e]; row < rank.offsets[e + 1]; ++row) {
          const auto first = rows.begin() + rank.kept_offsets[e],
                     last = rows.begin() + rank.kept_offsets[e + 1];
          if (first == last || std::find(first, last, row) != last) continue;
          // A dropped row takes the place of a kept one, with its factor.
          const auto old = static_cast<std::size_t>(*first);
          float& from = results.factors[static_cast<std::size_t>(rank.pair_of_row[old])];
          results
              .factors[static_cast<std::size_t>(rank.pair_of_row[static_cast<std::size_t>(row)])] =
              from;
          from = 0.0F;
          *first = row;
          std::sort(first, last);
          return true;
        }
    }
    return false;
  }
  if (fault == "quota") {
    for (auto& plan : results.plans) ++plan.made.quotas.back();
    return true;
  }
  if (fault == "placement") {
    if (results.plans.size() < 2) return false;
    auto& slots = results.plans.back().expert_of_slot;
    slots[0] = slots[0] == 0 ? 1 : 0;
    return true;
  }
  if (fault == "routing") {
    if (results.experts.empty()) return false;
    const auto K = static_cast<std::ptrdiff_t>(of.shape.K);
    for (index_type e = 0; e < of.shape.E; ++e) {
      const auto last = results.experts.begin() + K;
      if (std::find(results.experts.begin(), last, e) != last) continue;
      results.experts[0] = e;
      return true;
    }
  }
  return false;
}

}  // namespace bench::compare
