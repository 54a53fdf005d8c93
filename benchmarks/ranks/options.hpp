// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <string>

#include "../support/layer_options.hpp"

namespace bench {

struct ranks_options : options {
  std::int64_t ranks = 8;
  bool one_rank = true;
  bool exchange = false;  // by default only over NCCL

  ranks_options() {
    routings = {"balanced", "zipf1.2"};
    keeps = {1.0, 0.25};
    repetitions = 7;
  }
};

/// Declares every flag of lrmoe_bench_ranks. `over_nccl` says whether ranks with GPUs exchange over NCCL.
inline void declare_options(CLI::App& app, ranks_options& o, bool over_nccl) {
  app.description(
      "Times forward, and forward with backward, of one LRMoE layer spread over ranks, beside the "
      "same\n"
      "layer with all tokens and experts on one rank, in turn. Without mpirun, ranks take turns in "
      "this\n"
      "process, on the host or on one GPU, so the ratio is the cost of the exchange in total work. "
      "Under\n"
      "mpirun every process is a rank, with --backend cuda on a GPU of its own and over NCCL: a "
      "step\n"
      "costs what its slowest rank takes, and the ratio is 1 over the gain of so many ranks over "
      "one.\n"
      "Experts stay on their home ranks; a shared expert is left out.");
  app.set_version_flag("--version", "lrmoe_bench_ranks " LRMOE_VERSION_STRING);
  auto* named = declare_common_options(app, o, {"float", "bf16"}, "tokens T of all ranks together");
  add_count(app, "--ranks", o.ranks, 1, "ranks in this process; under mpirun its processes count");
  app.add_flag("!--no-one-rank", o.one_rank,
               "leave out the layer on one rank, which needs memory for all weights, gradients and "
               "tokens there");
  auto* exchange = app.add_flag("--exchange,!--no-exchange", o.exchange,
                                "also time the exchange alone; on with NCCL unless refused");
  app.add_flag_callback(
         "--quick",
         [&o]() {
           o.be_quick();
           o.ranks = 3;
         },
         "a small shape and two repetitions, to see that everything works; other flags override it")
      ->excludes(named)
      ->trigger_on_parse();
  app.final_callback([&o, exchange, over_nccl]() {
    o.drop_shared_expert();
    if (exchange->count() == 0) o.exchange = over_nccl && o.on_gpu();
  });
}

/// Rules between flags and the number of ranks. Returns what is wrong, or nothing.
inline std::string conflict(const ranks_options& o, std::int64_t ranks) {
  if (const std::string problem = conflict(static_cast<const options&>(o)); !problem.empty())
    return problem;
  if (ranks > o.shape.E)
    return fmt::format("{} ranks are more than --experts {}: every rank must have one", ranks,
                       o.shape.E);
  if (ranks > o.tokens)
    return fmt::format("{} ranks are more than --tokens {}: every rank must have one", ranks,
                       o.tokens);
  return {};
}

}  // namespace bench
