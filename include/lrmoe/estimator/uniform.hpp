// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/estimator/select_largest.hpp>

namespace lrmoe {

/// Simple random sampling: every set of q rows of a segment is equally likely (the q largest of one
/// random key a row). With `scaled` the kept rows weigh L/q, which makes the rule unbiased; without,
/// they weigh 1 and the gradient shrinks by q/L. Sizes are ignored.
struct uniform {
  std::uint64_t seed = 0;
  bool scaled = true;

  static constexpr bool keeps_all() { return false; }
  bool unbiased() const { return scaled; }
  static constexpr void validate() {}

  template <class ExecutionSpace, class Device, class Unit = detail::translation_unit>
  void select(const ExecutionSpace& space, const segments<Device>& rows,
              const vector_view<const float, Device>& /*sizes*/, const draw_key& key,
              const selection<Device>& kept) const {
    const std::uint64_t draw_seed = seed;
    const bool weighted = scaled;
    select_largest(
        "lrmoe::uniform::select", space, rows,
        KOKKOS_LAMBDA(const index_type row) {
          return key.words(draw_seed, static_cast<std::uint32_t>(row)).word[0];
        },
        KOKKOS_LAMBDA(const index_type L, const index_type q) {
          return weighted ? static_cast<float>(L) / static_cast<float>(q) : 1.0F;
        },
        KOKKOS_LAMBDA(const index_type L, const index_type q, const bool keep) {
          if (!weighted) return keep ? 1.0F : 0.0F;
          return static_cast<float>(q) / static_cast<float>(L);
        },
        kept);
  }
};

}  // namespace lrmoe
