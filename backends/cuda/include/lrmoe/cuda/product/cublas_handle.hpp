// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <lrmoe/cuda/device.hpp>
#include <lrmoe/cuda/device_guard.hpp>
#include <lrmoe/cuda/product/grouped_gemm.hpp>
#include <lrmoe/memory/workspace.hpp>

namespace lrmoe::cuda {

/// A cuBLAS handle of one device.
/// Numerics  sums that are split over thread blocks stay in the accumulation type; no atomics
class cublas_handle {
 public:
  explicit cublas_handle(int device) : device_(device) {
    const device_guard guard(device);
    check(cublasCreate(&handle_), "making a cuBLAS handle");
    try {
      configure();
    } catch (...) {
      static_cast<void>(cublasDestroy(handle_));
      throw;
    }
  }
  cublas_handle(cublas_handle&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)),
        device_(other.device_),
        stream_(other.stream_),
        workspace_(other.workspace_) {}
  cublas_handle& operator=(cublas_handle&&) = delete;
  ~cublas_handle() {
    if (handle_ == nullptr) return;
    try {
      const device_guard guard(device_);
      static_cast<void>(cublasDestroy(handle_));
    } catch (const error&) {
      // The device is lost, and the handle with it.
    }
  }

  /// Stream and workspace of the next products. Selecting a stream takes the workspace away again, so
  /// both are set together. The workspace must be aligned to 256 bytes.
  void use(cudaStream_t stream, void* workspace, std::int64_t bytes) {
    if (bound_ && stream == stream_ && workspace == workspace_) return;
    bound_ = false;
    check(cublasSetStream(handle_, stream), "giving cuBLAS a stream");
    check(cublasSetWorkspace(handle_, workspace, static_cast<std::size_t>(bytes)),
          "giving cuBLAS a workspace");
    stream_ = stream;
    workspace_ = workspace;
    bound_ = true;
  }

  cublasHandle_t get() const { return handle_; }
  int device() const { return device_; }

 private:
  void configure() {
    check(cublasSetPointerMode(handle_, CUBLAS_POINTER_MODE_HOST), "configuring cuBLAS");
    check(cublasSetAtomicsMode(handle_, CUBLAS_ATOMICS_NOT_ALLOWED), "configuring cuBLAS");
    // Without the flag partial sums of a bfloat16 result may be added in bfloat16.
    check(cublasSetMathMode(
              handle_, static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH |
                                                 CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)),
          "configuring cuBLAS");
  }

  cublasHandle_t handle_ = nullptr;
  int device_;
  cudaStream_t stream_ = nullptr;
  void* workspace_ = nullptr;
  bool bound_ = false;
};

/// Workspaces of cuBLAS handles, from the library's workspace so that the ledger counts them. All products
/// of a context use the same buffer: they run one after the other.
class cublas_workspace {
 public:
  /// Bytes of one handle: what cuBLAS itself would take on the device.
  static std::int64_t handle_bytes(const Kokkos::Cuda& space) {
    return std::int64_t{compute_capability_major(space.cuda_device()) >= 9 ? 32 : 4} << 20;
  }
  static std::int64_t bytes(const Kokkos::Cuda& space, int handles) {
    return handles * handle_bytes(space) + alignment;
  }

  cublas_workspace(workspace<device_type>& scratch, const Kokkos::Cuda& space, int handles)
      : each_(handle_bytes(space)) {
    std::byte* data =
        scratch["cuda::cublas"].template vector<std::byte>(bytes(space, handles)).data();
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    first_ = data + (alignment - address % alignment) % alignment;
  }

  void* of(int handle) const { return first_ + handle * each_; }
  std::int64_t size_bytes() const { return each_; }

 private:
  static constexpr std::int64_t alignment = 256;
  std::byte* first_;
  std::int64_t each_;
};

}  // namespace lrmoe::cuda
