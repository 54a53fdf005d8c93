// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// lrmoe_train: trains a small language model on text, its experts with the LRMoE library, on one rank,
// several in this process, or the processes of mpirun.
// Exit code: 0 complete, 1 error, 2 bad usage, 130 stopped by Ctrl-C after writing a checkpoint.

#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#if LRMOE_HAS_CUDA_BACKEND
#include <lrmoe/cuda/device.hpp>
#endif

#include "command_line.hpp"
#include "processes.hpp"
#include "result_json.hpp"
#include "stop_signal.hpp"
#include "trainer.hpp"

namespace {

/// The program of one rank. Returns its exit code.
int train_on(const train::options& options, train::communicator ranks, const std::string& command) {
  std::optional<bench::result_file> results;
  lrmoe::agree(ranks, [&] {
    if (!options.json.empty() && ranks.rank() == 0) results.emplace(options.json);
  });
  train::trainer trainer(options, std::move(ranks));
  if (options.plan_only) {
    trainer.print_plan();
    return 0;
  }
  if (!trainer.run()) return 130;
  const train::json summary = trainer.summary();
  if (results)
    results->write(
        train::result_document(options, summary, command, bench::source_commit(LRMOE_SOURCE_DIR)));
  return 0;
}

/// A Kokkos with CUDA starts the GPU whatever the backend, and ends the program where it finds none that
/// it can use: this throws before that.
void require_gpu_of_kokkos([[maybe_unused]] const train::options& options) {
#if LRMOE_HAS_CUDA_BACKEND
  try {
    lrmoe::cuda::require_device();
  } catch (const std::exception& problem) {
    if (options.backend == train::backend_choice::cuda) throw;
    throw train::error(
        fmt::format("{}. A program that was built with CUDA needs a GPU for --backend host as "
                    "well; one built with the preset host-release does not",
                    problem.what()));
  }
#endif
}

int run(const train::options& options, const std::string& command) {
  require_gpu_of_kokkos(options);
  Kokkos::InitializationSettings settings;
  settings.set_disable_warnings(true);
  if (options.threads > 0) settings.set_num_threads(static_cast<int>(options.threads));
  const Kokkos::ScopeGuard kokkos(settings);
  train::use_one_blas_thread();
  train::stop_signal::install();
#if LRMOE_TRAIN_HAS_MPI
  if (train::processes::several())
    return train_on(options, lrmoe::mpi::communicator(MPI_COMM_WORLD, options.timeout_s), command);
#endif
  if (options.ranks == 1) return train_on(options, lrmoe::single_rank{}, command);
  int code = 0;
  lrmoe::logical::world world(static_cast<int>(options.ranks));
  world.run([&](lrmoe::logical::communicator& joined) {
    train::communicator ranks(std::move(joined));
    const bool first = ranks.rank() == 0;
    const int result = train_on(options, std::move(ranks), command);
    if (first) code = result;
  });
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  const train::processes processes(argc, argv);
  train::options options;
  train::command_line flags(options);
  if (const int code = flags.parse(argc, argv, options, processes.count()); code >= 0) return code;
  try {
    return run(options, bench::command_line(argc, argv));
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "lrmoe_train: %s%s\n", processes.name().c_str(), problem.what());
    processes.end_all();
    return 1;
  }
}
