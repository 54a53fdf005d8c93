// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>

#include <Kokkos_BitManipulation.hpp>
#include <Kokkos_Macros.hpp>

namespace lrmoe {

/// Sixteen-bit storage type: the upper half of an IEEE binary32. Unit roundoff 2^-8.
/// A type of its own because Kokkos' bhalf_t is four bytes wide in builds without a GPU backend;
/// this one has the same two bytes everywhere and can be reinterpreted as a vendor's bfloat16.
struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;

  /// Round to nearest, ties to even; NaN stays NaN.
  KOKKOS_FUNCTION explicit bfloat16(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    const auto word = Kokkos::bit_cast<std::uint32_t>(value);
    const bool nan = (word & 0x7fffffffU) > 0x7f800000U;
    const std::uint32_t rounded = word + 0x7fffU + ((word >> 16) & 1U);
    bits = static_cast<std::uint16_t>(nan ? (word >> 16) | 0x40U : rounded >> 16);
#endif
  }

  KOKKOS_FUNCTION explicit operator float() const {
    return Kokkos::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

static_assert(sizeof(bfloat16) == 2);

}  // namespace lrmoe
