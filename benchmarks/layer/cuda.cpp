// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Part of the build only with CUDA.
#include "layer_benchmark.hpp"

namespace bench {

int run_on_gpu(const options& chosen, const std::string& command) {
  using backend = lrmoe::cuda::backend<>;
  const json machine = gpu_machine();
  if (chosen.type == "bf16")
    return run_layer_benchmark<lrmoe::bfloat16, backend>(chosen, command, machine);
  if (chosen.type == "double")
    return run_layer_benchmark<double, backend>(chosen, command, machine);
  return run_layer_benchmark<float, backend>(chosen, command, machine);
}

}  // namespace bench
