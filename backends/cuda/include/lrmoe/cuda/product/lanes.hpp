// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstddef>
#include <vector>

#include <lrmoe/cuda/device_guard.hpp>

namespace lrmoe::cuda {

/// Streams of one device on which independent work runs side by side. Lane 0 is the caller's stream, the
/// others are streams of this object.
class lanes {
 public:
  lanes(int device, int count) {
    const device_guard guard(device);
    try {
      check(cudaEventCreateWithFlags(&begun_, cudaEventDisableTiming), "making a CUDA event");
      for (int i = 1; i < count; ++i) {
        lane& made = lanes_.emplace_back();
        check(cudaStreamCreateWithFlags(&made.stream, cudaStreamNonBlocking),
              "making a CUDA stream");
        check(cudaEventCreateWithFlags(&made.ended, cudaEventDisableTiming), "making a CUDA event");
      }
    } catch (...) {
      release();
      throw;
    }
  }
  lanes(const lanes&) = delete;
  lanes& operator=(const lanes&) = delete;
  ~lanes() { release(); }

  /// While one is alive, work on `used` lanes may overlap: it comes after what was enqueued on the caller's
  /// stream before, and what is enqueued there afterwards comes after all of it, when an exception
  /// ends the scope as well.
  class fork {
   public:
    fork(lanes& on, cudaStream_t caller, int used) : on_(on), caller_(caller), used_(used) {
      if (used_ < 2) return;
      check(cudaEventRecord(on_.begun_, caller_), "recording a CUDA event");
      for (int i = 1; i < used_; ++i)
        check(cudaStreamWaitEvent(stream(i), on_.begun_, 0), "ordering CUDA streams");
    }
    fork(const fork&) = delete;
    fork& operator=(const fork&) = delete;
    ~fork() {
      if (!joined_) static_cast<void>(join_status());
    }

    cudaStream_t stream(int i) const {
      return i == 0 ? caller_ : on_.lanes_[static_cast<std::size_t>(i - 1)].stream;
    }
    void join() { check(join_status(), "joining CUDA streams"); }

   private:
    cudaError_t join_status() {
      joined_ = true;
      cudaError_t result = cudaSuccess;
      for (int i = 1; i < used_; ++i) {
        cudaEvent_t ended = on_.lanes_[static_cast<std::size_t>(i - 1)].ended;
        cudaError_t status = cudaEventRecord(ended, stream(i));
        if (status == cudaSuccess) status = cudaStreamWaitEvent(caller_, ended, 0);
        if (result == cudaSuccess) result = status;
      }
      return result;
    }

    lanes& on_;
    cudaStream_t caller_;
    int used_;
    bool joined_ = false;
  };

 private:
  struct lane {
    cudaStream_t stream = nullptr;
    cudaEvent_t ended = nullptr;
  };

  void release() noexcept {
    for (const lane& each : lanes_) {
      if (each.stream != nullptr) static_cast<void>(cudaStreamDestroy(each.stream));
      if (each.ended != nullptr) static_cast<void>(cudaEventDestroy(each.ended));
    }
    if (begun_ != nullptr) static_cast<void>(cudaEventDestroy(begun_));
  }

  cudaEvent_t begun_ = nullptr;
  std::vector<lane> lanes_;
};

}  // namespace lrmoe::cuda
