// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Part of a program only with CUDA.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <lrmoe/cuda/backend.hpp>
#include <lrmoe/cuda/device.hpp>

#include "harness.hpp"
#include "results.hpp"

namespace bench {

/// Seconds between events in the stream of the space: from what is enqueued at the start to what is enqueued
/// at each mark. Nothing waits in between.
template <>
class work_timer<Kokkos::Cuda> {
 public:
  explicit work_timer(const Kokkos::Cuda& space) : space_(space) {}
  work_timer(const work_timer&) = delete;
  work_timer& operator=(const work_timer&) = delete;
  ~work_timer() {
    for (cudaEvent_t event : events_) static_cast<void>(cudaEventDestroy(event));
  }

  void start() {
    used_ = 0;
    mark();
  }
  void mark() {
    if (used_ == events_.size()) {
      cudaEvent_t event = nullptr;
      lrmoe::cuda::check(cudaEventCreate(&event), "making a CUDA event");
      events_.push_back(event);
    }
    lrmoe::cuda::check(cudaEventRecord(events_[used_++], space_.cuda_stream()),
                       "recording a CUDA event");
  }

  std::vector<double> seconds() {
    lrmoe::cuda::check(cudaEventSynchronize(events_[used_ - 1]), "waiting for measured work");
    std::vector<double> found;
    for (std::size_t i = 1; i < used_; ++i) {
      float milliseconds = 0.0F;
      lrmoe::cuda::check(cudaEventElapsedTime(&milliseconds, events_[0], events_[i]),
                         "reading the time of measured work");
      found.push_back(static_cast<double>(milliseconds) * 1e-3);
    }
    return found;
  }

  static constexpr const char* clock = "CUDA events";

 private:
  Kokkos::Cuda space_;
  std::vector<cudaEvent_t> events_;
  std::size_t used_ = 0;
};

/// Leaves nothing of the last case in the device's cache: twice its size is written, in the stream, so that
/// launches of the next case may run ahead of it, as they do in training.
inline std::function<void()> cold_start(const Kokkos::Cuda& space) {
  using bytes_view = Kokkos::View<std::byte*, Kokkos::CudaSpace>;
  const bytes_view flushed("flushed",
                           2 * static_cast<std::size_t>(space.cuda_device_prop().l2CacheSize));
  return [space, flushed]() {
    lrmoe::cuda::check(cudaMemsetAsync(flushed.data(), 0, flushed.size(), space.cuda_stream()),
                       "writing over the cache");
  };
}

/// host_machine() with the GPU that runs now, and what drives it.
inline json gpu_machine() {
  int device = 0;
  lrmoe::cuda::check(cudaGetDevice(&device), "reading the current CUDA device");
  const auto found = lrmoe::cuda::describe_device(device);
  const auto version = [](int number) {
    return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
  };
  json machine = host_machine();
  machine["gpu"] = found.name;
  machine["driver"] = "CUDA " + version(found.driver_version);
  machine["runtime"] = version(found.runtime_version);
  machine["gpu_memory_bytes"] = found.memory_bytes;
  machine["multiprocessors"] = found.multiprocessors;
  machine["blas"] = "cuBLAS " + lrmoe::cuda::library_version_text(found.cublas_version);
  return machine;
}

}  // namespace bench
