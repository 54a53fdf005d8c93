// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <lrmoe/exchange/logical.hpp>
#if LRMOE_BENCH_HAS_MPI
#include <lrmoe/exchange/mpi.hpp>
#endif

#include "ranks_benchmark.hpp"
#include "run.hpp"

namespace bench {
namespace {

#if LRMOE_BENCH_HAS_MPI
using host_ranks = lrmoe::any_communicator<lrmoe::logical::communicator, lrmoe::mpi::communicator>;
#else
using host_ranks = lrmoe::any_communicator<lrmoe::logical::communicator>;
#endif

template <class Element>
void run_as(const ranks_options& chosen, [[maybe_unused]] bool processes,
            const std::string& command) {
  launch_description about{.command = command, .machine = host_machine()};
  about.machine["threads"] = Kokkos::OpenMP().concurrency();
  about.machine["blas"] = dense_product_library();
#if LRMOE_BENCH_HAS_MPI
  if (processes) {
    about.model = "mpi";
    run_ranks_benchmark<Element, host_backend>(
        chosen, about, host_ranks(lrmoe::mpi::communicator(MPI_COMM_WORLD)));
    return;
  }
#endif
  run_logical_ranks<Element, host_backend, host_ranks>(chosen, about);
}

}  // namespace

void run_ranks_on_host(const ranks_options& chosen, bool processes, const std::string& command) {
  if (chosen.type == "bf16")
    run_as<lrmoe::bfloat16>(chosen, processes, command);
  else
    run_as<float>(chosen, processes, command);
}

}  // namespace bench
