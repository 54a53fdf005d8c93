// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// lrmoe_bench_ranks: times one LRMoE layer spread over ranks, of this process or of mpirun, on the host or
// on GPUs, beside the same layer on one rank.
// Exit code: 0 measured, 1 error, 2 bad usage.

#include <exception>
#include <sstream>
#include <string>

#include <CLI/CLI.hpp>
#include <Kokkos_Core.hpp>
#include <fmt/format.h>
#if LRMOE_HAS_CUDA_BACKEND
#include <lrmoe/cuda/config.hpp>
#include <lrmoe/cuda/device.hpp>
#endif
#if LRMOE_HAS_CUDA_BACKEND && LRMOE_CUDA_HAS_NCCL
#include <lrmoe/cuda/exchange/nccl.hpp>
#endif

#include "ranks/processes.hpp"
#include "ranks/run.hpp"
#include "support/results.hpp"

namespace {

#if LRMOE_BENCH_HAS_MPI
constexpr bool has_mpi = true;
#else
constexpr bool has_mpi = false;
#endif
#if LRMOE_HAS_CUDA_BACKEND
constexpr bool has_cuda = true, has_nccl = LRMOE_CUDA_HAS_NCCL != 0;
#else
constexpr bool has_cuda = false, has_nccl = false;
#endif

/// What this program, or this machine, lacks for what is asked; or nothing.
std::string missing([[maybe_unused]] const bench::ranks_options& chosen,
                    [[maybe_unused]] const bench::processes& started) {
  if (bench::processes::launched() && !has_mpi)
    return "mpirun started this program, and it was built without MPI: install one "
           "(libopenmpi-dev openmpi-bin) and configure again, or run it without mpirun";
  if (!chosen.on_gpu()) return {};
  if (!has_cuda)
    return "--backend cuda: this program was built without CUDA: install a CUDA toolkit, run "
           "scripts/bootstrap, and build it in a tree with CUDA (cmake --preset cuda-release)";
  if (started.started() && !has_nccl)
    return "--backend cuda under mpirun: this program was built without NCCL, over which GPUs "
           "exchange: install NCCL (or set NCCL_ROOT) and configure again, or run it without "
           "mpirun, "
           "with all ranks on one GPU";
#if LRMOE_HAS_CUDA_BACKEND && LRMOE_CUDA_HAS_NCCL
  if (const int gpus = lrmoe::cuda::device_count();
      started.size_of_node() > gpus && !lrmoe::cuda::nccl_shares_gpus())
    return fmt::format(
        "{} processes on a machine with {} visible GPU{}: NCCL needs one for each, so start at "
        "most {} there",
        started.size_of_node(), gpus, gpus == 1 ? "" : "s", gpus);
#endif
  return {};
}

/// A Kokkos with CUDA starts a GPU whatever the backend, that of the process's place on its machine, and ends
/// the program where it cannot use it: this throws before that.
void require_gpu_of_kokkos([[maybe_unused]] const bench::processes& started) {
#if LRMOE_HAS_CUDA_BACKEND
  lrmoe::cuda::require_device(started.rank_on_node() % lrmoe::cuda::device_count());
#endif
}

void measure(const bench::ranks_options& chosen, bool processes, const std::string& command) {
#if LRMOE_HAS_CUDA_BACKEND
  if (chosen.on_gpu()) return bench::run_ranks_on_gpu(chosen, processes, command);
#endif
  bench::run_ranks_on_host(chosen, processes, command);
}

int run(int argc, char** argv, const bench::processes& started) {
  CLI::App app("lrmoe_bench_ranks");
  bench::ranks_options chosen;
  bench::declare_options(app, chosen, started.started() && has_nccl);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    std::ostringstream out, err;
    const int code = app.exit(problem, out, err) == 0 ? 0 : 2;
    // All processes have the same arguments: one speaks for them.
    if (started.rank() == 0) {
      fmt::print("{}", out.str());
      fmt::print(stderr, "{}", err.str());
    }
    return code;
  }
  std::string command = bench::command_line(argc, argv);
  std::int64_t ranks = chosen.ranks;
  if (started.started()) {
    ranks = started.size();
    command = fmt::format("mpirun -n {} {}", ranks, command);
  }
  std::string reason = bench::conflict(chosen, ranks);
  if (reason.empty()) reason = missing(chosen, started);
  if (started.refused(reason)) return 2;

  require_gpu_of_kokkos(started);
  Kokkos::InitializationSettings settings;
  // Kokkos would ask for OMP_PROC_BIND, which ties threads that OpenBLAS makes itself to one core.
  settings.set_disable_warnings(true);
  if (chosen.threads > 0) settings.set_num_threads(chosen.threads);
  const Kokkos::ScopeGuard kokkos(settings);
  measure(chosen, started.started(), command);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bench::processes started(argc, argv);
  try {
    return run(argc, argv, started);
  } catch (const std::exception& problem) {
    fmt::print(stderr, "lrmoe_bench_ranks: {}{}\n",
               started.size() > 1 ? fmt::format("rank {}: ", started.rank()) : "", problem.what());
    started.end_all();
    return 1;
  }
}
