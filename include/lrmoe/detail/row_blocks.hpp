// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <type_traits>

#include <lrmoe/types.hpp>

/// Blocks of columns that row kernels (row_parallel.hpp) take at a time. All kinds have
///   values                 numbers of a block, in accumulate_t
///   chunk                  what a row has there, as it is stored; chunk.unpack(values)
///   fetch(row), store(row, values)
///   for_each(body), sum(total, term)   over the columns d of the block
namespace lrmoe::detail {

/// Columns of a row that a processor takes at once.
template <class Element>
class host_block {
 public:
  static constexpr int size = 64;
  using values = accumulate_t<Element>[size];

  KOKKOS_FORCEINLINE_FUNCTION host_block(std::int64_t first, int width)
      : first_(first), width_(width) {}

  /// What a row has there, to be unpacked later.
  struct chunk {
    const Element* from;
    int width;

    KOKKOS_FORCEINLINE_FUNCTION void unpack(values& to) const {
      for (int d = 0; d < width; ++d) to[d] = static_cast<accumulate_t<Element>>(from[d]);
    }
  };
  KOKKOS_FORCEINLINE_FUNCTION chunk fetch(const Element* row, bool /* there */ = true) const {
    return {row + first_, width_};
  }

  /// from, rounded to Element.
  KOKKOS_FORCEINLINE_FUNCTION void store(Element* row, const values& from) const {
    for (int d = 0; d < width_; ++d) row[first_ + d] = static_cast<Element>(from[d]);
  }

  template <class Body>
  KOKKOS_FORCEINLINE_FUNCTION void for_each(const Body& body) const {
    for (int d = 0; d < width_; ++d) body(d);
  }

  template <class Real, class Term>
  KOKKOS_FORCEINLINE_FUNCTION void sum(Real& total, const Term& term) const {
    Real part = 0;
    for (int d = 0; d < width_; ++d) part += term(d);
    total += part;
  }

 private:
  std::int64_t first_;
  int width_;
};

/// Elements that one instruction of a GPU loads or stores.
template <class Element, int width>
struct alignas(width * sizeof(Element)) element_chunk {
  using real = accumulate_t<Element>;
  Element element[width];

  KOKKOS_FORCEINLINE_FUNCTION void unpack(real (&to)[width]) const {
    for (int i = 0; i < width; ++i) to[i] = static_cast<real>(element[i]);
  }
  KOKKOS_FORCEINLINE_FUNCTION void pack(const real (&from)[width]) {
    for (int i = 0; i < width; ++i) element[i] = static_cast<Element>(from[i]);
  }
};

/// A chunk as one instruction moves it.
struct alignas(16) four_words {
  std::uint32_t a, b, c, d;
};

/// In words, because compilers take apart what a register holds two of.
template <>
struct alignas(16) element_chunk<bfloat16, 8> {
  std::uint32_t pair[4];

  KOKKOS_FORCEINLINE_FUNCTION void unpack(float (&to)[8]) const {
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = Kokkos::bit_cast<float>(pair[i] << 16);
      to[2 * i + 1] = Kokkos::bit_cast<float>(pair[i] & 0xffff0000U);
    }
  }
  KOKKOS_FORCEINLINE_FUNCTION void pack(const float (&from)[8]) {
    for (int i = 0; i < 4; ++i) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair[i]) : "f"(from[2 * i + 1]), "f"(from[2 * i]));
#else
      pair[i] = static_cast<std::uint32_t>(bfloat16(from[2 * i]).bits) |
                static_cast<std::uint32_t>(bfloat16(from[2 * i + 1]).bits) << 16;
#endif
    }
  }
};

/// Columns of a row that a lane of a GPU takes at once: a chunk, or a single one. Loops over them have a
/// fixed length, so that values stay in registers.
template <class Element, int width>
class lane_block {
 public:
  static constexpr int size = width;
  using values = accumulate_t<Element>[size];
  using chunk = element_chunk<Element, width>;
  using words = std::conditional_t<sizeof(chunk) == 16, four_words, chunk>;

  KOKKOS_FORCEINLINE_FUNCTION explicit lane_block(std::int64_t first) : first_(first) {}

  KOKKOS_FORCEINLINE_FUNCTION void store(Element* row, const values& from) const {
    chunk packed;
    packed.pack(from);
    put(row, packed);
  }

  template <class Body>
  KOKKOS_FORCEINLINE_FUNCTION void for_each(const Body& body) const {
    for (int d = 0; d < size; ++d) body(d);
  }

  template <class Real, class Term>
  KOKKOS_FORCEINLINE_FUNCTION void sum(Real& total, const Term& term) const {
    Real part = 0;
    for (int d = 0; d < size; ++d) part += term(d);
    total += part;
  }

  /// Zeros if the row is not there.
  KOKKOS_FORCEINLINE_FUNCTION chunk fetch(const Element* row, bool there = true) const {
    words fetched{};
    if (there) fetched = *reinterpret_cast<const words*>(row + first_);
    return Kokkos::bit_cast<chunk>(fetched);
  }
  KOKKOS_FORCEINLINE_FUNCTION void put(Element* row, const chunk& packed) const {
#if defined(__CUDA_ARCH__)
    // nvcc stores an assigned chunk piece by piece in kernels of this size.
    if constexpr (sizeof(chunk) == 16) {
      __stwb(reinterpret_cast<uint4*>(row + first_), Kokkos::bit_cast<uint4>(packed));
      return;
    }
#endif
    const auto moved = Kokkos::bit_cast<words>(packed);
    *reinterpret_cast<words*>(row + first_) = moved;
  }

 private:
  std::int64_t first_;
};

/// body(block, values...) with what each chunk holds.
template <class Block, class Body>
KOKKOS_FORCEINLINE_FUNCTION void with_values(const Block& block, const Body& body) {
  body(block);
}
template <class Block, class Body, class Chunk, class... More>
KOKKOS_FORCEINLINE_FUNCTION void with_values(const Block& block, const Body& body,
                                             const Chunk& chunk, const More&... more) {
  typename Block::values values;
  chunk.unpack(values);
  with_values(
      block, [&](const Block& same, auto&... others) { body(same, values, others...); }, more...);
}

}  // namespace lrmoe::detail
