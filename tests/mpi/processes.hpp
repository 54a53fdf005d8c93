// What tests that run on several processes share.
#pragma once

#include <lrmoe/exchange/mpi.hpp>

#include "random.hpp"

namespace processes {

/// A fresh seed, the same on all processes.
inline std::uint64_t fresh_seed() {
  std::uint64_t seed = fixture::fresh_seed();
  MPI_Bcast(&seed, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
  return seed;
}

inline int count() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

}  // namespace processes
