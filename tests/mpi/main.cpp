// Runs Catch2 on every process of an mpirun. The first one prints, for all of them, the totals that
// scripts/test adds up; the output of another one is shown when something failed there. A program built
// for GPUs needs one for each process of a node, unless NCCL lets them share: with fewer it runs nothing and
// ends with 77.
#define CATCH_CONFIG_RUNNER
#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include <Kokkos_Core.hpp>
#include <mpi.h>

#if LRMOE_HAS_CUDA_BACKEND
#include <lrmoe/cuda/device.hpp>
#include <lrmoe/cuda/exchange/nccl.hpp>
#endif

#include "totals.hpp"

using totals::listener;
CATCH_REGISTER_LISTENER(listener)

namespace {

int run(int argc, char** argv) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::ostringstream kept;
  std::streambuf* const terminal = std::cout.rdbuf();
  if (rank > 0) std::cout.rdbuf(kept.rdbuf());
  Catch::Session session;
  int failed = session.applyCommandLine(argc, argv);
  if (failed == 0) failed = session.run();
  std::cout.rdbuf(terminal);
  if (failed != 0 && rank > 0) std::cout << "process " << rank << ":\n" << kept.str() << std::flush;

  // A case that fails on several processes has failed once; all processes run the same cases.
  auto& case_failed = listener::failed_by_case;
  const Catch::Totals& of = listener::of_run;
  auto cases = static_cast<int>(case_failed.size());
  MPI_Bcast(&cases, 1, MPI_INT, 0, MPI_COMM_WORLD);
  case_failed.resize(static_cast<std::size_t>(cases));
  std::array<unsigned long long, 2> assertions{of.assertions.passed, of.assertions.failed};
  MPI_Allreduce(MPI_IN_PLACE, case_failed.data(), cases, MPI_UNSIGNED_LONG_LONG, MPI_MAX,
                MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, assertions.data(), 2, MPI_UNSIGNED_LONG_LONG, MPI_SUM,
                MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  const auto bad = static_cast<unsigned long long>(
      std::count_if(case_failed.begin(), case_failed.end(), [](auto n) { return n > 0; }));
  if (rank == 0)
    return totals::finish({case_failed.size() - bad, bad}, {assertions[0], assertions[1]}, failed);
  return assertions[0] + assertions[1] == 0 ? 1 : failed;
}

#if LRMOE_HAS_CUDA_BACKEND
constexpr int skipped = 77;  // what CTest is told to take for it

/// Whether every node has a GPU for each of its processes; Kokkos gives a process the GPU with its number
/// among those of its node, counted round. Says so, and why, where that is not so.
bool enough_gpus() {
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  int processes = 0, number = 0, gpus = 0;
  MPI_Comm_size(node, &processes);
  MPI_Comm_rank(node, &number);
  MPI_Comm_free(&node);
  std::string reason;
  try {
    gpus = lrmoe::cuda::device_count();
  } catch (const std::exception& problem) {
    reason = std::string(": ") + problem.what();
  }
  int enough = processes <= gpus || (gpus > 0 && lrmoe::cuda::nccl_shares_gpus()) ? 1 : 0;
  if (enough == 0 && number == 0)
    std::printf("skipped: %d processes and %d GPUs on this node%s\n", processes, gpus,
                reason.c_str());
  MPI_Allreduce(MPI_IN_PLACE, &enough, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  return enough != 0;
}
#endif

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
#if LRMOE_HAS_CUDA_BACKEND
  if (!enough_gpus()) {
    MPI_Finalize();
    return skipped;
  }
#endif
  int failed = 0;
  {
    const Kokkos::ScopeGuard kokkos(argc, argv);
    failed = run(argc, argv);
  }
  MPI_Finalize();
  return failed;
}
