// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

#if LRMOE_TRAIN_HAS_MPI
#include <mpi.h>
#endif

namespace train {

/// The processes that mpirun started together, or this one alone. MPI is touched only under mpirun.
class processes {
 public:
  processes(int& argc, char**& argv) {
#if LRMOE_TRAIN_HAS_MPI
    if (!launched()) return;
    int level = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
    started_ = true;
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
#else
    (void)argc;
    (void)argv;
#endif
  }
  processes(const processes&) = delete;
  processes& operator=(const processes&) = delete;
  ~processes() {
#if LRMOE_TRAIN_HAS_MPI
    if (started_) MPI_Finalize();
#endif
  }

  std::int64_t count() const {
    return size_;
  }
  std::string name() const {
    return size_ > 1 ? "rank " + std::to_string(rank_) + ": " : "";
  }

  /// End the other processes as well: they may be waiting for this one.
  void end_all() const {
#if LRMOE_TRAIN_HAS_MPI
    if (started_ && size_ > 1) MPI_Abort(MPI_COMM_WORLD, 1);
#endif
  }

  static bool several() {
#if LRMOE_TRAIN_HAS_MPI
    int started = 0, size = 1;
    MPI_Initialized(&started);
    if (started != 0) MPI_Comm_size(MPI_COMM_WORLD, &size);
    return size > 1;
#else
    return false;
#endif
  }

 private:
  /// What the launchers of Open MPI, MPICH and Slurm tell their processes.
  static bool launched() {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"})
      if (std::getenv(name) != nullptr) return true;
    return false;
  }

  bool started_ = false;
  int size_ = 1;
  int rank_ = 0;
};

}  // namespace train
