// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// lrmoe_bench_layer: times the layer and its five expert operations against one plain dense product
// of the same run.
// Exit code: 0 measured, 1 error or a run that did not do what was asked, 2 bad usage.

#include <exception>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "layer/layer_benchmark.hpp"

namespace {

using bench::options;

int run_on_host(const options& chosen, const std::string& command) {
  using backend = bench::host_backend;
  bench::json machine = bench::host_machine();
  machine["threads"] = Kokkos::OpenMP().concurrency();
  machine["blas"] = bench::dense_product_library();
  if (chosen.type == "bf16")
    return bench::run_layer_benchmark<lrmoe::bfloat16, backend>(chosen, command, machine);
  if (chosen.type == "double")
    return bench::run_layer_benchmark<double, backend>(chosen, command, machine);
  return bench::run_layer_benchmark<float, backend>(chosen, command, machine);
}

/// A Kokkos with CUDA starts the GPU whatever the backend, and ends the program where it finds none that
/// it can use: this throws before that.
void require_gpu_of_kokkos() {
#if LRMOE_HAS_CUDA_BACKEND
  lrmoe::cuda::require_device();
#endif
}

int run(const options& chosen, const std::string& command) {
#if LRMOE_HAS_CUDA_BACKEND
  if (chosen.on_gpu()) return bench::run_on_gpu(chosen, command);
#endif
  return run_on_host(chosen, command);
}

/// Whether this program has the backend. Says how to build it otherwise.
bool has_backend([[maybe_unused]] const options& chosen) {
#if !LRMOE_HAS_CUDA_BACKEND
  if (chosen.on_gpu()) {
    fmt::print(stderr,
               "lrmoe_bench_layer: --backend cuda: this program was built without CUDA: install a "
               "CUDA toolkit, run scripts/bootstrap, and build it in a tree with CUDA (cmake "
               "--preset cuda-release)\n");
    return false;
  }
#endif
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("lrmoe_bench_layer");
  options chosen;
  bench::declare_options(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    return app.exit(problem) == 0 ? 0 : 2;
  }
  if (const std::string problem = bench::conflict(chosen); !problem.empty()) {
    fmt::print(stderr, "lrmoe_bench_layer: {}\nRun with --help for more information.\n", problem);
    return 2;
  }
  if (!has_backend(chosen)) return 2;
  try {
    require_gpu_of_kokkos();
    Kokkos::InitializationSettings settings;
    // Kokkos would ask for OMP_PROC_BIND, which ties threads that OpenBLAS makes itself to one core.
    settings.set_disable_warnings(true);
    if (chosen.threads > 0) settings.set_num_threads(chosen.threads);
    const Kokkos::ScopeGuard kokkos(settings);
    return run(chosen, bench::command_line(argc, argv));
  } catch (const std::exception& problem) {
    fmt::print(stderr, "lrmoe_bench_layer: {}\n", problem.what());
    return 1;
  }
}
