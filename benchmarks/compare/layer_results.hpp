// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <lrmoe/control/plan.hpp>
#include <lrmoe/control/replica_plan.hpp>
#include <lrmoe/estimator/any_estimator.hpp>
#include <lrmoe/estimator/exact.hpp>
#include <lrmoe/estimator/pps.hpp>
#include <lrmoe/estimator/top.hpp>
#include <lrmoe/estimator/uniform.hpp>

#include "inputs.hpp"

namespace bench::compare {

using any_estimator = lrmoe::any_estimator<lrmoe::exact, lrmoe::pps, lrmoe::top, lrmoe::uniform>;

inline any_estimator estimator_for(const compare_case& of, std::uint64_t seed) {
  switch (of.estimator) {
    case estimator_kind::pps:
      return lrmoe::pps{.seed = seed};
    case estimator_kind::top:
      return lrmoe::top{};
    case estimator_kind::uniform:
      return lrmoe::uniform{.seed = seed};
    default:
      return lrmoe::exact{};
  }
}

/// Step and layer of the call, which key its draws.
inline constexpr std::uint64_t call_step = 5;
inline constexpr std::uint32_t call_layer = 3;
inline lrmoe::draw_key key_of(std::int64_t rank) {
  return {call_step, call_layer, static_cast<std::uint32_t>(rank), 0};
}

/// First token of a rank.
inline std::int64_t first_token(const compare_case& of, std::int64_t rank) {
  return of.T * rank / of.R;
}

/// A draw: what was kept in segments, and with which factors.
struct drawn {
  std::vector<index_type> rows;
  std::vector<float> factors, inclusion;

  friend bool operator==(const drawn& a, const drawn& b) {
    const auto same = [](const auto& left, const auto& right) {
      return left.size() == right.size() &&
             (left.empty() ||
              std::memcmp(left.data(), right.data(), left.size() * sizeof left.front()) == 0);
    };
    return same(a.rows, b.rows) && same(a.factors, b.factors) && same(a.inclusion, b.inclusion);
  }
};

/// The selection of one source rank.
struct rank_selection {
  std::vector<index_type> offsets, kept_offsets;  // (H+1)
  std::vector<index_type> pair_of_row;            // (N)  numbered over all ranks
  std::vector<float> sizes;                       // (N)  none where the estimator keeps all
  drawn kept;
};

/// The plan as every rank has it.
struct plan_record {
  lrmoe::plan made;
  lrmoe::replica_plan replicas;
  std::vector<index_type> expert_of_slot;  // (R, S)
};

/// Everything that a layer call produced, on the host, tokens of all ranks together.
template <class Element>
struct layer_results {
  using real = lrmoe::accumulate_t<Element>;

  std::vector<Element> out, dx;         // (T, D)
  std::vector<real> d_router;           // (T, E), or (T, K) for given routing
  std::vector<real> d_gate_up, d_down;  // (E, D, 2F), (E, F, D), copies of an expert added up
  std::vector<real> d_shared_gate_up, d_shared_down;  // of all ranks
  std::vector<index_type> experts;                    // (T, K)
  std::vector<real> weights;                          // (T, K)
  std::vector<float> factors;              // (T, K)  of kept pairs, zero for dropped ones
  std::vector<rank_selection> selections;  // (R)
  std::vector<plan_record> plans;          // (R)
  std::int64_t pairs_moved = 0;            // to other ranks for backward
  double seconds = 0;

  /// Checksum of all bits that a second run must repeat.
  std::uint64_t checksum() const {
    std::uint64_t sum = 0x243f6a8885a308d3ULL;
    const auto add = [&](const auto& values) {
      const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
      const std::size_t size = values.size() * sizeof(values[0]);
      std::uint64_t word = size;
      std::size_t i = 0;
      do {
        sum = (sum ^ word) * 0x9e3779b97f4a7c15ULL;
        sum ^= sum >> 29;
        word = 0;
        const std::size_t now = std::min<std::size_t>(8, size - std::min(i, size));
        if (now > 0) std::memcpy(&word, bytes + i, now);
        i += 8;
      } while (i < size + 8);
    };
    add(out), add(dx), add(d_router), add(d_gate_up), add(d_down), add(d_shared_gate_up);
    add(d_shared_down), add(experts), add(weights), add(factors);
    for (const auto& one : selections) add(one.sizes), add(one.kept.inclusion), add(one.kept.rows);
    for (const auto& one : plans)
      add(one.made.quotas), add(one.replicas.quotas), add(one.expert_of_slot);
    return sum;
  }
};

/// One who computes the layer: a backend and an element type.
template <class Element>
class candidate {
 public:
  virtual ~candidate() = default;
  virtual std::string name() const = 0;
  /// Forward and backward of a case, on fresh objects and dirty memory.
  virtual layer_results<Element> run(const layer_inputs<Element>& in) const = 0;
  /// The estimator's draw from given sizes.
  virtual drawn select(const any_estimator& estimator, const std::vector<index_type>& offsets,
                       const std::vector<index_type>& kept_offsets, const std::vector<float>& sizes,
                       const lrmoe::draw_key& key) const = 0;
};

}  // namespace bench::compare
