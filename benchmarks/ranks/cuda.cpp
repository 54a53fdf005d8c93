// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Part of the build only with CUDA.
#include <lrmoe/cuda/config.hpp>
#include <lrmoe/exchange/logical.hpp>
#if LRMOE_BENCH_HAS_MPI && LRMOE_CUDA_HAS_NCCL
#include <lrmoe/cuda/exchange/nccl.hpp>
#include <lrmoe/exchange/mpi.hpp>
#endif

#include "ranks_benchmark.hpp"
#include "run.hpp"

namespace bench {
namespace {

#if LRMOE_BENCH_HAS_MPI && LRMOE_CUDA_HAS_NCCL
using nccl_ranks = lrmoe::cuda::nccl_communicator<lrmoe::mpi::communicator>;
using gpu_ranks = lrmoe::any_communicator<lrmoe::logical::communicator, nccl_ranks>;

std::string nccl_version() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "unknown";
  return lrmoe::cuda::library_version_text(version);
}
#else
using gpu_ranks = lrmoe::any_communicator<lrmoe::logical::communicator>;
#endif

template <class Element>
void run_as(const ranks_options& chosen, [[maybe_unused]] bool processes,
            const std::string& command) {
  using backend = lrmoe::cuda::backend<>;
  launch_description about{.command = command, .machine = gpu_machine()};
  about.device = about.machine["gpu"].template get<std::string>();
#if LRMOE_BENCH_HAS_MPI && LRMOE_CUDA_HAS_NCCL
  if (processes) {
    about.model = "nccl";
    about.machine["nccl"] = nccl_version();
    // Fewer than ranks: they shared a GPU, and times say nothing of what they take with one each.
    about.machine["visible_gpus"] = lrmoe::cuda::device_count();
    run_ranks_benchmark<Element, backend>(
        chosen, about,
        gpu_ranks(nccl_ranks(lrmoe::mpi::communicator(MPI_COMM_WORLD), Kokkos::Cuda())));
    return;
  }
#endif
  run_logical_ranks<Element, backend, gpu_ranks>(chosen, about);
}

}  // namespace

void run_ranks_on_gpu(const ranks_options& chosen, bool processes, const std::string& command) {
  if (chosen.type == "bf16")
    run_as<lrmoe::bfloat16>(chosen, processes, command);
  else
    run_as<float>(chosen, processes, command);
}

}  // namespace bench
