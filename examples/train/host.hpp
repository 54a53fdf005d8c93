// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// Where the trainer computes, the shapes of its data, and how its loops are shared among threads.

#include <algorithm>
#include <cstdint>
#include <string>

#include <Kokkos_Core.hpp>

#include <lrmoe/types.hpp>

/// The trainer around the library: everything of a small language model that is not the MoE layer.
/// Letters: B sequences, C context (positions), T = B*C tokens, D width, H heads, N = D/H head
/// width, V vocabulary (bytes), E experts, K experts per token, F expert width.
namespace train {

using space = Kokkos::OpenMP;
using device = space::device_type;

using vector = lrmoe::vector_view<float, device>;
using const_vector = lrmoe::vector_view<const float, device>;
using matrix = lrmoe::matrix_view<float, device>;
using const_matrix = lrmoe::matrix_view<const float, device>;
using tensor = lrmoe::tensor_view<float, device>;
using const_tensor = lrmoe::tensor_view<const float, device>;
using tokens = lrmoe::vector_view<std::int32_t, device>;
using const_tokens = lrmoe::vector_view<const std::int32_t, device>;

/// The first `count` rows of a buffer that is allocated for the largest batch.
template <class Matrix>
Matrix first_rows(const Matrix& buffer, std::int64_t count) {
  return Matrix(buffer.data(), static_cast<std::size_t>(count), buffer.extent(1));
}

/// Calls body(chunk, begin, end) for every chunk of [0, count), chunks shared among threads.
/// Chunk borders depend on the sizes only, so sums made per chunk and then added in the order of
/// chunks are the same from run to run, for any number of threads.
template <class Body>
void for_chunks(const std::string& label, std::int64_t count, std::int64_t chunk_size,
                const Body& body) {
  const std::int64_t chunks = (count + chunk_size - 1) / chunk_size;
  Kokkos::parallel_for(label, Kokkos::RangePolicy<space>(0, chunks), [=](std::int64_t chunk) {
    const std::int64_t begin = chunk * chunk_size;
    body(chunk, begin, std::min(begin + chunk_size, count));
  });
}

/// Rows of one task of a row-wise kernel: enough work to pay for its start.
inline constexpr std::int64_t rows_per_chunk = 64;

}  // namespace train
