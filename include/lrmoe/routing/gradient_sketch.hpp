// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/compaction/kept_pairs.hpp>
#include <lrmoe/draw_key.hpp>

namespace lrmoe {

/// Random signs of a sketch: r_j[d] = +-1, the same for all pairs and tokens of one call.
struct sketch_signs {
  std::uint64_t seed = 0;
  draw_key key;

  /// 32 signs for coordinate d and directions 32 block .. 32 block + 31, one a bit.
  KOKKOS_FUNCTION std::uint32_t bits(std::int64_t d, int block) const {
    constexpr std::uint64_t stream = 0x736b65746368ULL;  // apart from an estimator of the same seed
    return key.words(seed ^ stream, static_cast<std::uint32_t>(d * 32 + block)).word[0];
  }
};

/// Directions that are drawn together; a sketch of k directions takes whole blocks of scratch.
inline constexpr std::int64_t sketch_block = 32;
constexpr std::int64_t sketch_blocks(std::int64_t k) {
  return (k + sketch_block - 1) / sketch_block;
}

/// Projects rows on k random sign directions.
///   sketch[r, j] = sum_d rows[r, d] r_j[d]
/// Shapes    rows (N, D), D below 2^27; sketch (N, k), k at most 1024; signs (D, 32 ceil(k/32)) scratch
/// Numerics  sums in the accumulation type in ascending d, one thread a row: deterministic
/// Cost      N D k additions
/// Order     asynchronous on the space
template <class ExecutionSpace, class Element, class Device, class Unit = detail::translation_unit>
void sketch_rows(const ExecutionSpace& space, const sketch_signs& draw,
                 const matrix_view<const Element, Device>& rows,
                 const matrix_view<accumulate_t<Element>, Device>& signs,
                 const matrix_view<accumulate_t<Element>, Device>& sketch) {
  using real = accumulate_t<Element>;
  constexpr auto width = static_cast<int>(sketch_block);
  const auto D = static_cast<std::int64_t>(rows.extent(1));
  const auto k = static_cast<int>(sketch.extent(1));
  Kokkos::parallel_for(
      "lrmoe::sketch_rows::signs", Kokkos::RangePolicy<ExecutionSpace>(space, 0, D),
      KOKKOS_LAMBDA(const std::int64_t d) {
        for (int first = 0; first < k; first += width) {
          const std::uint32_t word = draw.bits(d, first / width);
          for (int j = 0; j < width; ++j)
            signs(d, first + j) = (word >> j & 1U) != 0 ? real(-1) : real(1);
        }
      });
  Kokkos::parallel_for(
      "lrmoe::sketch_rows::project",
      Kokkos::RangePolicy<ExecutionSpace>(space, 0, sketch.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t r) {
        for (int first = 0; first < k; first += width) {
          // The whole block, wanted or not: a loop of fixed length becomes vector instructions.
          real sums[width] = {};
          for (std::int64_t d = 0; d < D; ++d) {
            const auto value = static_cast<real>(rows(r, d));
            const real* sign = &signs(d, first);
            for (int j = 0; j < width; ++j) sums[j] += value * sign[j];
          }
          for (int j = 0; j < Kokkos::min(width, k - first); ++j) sketch(r, first + j) = sums[j];
        }
      });
}

/// Estimates of <dO_t, y_p> for the pairs that were dropped, from the sketches of both.
///   d_weights[t, k] = 1/k sum_j <dO_t, r_j> <y_p, r_j>     dropped pairs; others stay as they are
/// Shapes    of_rows (N, k) by row; of_tokens (T, k); d_weights (T, K)
/// Numerics  unbiased: E[r_j r_j^T] is the identity
/// Order     asynchronous on the space
template <class ExecutionSpace, class Accumulate, class Device,
          class Unit = detail::translation_unit>
void sketch_dropped_gradients(const ExecutionSpace& space, const expert_order<Device>& order,
                              const kept_pairs<Accumulate, Device>& kept,
                              const matrix_view<Accumulate, Device>& of_rows,
                              const matrix_view<Accumulate, Device>& of_tokens,
                              const matrix_view<Accumulate, Device>& d_weights) {
  const auto K = static_cast<std::int64_t>(d_weights.extent(1));
  const auto k = static_cast<int>(of_rows.extent(1));
  Kokkos::parallel_for(
      "lrmoe::gradient_sketch::estimate",
      Kokkos::RangePolicy<ExecutionSpace>(space, 0, kept.kept_of_pair.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t p) {
        const index_type row = order.row_of_pair(p);
        if (row == no_expert || kept.kept_of_pair(p) != no_expert) return;
        Accumulate sum = 0;
        for (int j = 0; j < k; ++j) sum += of_rows(row, j) * of_tokens(p / K, j);
        d_weights(p / K, p % K) = sum / static_cast<Accumulate>(k);
      });
}

}  // namespace lrmoe
