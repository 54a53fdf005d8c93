// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <cuda.h>

#include <lrmoe/cuda/check.hpp>
#include <lrmoe/types.hpp>

namespace lrmoe::cuda::hopper {

namespace detail {

/// cuTensorMapEncodeTiled of the driver; asked for by name, so that nothing links to the driver's library.
inline decltype(&cuTensorMapEncodeTiled) tensor_map_encoder() {
  static const auto encoder = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult answer{};
#if CUDART_VERSION >= 12050
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                           cudaEnableDefault, &answer),
          "asking the driver for tensor maps");
#else
    check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &answer),
          "asking the driver for tensor maps");
#endif
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  return encoder;
}

}  // namespace detail

/// Describes a contiguous bfloat16 tensor to the copy engine, innermost extent first; boxes of it land in shared
/// memory in the layout that wgmma reads with a swizzle of 128 bytes, and are zero outside the tensor.
/// The address and all row lengths must be multiples of 16 bytes; the box's innermost extent is 64 values.
/// Throws error when the driver refuses.
template <std::size_t Rank>
CUtensorMap bfloat16_map(const bfloat16* data, const std::array<std::int64_t, Rank>& extents,
                         const std::array<std::uint32_t, Rank>& box) {
  std::array<cuuint64_t, Rank> sizes{};
  std::array<cuuint64_t, Rank> strides{};  // of all but the innermost, in bytes
  std::array<cuuint32_t, Rank> steps{};
  cuuint64_t stride = sizeof(bfloat16);
  for (std::size_t i = 0; i < Rank; ++i) {
    sizes[i] = static_cast<cuuint64_t>(extents[i]);
    stride *= sizes[i];
    strides[i] = stride;
    steps[i] = 1;
  }
  CUtensorMap map;
  const CUresult status = detail::tensor_map_encoder()(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(Rank),
      const_cast<bfloat16*>(data), sizes.data(), strides.data(), box.data(), steps.data(),
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    throw error("lrmoe: describing a matrix to the copy engine failed: CUDA driver error " +
                std::to_string(static_cast<int>(status)));
  return map;
}

}  // namespace lrmoe::cuda::hopper
