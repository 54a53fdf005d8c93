// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/cuda/check.hpp>

namespace lrmoe::cuda {

/// Makes a device the calling thread's current one for as long as it lives.
class device_guard {
 public:
  explicit device_guard(int device) {
    check(cudaGetDevice(&before_), "reading the current CUDA device");
    if (device == before_) return;
    check(cudaSetDevice(device), "selecting CUDA device " + std::to_string(device));
    changed_ = true;
  }
  device_guard(const device_guard&) = delete;
  device_guard& operator=(const device_guard&) = delete;
  ~device_guard() {
    if (changed_) static_cast<void>(cudaSetDevice(before_));
  }

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace lrmoe::cuda
