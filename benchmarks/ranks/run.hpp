// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <string>

#include "options.hpp"

namespace bench {

/// Measures, prints and writes what the options ask for: with `processes` this process is a rank of
/// mpirun's, else ranks take turns in it.
void run_ranks_on_host(const ranks_options& chosen, bool processes, const std::string& command);

/// The same on GPUs. Part of a program only with CUDA; with `processes` only where NCCL and MPI are.
void run_ranks_on_gpu(const ranks_options& chosen, bool processes, const std::string& command);

}  // namespace bench
