// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include <lrmoe/cuda/device_guard.hpp>

namespace lrmoe::cuda {

/// One GPU and the software that drives it.
struct device_description {
  int index = 0;
  std::string name;
  int major = 0;  ///< compute capability
  int minor = 0;
  int multiprocessors = 0;
  std::int64_t memory_bytes = 0;
  int driver_version = 0;  ///< newest CUDA of the driver, 1000 major + 10 minor; 0 without a driver
  int runtime_version = 0;  ///< of the CUDA runtime in use, likewise
  int cublas_version = 0;   ///< 10000 major + 100 minor + patch

  /// One line: name, capability, memory and versions.
  std::string summary() const;
};

/// 23203 -> "2.32.3", as cuBLAS and NCCL number their versions.
inline std::string library_version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "." +
         std::to_string(version % 100);
}

namespace detail {

/// 13000 -> "13.0", as the runtime numbers its versions.
inline std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

inline int cublas_version() {
  int major = 0, minor = 0, patch = 0;
  check(cublasGetProperty(MAJOR_VERSION, &major), "reading the version of cuBLAS");
  check(cublasGetProperty(MINOR_VERSION, &minor), "reading the version of cuBLAS");
  check(cublasGetProperty(PATCH_LEVEL, &patch), "reading the version of cuBLAS");
  return 10000 * major + 100 * minor + patch;
}

#ifdef __CUDACC__
template <int>
__global__ void empty_kernel() {}
#endif

}  // namespace detail

inline std::string device_description::summary() const {
  std::ostringstream text;
  text << "GPU " << index << ": " << name << ", compute capability " << major << "." << minor
       << ", " << multiprocessors << " multiprocessors, " << (memory_bytes >> 20)
       << " MiB, driver for CUDA " << detail::version_text(driver_version) << ", runtime "
       << detail::version_text(runtime_version) << ", cuBLAS "
       << library_version_text(cublas_version);
  return text.str();
}

/// GPUs that this process may use.
/// Throws    error when there is none, and when the driver is missing or older than the runtime, with both
///           versions
inline int device_count() {
  int driver = 0, runtime = 0, count = 0;
  check(cudaDriverGetVersion(&driver), "reading the version of the CUDA driver");
  check(cudaRuntimeGetVersion(&runtime), "reading the version of the CUDA runtime");
  if (driver == 0)
    throw error("lrmoe: no NVIDIA driver is installed: install one for CUDA " +
                detail::version_text(runtime) + " or later, or use the host backend");
  const cudaError_t status = cudaGetDeviceCount(&count);
  // Within a major version the runtime accepts some older drivers, and is the one that knows which.
  if (status == cudaErrorInsufficientDriver || driver / 1000 < runtime / 1000)
    throw error("lrmoe: the NVIDIA driver is for CUDA " + detail::version_text(driver) +
                ", this program uses CUDA " + detail::version_text(runtime) +
                ": install a newer driver, or build with a CUDA toolkit of version " +
                detail::version_text(driver) + " or earlier");
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0))
    throw error(
        "lrmoe: no NVIDIA GPU is visible: check nvidia-smi -L and CUDA_VISIBLE_DEVICES, or use the "
        "host backend");
  check(status, "looking for NVIDIA GPUs");
  return count;
}

/// The first number of a GPU's compute capability. All GPUs are asked once, because plans ask often; Kokkos
/// knows the properties of its default device only.
/// Throws    as device_count
inline int compute_capability_major(int index) {
  static const std::vector<int> of_all = [] {
    std::vector<int> majors(static_cast<std::size_t>(device_count()));
    for (std::size_t i = 0; i < majors.size(); ++i)
      check(cudaDeviceGetAttribute(&majors[i], cudaDevAttrComputeCapabilityMajor,
                                   static_cast<int>(i)),
            "reading the compute capability of a GPU");
    return majors;
  }();
  return of_all[static_cast<std::size_t>(index)];
}

/// Throws    as device_count; argument_error for an index that is not in [0, device_count())
inline device_description describe_device(int index = 0) {
  const int count = device_count();
  require(index >= 0 && index < count, "GPU ", index, " is asked for, and ", count,
          count == 1 ? " is" : " are", " visible: use an index in [0, ", count, ")");
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index),
        "reading the properties of GPU " + std::to_string(index));
  device_description result;
  result.index = index;
  result.name = properties.name;
  result.major = properties.major;
  result.minor = properties.minor;
  result.multiprocessors = properties.multiProcessorCount;
  result.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  check(cudaDriverGetVersion(&result.driver_version), "reading the version of the CUDA driver");
  check(cudaRuntimeGetVersion(&result.runtime_version), "reading the version of the CUDA runtime");
  result.cublas_version = detail::cublas_version();
  return result;
}

/// A GPU that this program can run on. Call it before Kokkos::initialize, which ends the program where
/// this function throws.
/// Throws    as describe_device; error when the compute capability is below 8.0, or when the program
///           holds no code for the device (seen where nvcc compiles this header)
inline device_description require_device(int index = 0) {
  const device_description device = describe_device(index);
  const std::string capability = std::to_string(device.major) + "." + std::to_string(device.minor);
  if (device.major < 8)
    throw error("lrmoe: GPU " + std::to_string(index) + " (" + device.name +
                ") has compute capability " + capability +
                ": 8.0 or later is needed (bfloat16 products); use the host backend");
#ifdef __CUDACC__
  const device_guard guard(index);
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, detail::empty_kernel<0>);
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    static_cast<void>(cudaGetLastError());
    throw error("lrmoe: this program holds no code for GPU " + std::to_string(index) + " (" +
                device.name + ", compute capability " + capability +
                "): build it and Kokkos for that architecture (CMAKE_CUDA_ARCHITECTURES)");
  }
  check(status, "starting GPU " + std::to_string(index));
#endif
  return device;
}

}  // namespace lrmoe::cuda
