// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// lrmoe_train: trains a small language model on text, its experts with the LRMoE library.
// Exit code: 0 complete, 1 error, 2 bad usage, 130 stopped by Ctrl-C after writing a checkpoint.

#include <cstdio>
#include <exception>
#include <optional>

#include "command_line.hpp"
#include "result_json.hpp"
#include "stop_signal.hpp"
#include "trainer.hpp"

namespace {

int run(const train::options& options, int argc, char** argv) {
  Kokkos::InitializationSettings settings;
  settings.set_disable_warnings(true);
  if (options.threads > 0) settings.set_num_threads(static_cast<int>(options.threads));
  const Kokkos::ScopeGuard kokkos(settings);
  train::use_one_blas_thread();
  train::stop_signal::install();
  std::optional<bench::result_file> results;
  if (!options.json.empty()) results.emplace(options.json);
  train::trainer trainer(options);
  if (options.plan_only) {
    trainer.print_plan();
    return 0;
  }
  if (!trainer.run()) return 130;
  if (results)
    results->write(train::result_document(options, trainer.summary(),
                                          bench::command_line(argc, argv),
                                          bench::source_commit(LRMOE_SOURCE_DIR)));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  train::options options;
  train::command_line flags(options);
  if (const int code = flags.parse(argc, argv, options); code >= 0) return code;
  try {
    return run(options, argc, argv);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "lrmoe_train: %s\n", problem.what());
    return 1;
  }
}
