// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <lrmoe/cuda/device_guard.hpp>
#include <lrmoe/cuda/product/grouped_gemm.hpp>
#include <lrmoe/cuda/product/hopper/grouped_kernel.hpp>
#include <lrmoe/cuda/product/hopper/tensor_map.hpp>
#include <lrmoe/experts/grouped_product.hpp>

namespace lrmoe::cuda {

/// A grouped product (contract: lrmoe/experts/grouped_product.hpp) of this library's own kernels for compute
/// capability 9.0: one launch for all groups, whose extents are read on the device.
/// Supports  bfloat16, where every matrix begins at a multiple of 16 bytes and has rows of a multiple of 8
///           values, for up to hopper::max_groups groups, on a device and in a build (architecture 90a) of
///           compute capability 9.0
/// Throws    error for what it does not support, before anything is enqueued; measured_product gives such
///           calls to another
/// Laws      bitwise the same from run to run: one block sums a tile, in the order of its rows or columns, and
///           every element of a gradient is added to once
/// Space     nothing of the workspace
class hopper_grouped : public typed_products<hopper_grouped> {
 public:
  static constexpr const char* name = "hopper";

  explicit hopper_grouped(workspace<device_type>&) {}

  static std::int64_t workspace_bytes(const Kokkos::Cuda&) { return 0; }
  void reserve(const Kokkos::Cuda& space) { kernels_on(space.cuda_device()); }

  /// Whether the device and this build have the kernels.
  bool available(const Kokkos::Cuda& space) { return kernels_on(space.cuda_device()).usable; }

  /// Why this product is refused; null if it is supported.
  const char* refusal(const Kokkos::Cuda& space, const grouped_gemm& gemm,
                      const row_groups<device_type>& groups) {
    if (gemm.in != CUDA_R_16BF) return "it multiplies bfloat16 only";
    if (!available(space))
      return "it needs a GPU of compute capability 9.0 and a build for architecture 90a";
    if (!aligned(gemm))
      return "it needs matrices that begin at multiples of 16 bytes, with rows of multiples of 8 "
             "values";
    static_assert(hopper::max_groups == 3072);
    if (groups.size() > hopper::max_groups) return "it takes up to 3072 groups";
    return nullptr;
  }
  bool supports(const Kokkos::Cuda& space, const grouped_gemm& gemm,
                const row_groups<device_type>& groups) {
    const char* reason = refusal(space, gemm, groups);
    if (reason == nullptr) return true;
    if (std::find(refused_.begin(), refused_.end(), reason) == refused_.end())
      refused_.push_back(reason);
    return false;
  }

  /// One line for each reason for which supports() was false; empty if there is none.
  std::string refusals() const {
    std::string text;
    for (const char* each : refused_) text.append(each).append("\n");
    return text;
  }

  /// The products of all groups that have rows.
  void multiply(const Kokkos::Cuda& space, const grouped_gemm& gemm,
                const row_groups<device_type>& groups) {
    if (groups.rows() == 0) return;
    if (!supports(space, gemm, groups))
      throw error("lrmoe: cuda::hopper_grouped: " + std::string(name_of(gemm.operation)) + " of " +
                  std::string(gemm.element) +
                  " is not supported here: " + refusal(space, gemm, groups) +
                  "; use cuda::cublas_loop or cuda::measured_product");
    switch (gemm.operation) {
      case product_operation::multiply_rows:
        return launch<hopper::product_kind::rows>(space, gemm, groups);
      case product_operation::multiply_rows_transposed:
        return launch<hopper::product_kind::rows_transposed>(space, gemm, groups);
      case product_operation::sum_products:
        return launch<hopper::product_kind::gradient>(space, gemm, groups);
    }
  }

 private:
  struct kernels {
    int device;
    bool usable;
    int processors;
  };

  static bool aligned(const grouped_gemm& gemm) {
    constexpr std::uintptr_t bytes = 16;
    constexpr int values = 8;
    return (gemm.a.address | gemm.b.address | gemm.c.address) % bytes == 0 &&
           gemm.m % values == 0 && gemm.other % values == 0;
  }

  const kernels& kernels_on(int device) {
    for (const kernels& each : kernels_)
      if (each.device == device) return each;
    const device_guard guard(device);
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device), "reading the properties of a GPU");
    kernels found{device, false, properties.multiProcessorCount};
    if (properties.major == 9 && properties.minor == 0)
      found.usable =
          prepare(hopper::grouped_product_kernel<hopper::product_kind::rows>) &&
          prepare(hopper::grouped_product_kernel<hopper::product_kind::rows_transposed>) &&
          prepare(hopper::grouped_product_kernel<hopper::product_kind::gradient>);
    return kernels_.emplace_back(found);
  }

  /// Whether a kernel was compiled for 90a: elsewhere it is empty and has no barriers in shared memory.
  template <class Kernel>
  static bool prepare(Kernel* kernel) {
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, kernel), "looking at a kernel");
    if (attributes.sharedSizeBytes == 0) return false;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               hopper::shared_bytes(hopper::max_groups)),
          "asking for shared memory");
    return true;
  }

  // BLAS states products column-major, so its right operand is the left one here.
  template <hopper::product_kind Kind>
  void launch(const Kokkos::Cuda& space, const grouped_gemm& gemm,
              const row_groups<device_type>& groups) {
    const kernels& on = kernels_on(space.cuda_device());
    const device_guard guard(on.device);
    constexpr bool gradient = Kind == hopper::product_kind::gradient;
    const auto G = static_cast<int>(groups.size());
    const auto* left = static_cast<const bfloat16*>(gemm.b.at(0, 0));
    const auto* right = static_cast<const bfloat16*>(gemm.a.at(0, 0));
    const std::int64_t rows = groups.rows(), n = gemm.m, other = gemm.other;
    CUtensorMap left_map, right_map;
    if constexpr (gradient) {
      left_map = hopper::bfloat16_map<2>(left, {other, rows}, {64, hopper::tile_k});
      right_map = hopper::bfloat16_map<2>(right, {n, rows}, {64, hopper::tile_k});
    } else {
      left_map = hopper::bfloat16_map<2>(left, {other, rows}, {hopper::tile_k, hopper::tile_m});
      right_map =
          Kind == hopper::product_kind::rows_transposed
              ? hopper::bfloat16_map<3>(right, {other, n, G}, {hopper::tile_k, hopper::tile_n, 1})
              : hopper::bfloat16_map<3>(right, {n, other, G}, {64, hopper::tile_k, 1});
    }
    const hopper::product_arguments arguments{
        groups.offsets.data(),     gemm.c.at(0, 0), G, gradient ? gemm.other : 0, gemm.m,
        gradient ? 0 : gemm.other, gemm.adds};
    hopper::grouped_product_kernel<Kind>
        <<<on.processors, hopper::block_threads, hopper::shared_bytes(G), space.cuda_stream()>>>(
            left_map, right_map, arguments);
    check(cudaGetLastError(), "launching a grouped product");
  }

  std::vector<kernels> kernels_;
  std::vector<const char*> refused_;
};

static_assert(grouped_product<hopper_grouped, Kokkos::Cuda, device_type, bfloat16>);

}  // namespace lrmoe::cuda
