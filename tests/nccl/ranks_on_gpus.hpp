// What tests share that run on processes of mpirun with a GPU each.
#pragma once

#include <chrono>
#include <string>

#include <lrmoe/cuda/exchange/nccl.hpp>

#include "../mpi/processes.hpp"

namespace processes {

using ranks_type = lrmoe::cuda::nccl_communicator<lrmoe::mpi::communicator>;

inline constexpr double patient_s = 60.0;

/// All processes, over NCCL on the GPU that Kokkos gave each, small host values over MPI. Collective.
inline ranks_type on_gpus(double timeout_s = patient_s, double host_timeout_s = patient_s) {
  return ranks_type(lrmoe::mpi::communicator(MPI_COMM_WORLD, host_timeout_s), Kokkos::Cuda(),
                    timeout_s);
}

/// Message of the rank_error that the call throws; empty if it throws none.
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const lrmoe::rank_error& failure) {
    return failure.what();
  }
  return {};
}

template <class Action>
double seconds_of(const Action& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace processes
