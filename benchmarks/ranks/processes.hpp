// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>

#if LRMOE_BENCH_HAS_MPI
#include <mpi.h>
#endif

namespace bench {

/// The processes that mpirun started together, or this one alone. MPI is touched only under mpirun, and has
/// ended when this object is gone.
class processes {
 public:
  processes([[maybe_unused]] int& argc, [[maybe_unused]] char**& argv) {
#if LRMOE_BENCH_HAS_MPI
    if (!launched()) return;
    int level = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
    started_ = true;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Comm node = MPI_COMM_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &rank_on_node_);
    MPI_Comm_size(node, &size_of_node_);
    MPI_Comm_free(&node);
#endif
  }
  processes(const processes&) = delete;
  processes& operator=(const processes&) = delete;
  ~processes() {
#if LRMOE_BENCH_HAS_MPI
    if (started_) MPI_Finalize();
#endif
  }

  /// Whether mpirun started this program: what the launchers of Open MPI and of MPICH tell their processes.
  static bool launched() {
    return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMI_SIZE") != nullptr;
  }

  bool started() const {
    return started_;
  }
  int rank() const {
    return rank_;
  }
  int size() const {
    return size_;
  }
  int rank_on_node() const {
    return rank_on_node_;
  }
  int size_of_node() const {
    return size_of_node_;
  }

  /// Whether a process has a reason to refuse the run; the lowest of them prints its reason. Collective.
  bool refused(const std::string& reason) const {
    int who = reason.empty() ? std::numeric_limits<int>::max() : rank_;
#if LRMOE_BENCH_HAS_MPI
    if (started_) MPI_Allreduce(MPI_IN_PLACE, &who, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
#endif
    if (who == rank_) {
      std::fprintf(stderr, "lrmoe_bench_ranks: %s\nRun with --help for more information.\n",
                   reason.c_str());
    }
    return who != std::numeric_limits<int>::max();
  }

  /// Ends the other processes as well: they may be waiting for this one.
  void end_all() const {
#if LRMOE_BENCH_HAS_MPI
    if (started_) MPI_Abort(MPI_COMM_WORLD, 1);
#endif
  }

 private:
  bool started_ = false;
  int rank_ = 0;
  int size_ = 1;
  int rank_on_node_ = 0;
  int size_of_node_ = 1;
};

}  // namespace bench
