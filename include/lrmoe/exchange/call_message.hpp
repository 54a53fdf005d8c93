// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <lrmoe/control/replica_plan.hpp>
#include <lrmoe/exchange/agreement.hpp>
#include <lrmoe/types.hpp>

namespace lrmoe {

/// What a rank tells the others about its call of a layer, beside its counts.
struct call_message {
  std::int64_t T = 0;                ///< tokens of this rank
  std::int64_t available_bytes = 0;  ///< memory that its layers may use
  // The rest is the same on every rank, or the call is refused.
  std::uint64_t step = 0;
  std::int64_t slots = 0;
  std::int64_t layer = 0;
  std::int64_t element_bytes = 0;
  std::int64_t backward = 0;
  layer_shape shape;

  named_settings settings() const {
    const auto text = [](auto value) { return std::to_string(value); };
    return {{"step", text(step)},
            {"slots S", text(slots)},
            {"layer id", text(layer)},
            {"bytes of an element", text(element_bytes)},
            {"keep_for_backward", text(backward)},
            {"D", text(shape.D)},
            {"F", text(shape.F)},
            {"E", text(shape.E)},
            {"K", text(shape.K)},
            {"F_shared", text(shape.F_shared)}};
  }
};

// Messages are compared byte by byte.
static_assert(std::has_unique_object_representations_v<call_message>);

/// The messages and counts of all ranks.
/// Shapes    counts (E); calls (R); source_counts (R, E)
/// Throws    argument_error on every rank when settings differ, naming them, their values and the ranks
/// Order     collective; complete on return
template <communicator Communicator>
void gather_calls(Communicator& ranks, const call_message& mine, std::span<const index_type> counts,
                  std::vector<call_message>& calls, std::vector<index_type>& source_counts) {
  const auto R = static_cast<std::size_t>(ranks.size()), E = counts.size();
  calls.resize(R);
  source_counts.resize(R * E);
  if (R == 1) {
    calls[0] = mine;
    std::copy(counts.begin(), counts.end(), source_counts.begin());
    return;
  }
  all_gather(ranks, mine, std::span<call_message>(calls));
  bool same = true;
  for (const call_message& other : calls) {
    call_message as_mine = other;
    as_mine.T = mine.T;
    as_mine.available_bytes = mine.available_bytes;
    same = same && std::memcmp(&as_mine, &mine, sizeof mine) == 0;
  }
  // Ranks that are alike see those that are not, so all come here together.
  if (!same) require_same_settings(ranks, mine.settings());
  all_gather(ranks, counts, std::span<index_type>(source_counts));
}

/// Throws rank_error on every rank when their plans differ: messages would then not have the sizes that
/// their receivers expect.
/// Order     collective
template <communicator Communicator>
void require_same_plan(Communicator& ranks, const plan& made, const replica_plan& replicas) {
  std::uint64_t hash = 14695981039346656037ULL;  // FNV-1a, by words
  const auto add = [&](std::uint64_t word) { hash = (hash ^ word) * 1099511628211ULL; };
  const auto add_all = [&](const std::vector<index_type>& values) {
    for (const index_type value : values) add(static_cast<std::uint32_t>(value));
  };
  add_all(made.quotas);
  add_all(replicas.expert);
  add_all(replicas.rank);
  add_all(replicas.slot);
  add_all(replicas.counts);
  add_all(replicas.quotas);
  for (const source_move& move : replicas.moves) {
    for (const index_type value : {move.source, move.from, move.to, move.count})
      add(static_cast<std::uint32_t>(value));
  }
  std::vector<std::uint64_t> all(static_cast<std::size_t>(ranks.size()));
  all_gather(ranks, hash, std::span<std::uint64_t>(all));
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] != all[0]) {
      throw rank_error(
          "lrmoe: moe_layer: ranks 0 and " + std::to_string(r) +
          " made different plans of one call: give all ranks the same policies and the "
          "same history");
    }
  }
}

}  // namespace lrmoe
