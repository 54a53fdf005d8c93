// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <sstream>
#include <string>
#include <string_view>

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <lrmoe/error.hpp>

namespace lrmoe::cuda {

namespace detail {

/// What a user can do about a failure of the runtime.
inline std::string_view remedy(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation:
      return "set a memory budget, lower the tokens per call, or free memory of the device";
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
      return "install a newer driver, or build with an older CUDA toolkit";
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
      return "make a GPU visible (nvidia-smi -L, CUDA_VISIBLE_DEVICES), or use the host backend";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      return "build for this device: set CMAKE_CUDA_ARCHITECTURES and Kokkos' architecture";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
      return "an earlier kernel failed and the device is lost to this process: end it, and run it "
             "under compute-sanitizer to find the kernel";
    default:
      return "an earlier asynchronous call may be the cause: run with CUDA_LAUNCH_BLOCKING=1 to "
             "see which";
  }
}

inline std::string_view remedy(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "cuBLAS could not start on this device: check that memory is free and that the driver "
             "is as new as the toolkit";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "set a memory budget, lower the tokens per call, or free memory of the device";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "choose another product";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "this needs a device of compute capability 8.0 or later";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "an earlier kernel may have failed: run under compute-sanitizer";
    default:
      return "set CUBLAS_LOGINFO_DBG=1 CUBLAS_LOGDEST_DBG=stderr to see the call";
  }
}

}  // namespace detail

/// Throws unless the call succeeded: memory_error where device memory ran out, else error. The message
/// says what was attempted, the runtime's name and text of the failure, and what to do.
inline void check(cudaError_t status, std::string_view attempt) {
  if (status == cudaSuccess) return;
  // Read, so that a failure that passes is not reported again by the next call that looks.
  static_cast<void>(cudaGetLastError());
  std::ostringstream message;
  message << "lrmoe: " << attempt << " failed: " << cudaGetErrorName(status) << " ("
          << cudaGetErrorString(status) << "): " << detail::remedy(status);
  if (status == cudaErrorMemoryAllocation) throw memory_error(message.str());
  throw error(message.str());
}

/// As above.
inline void check(cublasStatus_t status, std::string_view attempt) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  std::ostringstream message;
  message << "lrmoe: " << attempt << " failed: " << cublasGetStatusName(status) << " ("
          << cublasGetStatusString(status) << "): " << detail::remedy(status);
  if (status == CUBLAS_STATUS_ALLOC_FAILED) throw memory_error(message.str());
  throw error(message.str());
}

}  // namespace lrmoe::cuda
