// Runs Catch2 on every process of an mpirun. The first one prints, for all of them, the totals that
// scripts/test adds up; the output of another one is shown when something failed there.
#define CATCH_CONFIG_RUNNER
#include <algorithm>
#include <array>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <vector>

#include <Kokkos_Core.hpp>
#include <mpi.h>

#include "catch.hpp"

namespace {

#if LRMOE_CATCH2_V3
using listener_base = Catch::EventListenerBase;
#else
using listener_base = Catch::TestEventListenerBase;
#endif

Catch::Totals totals;
std::vector<unsigned long long> case_failed;  // in the order of running, which all processes share

class totals_listener : public listener_base {
 public:
  using listener_base::listener_base;
  void testCaseEnded(const Catch::TestCaseStats& statistics) override {
    case_failed.push_back(statistics.totals.testCases.failed);
  }
  void testRunEnded(const Catch::TestRunStats& statistics) override { totals = statistics.totals; }
};

CATCH_REGISTER_LISTENER(totals_listener)

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
  auto cases = static_cast<int>(case_failed.size());
  MPI_Bcast(&cases, 1, MPI_INT, 0, MPI_COMM_WORLD);
  case_failed.resize(static_cast<std::size_t>(cases));
  std::array<unsigned long long, 2> assertions{totals.assertions.passed, totals.assertions.failed};
  MPI_Allreduce(MPI_IN_PLACE, case_failed.data(), cases, MPI_UNSIGNED_LONG_LONG, MPI_MAX,
                MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, assertions.data(), 2, MPI_UNSIGNED_LONG_LONG, MPI_SUM,
                MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  const auto bad = static_cast<unsigned long long>(
      std::count_if(case_failed.begin(), case_failed.end(), [](auto n) { return n > 0; }));
  if (rank == 0)
    std::printf("test totals: cases %llu passed %llu failed, assertions %llu passed %llu failed\n",
                case_failed.size() - bad, bad, assertions[0], assertions[1]);
  return assertions[0] + assertions[1] == 0 ? 1 : failed;
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  int failed = 0;
  {
    const Kokkos::ScopeGuard kokkos(argc, argv);
    failed = run(argc, argv);
  }
  MPI_Finalize();
  return failed;
}
