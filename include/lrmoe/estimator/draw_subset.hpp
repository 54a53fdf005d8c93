// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <string>
#include <string_view>

#include <lrmoe/compaction/kept_pairs.hpp>
#include <lrmoe/compaction/kept_subset.hpp>
#include <lrmoe/estimator/certificate.hpp>

namespace lrmoe {

/// What a second draw among the kept pairs starts from.
template <class Device>
struct kept_sizes {
  vector_view<float, Device> sizes;          // (M)  c times the size
  vector_view<float, Device> contributions;  // (M)  c times the root of the score
};

/// Sizes of the kept pairs with their factors: what each now stands for.
/// Shapes    sizes, contributions (N) by row; selected of M rows
/// Order     asynchronous on the space; the views live in the workspace until the call ends
template <class ExecutionSpace, class Device, class Unit = detail::translation_unit>
kept_sizes<Device> gather_kept_sizes(const ExecutionSpace& space, workspace<Device>& scratch,
                                     const selection<Device>& selected,
                                     const vector_view<const float, Device>& sizes,
                                     const vector_view<const float, Device>& contributions) {
  const auto M = static_cast<std::int64_t>(selected.rows.extent(0));
  const kept_sizes<Device> kept{
      scratch["pair_selector::kept_sizes"].template vector<float>(M),
      scratch["pair_selector::kept_contributions"].template vector<float>(M)};
  Kokkos::parallel_for(
      "lrmoe::draw_subset::sizes", Kokkos::RangePolicy<ExecutionSpace>(space, 0, M),
      KOKKOS_LAMBDA(const std::int64_t m) {
        const index_type r = selected.rows(m);
        kept.sizes(m) = selected.factors(m) * sizes(r);
        kept.contributions(m) = selected.factors(m) * contributions(r);
      });
  return kept;
}

/// A second draw among M kept pairs (two-phase sampling): a pair kept twice has the product of both
/// factors, so what is unbiased given the first draw is unbiased over both.
/// Shapes    first: the pairs; groups of the subset's S rows; second (S rows, S factors, inclusion
///           (M)) receives the draw
/// Order     asynchronous on the space; tokens live in the workspace, under `name`, until the call ends
template <class ExecutionSpace, estimator Estimator, class Accumulate, class Device,
          class Unit = detail::translation_unit>
kept_subset<Device> draw_subset(const ExecutionSpace& space, workspace<Device>& scratch,
                                std::string_view name, const Estimator& policy, const draw_key& key,
                                const kept_pairs<Accumulate, Device>& first,
                                const kept_sizes<Device>& sizes, const row_groups<Device>& groups,
                                const selection<Device>& second) {
  policy.select(space, segments<Device>{first.groups.offsets, groups.offsets},
                vector_view<const float, Device>(sizes.sizes), key, second);
  const auto S = static_cast<std::int64_t>(second.rows.extent(0));
  const auto tokens = scratch[name].template vector<index_type>(S);
  Kokkos::parallel_for(
      "lrmoe::draw_subset::tokens", Kokkos::RangePolicy<ExecutionSpace>(space, 0, S),
      KOKKOS_LAMBDA(const std::int64_t i) { tokens(i) = first.tokens(second.rows(i)); });
  return {S, groups, second.rows, tokens, second.factors};
}

/// Where each pair of a call is in a subset.
///   position[p] = i when the i-th of the subset is pair p, else no_expert
/// Shapes    rows (M) of the kept pairs; position (P)
/// Order     asynchronous on the space
template <class ExecutionSpace, class Device, class Unit = detail::translation_unit>
void find_positions(const ExecutionSpace& space, const expert_order<Device>& order,
                    const vector_view<const index_type, Device>& rows,
                    const kept_subset<Device>& subset,
                    const vector_view<index_type, Device>& position) {
  Kokkos::deep_copy(space, position, no_expert);
  Kokkos::parallel_for(
      "lrmoe::draw_subset::positions", Kokkos::RangePolicy<ExecutionSpace>(space, 0, subset.size),
      KOKKOS_LAMBDA(const std::int64_t i) {
        position(order.pair_of_row(rows(subset.rows(i)))) = static_cast<index_type>(i);
      });
}

/// Factors of both draws together.
///   total[i] = factors[subset.rows[i]] * subset.factors[i]
/// Order     asynchronous on the space
template <class ExecutionSpace, class Device, class Unit = detail::translation_unit>
void multiply_factors(const ExecutionSpace& space, const vector_view<const float, Device>& factors,
                      const kept_subset<Device>& subset, const vector_view<float, Device>& total) {
  Kokkos::parallel_for(
      "lrmoe::draw_subset::factors", Kokkos::RangePolicy<ExecutionSpace>(space, 0, subset.size),
      KOKKOS_LAMBDA(const std::int64_t i) {
        total(i) = factors(subset.rows(i)) * subset.factors(i);
      });
}

/// Add what a second draw adds to the expected squared error of dW_down, per expert.
/// Shapes    second, added (E)
template <class ExecutionSpace, class Device, class Unit = detail::translation_unit>
void add_variance(const ExecutionSpace& space, const vector_view<const certificate, Device>& second,
                  const vector_view<certificate, Device>& of_expert) {
  Kokkos::parallel_for(
      "lrmoe::draw_subset::variance",
      Kokkos::RangePolicy<ExecutionSpace>(space, 0, of_expert.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t e) {
        of_expert(e).added_variance += second(e).added_variance;
        of_expert(e).bias_bound += second(e).bias_bound;
      });
}

}  // namespace lrmoe
