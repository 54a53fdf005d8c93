// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Part of the build only with CUDA.
#include <lrmoe/cuda/backend.hpp>

#include "candidates.hpp"
#include "layer_candidate.hpp"

namespace bench::compare {

template <class Element>
std::unique_ptr<candidate<Element>> cuda_candidate() {
  return std::make_unique<layer_candidate<Element, lrmoe::cuda::backend<>>>(
      std::string("cuda-") + element_name<Element>());
}

std::pair<std::string, std::string> cuda_device() {
  int device = 0, driver = 0;
  cudaDeviceProp properties{};
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaGetDeviceProperties(&properties, device) != cudaSuccess ||
      cudaDriverGetVersion(&driver) != cudaSuccess)
    return {"unknown", "unknown"};
  return {properties.name,
          std::to_string(driver / 1000) + "." + std::to_string(driver % 1000 / 10)};
}

template std::unique_ptr<candidate<float>> cuda_candidate<float>();
template std::unique_ptr<candidate<lrmoe::bfloat16>> cuda_candidate<lrmoe::bfloat16>();
template std::unique_ptr<candidate<double>> cuda_candidate<double>();

}  // namespace bench::compare
