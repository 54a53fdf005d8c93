// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <lrmoe/placement/all_planners.hpp>
#include <lrmoe/version.hpp>

#include "options.hpp"

namespace train {

/// The flags of lrmoe_train: type, meaning and default of each, in the order of --help.
class command_line {
 public:
  explicit command_line(options& o) : app_("lrmoe_train") {
    app_.description(
        "Trains a decoder-only byte-level language model whose mixture-of-experts blocks are the\n"
        "LRMoE library, and reports the loss against the time spent in the MoE layers.\n");
    app_.option_defaults()->always_capture_default();
    app_.get_formatter()->column_width(34);

    text("--data", o.data, "FILE",
         "text files to learn from, one after the other; every 20th block of context+1 bytes is "
         "kept for validation")
        ->required()
        ->default_str("");
    text("--output", o.output, "DIR",
         "folder for log and checkpoint, made if missing; required but for --plan-only");
    choice(
        "--backend", o.backend, backend_names,
        "where the MoE layers compute: routing, plan, selection, experts, exchange. host: on this "
        "processor. cuda: on an NVIDIA GPU, in a program built with CUDA. Everything else stays on "
        "the host, optimizers included, and all that a layer reads and writes is copied at every "
        "call: that shows that both train alike and is not meant to be fast. --memory-budget is "
        "then of GPU memory.");
    choice("--method", o.method, method_names,
           "exact: every pair takes part in backward. lrmoe: backward of the share --keep of the "
           "pairs, chosen by --estimator. Controls of equal MoE-layer time, all exact: "
           "smaller-batch: (1 + 2 keep)/3 of --batch, rounded, and as many steps; fewer-steps: "
           "(1 + 2 keep)/3 of --steps and --warmup, rounded, on a full schedule of its own. "
           "frozen-experts: exact, but after the warm-up the experts' weights stay fixed and their "
           "gradients are not computed (dX still is).");
    choice("--estimator", o.estimator, estimator_names,
           "how lrmoe chooses pairs. pps: by chance, with probability proportional to the root of "
           "the score, unbiased. top: the highest scores, the published rule, biased. uniform: by "
           "chance with equal probability, unbiased. uniform-unscaled: the same without weights "
           "1/probability, biased. pps-shuffled: pps in random instead of token order. "
           "top-plus-sampled: half the quota the highest scores, half a sample of the rest, "
           "unbiased.");
    choice(
        "--controller", o.controller, controller_names,
        "how many pairs lrmoe keeps. fixed-fraction: --keep of every expert's. shared-threshold: "
        "--keep of each layer's, spread over its experts so that noise is least. error-bounded: "
        "the "
        "fewest with V/S at most --epsilon. time-optimal: what reaches a loss soonest by its own "
        "forecast. annealed: from all to --keep over the first half of the run. memory-network: "
        "all "
        "that --memory-budget and --step-budget allow, which also cap every other rule.");
    real("--keep", o.keep, 0.0, 1.0,
         "share of each expert's pairs kept for backward, in (0, 1]; for smaller-batch and "
         "fewer-steps the share whose time they match");
    real("--epsilon", o.epsilon, 0.0, 1e6,
         "noise that error-bounded may add, relative to the batch's own");
    real(
        "--noise-weight", o.noise_weight, 0.0, 1.0,
        "share of gradient noise in the steps needed that time-optimal assumes; 1: the worst case");
    size("--memory-budget", o.memory_budget_bytes,
         "most memory of the MoE layers with their weights, gradients and optimizer state, for "
         "example 2GiB or 500MB; 0: no limit");
    real("--step-budget", o.step_budget_ms, 0.0, 1e9,
         "most predicted time of a layer's call, in milliseconds; 0: no limit");
    size("--link", o.link_bytes_per_s,
         "bandwidth between ranks in bytes a second, for example 1250MB, for predictions; 0: that "
         "of --calibration");
    text("--calibration", o.calibration, "FILE",
         "rates of this machine as lrmoe_calibrate writes them; default round numbers");
    choice("--save", o.saved, saved_names,
           "what MoE layers keep from forward to backward. save: g and u of every pair. recompute: "
           "nothing, kept pairs are computed again. proxy: kept pairs alone, chosen in forward.");
    real("--dx-share", o.dx_share, 0.0, 1.0, "share of the kept pairs that enter dX");
    real("--dw-share", o.dw_share, 0.0, 1.0, "share of the kept pairs that enter dW");
    choice("--router-gradient", o.router_gradient, router_gradient_names,
           "dropped pairs' part in the router's gradient. kept: none. exact: by one more product. "
           "sketch: by --sketch-size random directions.");
    count("--sketch-size", o.sketch_size, 1, "random directions of the sketch, at most 1024");
    choice("--scorer", o.scorer, scorer_names,
           "what ranks pairs. lrm: squared norm of the pair's gradient of W_down. routing_weight, "
           "gradient_norm, random: for comparison.");
    app_.add_option("--seed", o.seed,
                    wrapped("seed of initial weights, order of data and random choices; the same "
                            "for methods that are compared"))
        ->type_name("INT");

    count("--steps", o.steps, 1, "training steps");
    count("--batch", o.batch, 1, "sequences a step");
    count("--context", o.context, 2, "bytes of a sequence");
    count("--layers", o.layers, 1, "blocks of attention and experts");
    count("--width", o.width, 2, "model width D, a multiple of 2 heads");
    count("--expert-width", o.expert_width, 1, "expert width F");
    count("--experts", o.experts, 1, "experts E of a block");
    count("--top-k", o.top_k, 1, "experts K that a byte is sent to, at most --experts");
    count("--heads", o.heads, 1, "attention heads");

    real("--learning-rate", o.learning_rate, 0.0, 10.0, "peak learning rate of AdamW");
    count("--warmup", o.warmup, -1,
          "steps of linear rise to the peak, half a cosine down to a tenth of it follows; -1: a "
          "tenth of --steps");
    real("--weight-decay", o.weight_decay, 0.0, 10.0, "decoupled weight decay of all matrices");
    real("--clip", o.clip, 0.0, 1e30,
         "largest norm of the gradient, longer ones are scaled; 0: any");
    real(
        "--balance", o.balance, 0.0, 1e3,
        "coefficient of each block's load-balancing loss E sum_e f_e p_e (f share of pairs, p mean "
        "router probability)");
    real("--target-loss", o.target_loss, 0.0, 100.0,
         "report the MoE-layer time at which the smoothed validation loss first is at or below "
         "this; 0: none");

    count("--validate-every", o.validate_every, 1, "steps from one validation to the next");
    count("--validation-sequences", o.validation_sequences, 1,
          "sequences of a validation, spread evenly over the validation part");
    count("--checkpoint-every", o.checkpoint_every, 0,
          "steps between checkpoints; 0: only at the end and on Ctrl-C");
    app_.add_flag("--resume", o.resume, "continue from the checkpoint in --output");
    app_.add_flag("--overwrite", o.overwrite, "replace the run that --output holds already");
    count("--threads", o.threads, 0, "threads; 0: OMP_NUM_THREADS, or all cores");
    count("--ranks", o.ranks, 1,
          "ranks that take turns in this process, each with its share of every batch and of the "
          "experts; under mpirun every process is one rank, and this is not needed");
    app_.add_option("--planner", o.planner,
                    wrapped("which rank holds which experts: " + planner_names()))
        ->check([](const std::string& name) {
          try {
            (void)lrmoe::planner_by_name(name);
            return std::string();
          } catch (const lrmoe::argument_error& problem) {
            return std::string(problem.what());
          }
        })
        ->type_name("NAME");
    count("--slots", o.slots, 0,
          "experts that a rank can hold; 0: as many as it owns, and one more unless --planner is "
          "static");
    app_.add_flag("--sharded-optimizer", o.sharded_state,
                  wrapped("every rank keeps the optimizer state of a part of every expert, instead "
                          "of all of the experts that it owns"));
    app_.add_flag("!--no-rebalance", o.rebalance,
                  "compute backward of every pair where its forward ran");
    text("--record-routing", o.record_routing, "FILE",
         "write how many pairs each rank had for each expert in the last steps, for "
         "lrmoe_bench_balance; default none");
    count("--record-steps", o.record_steps, 1, "steps that --record-routing records");
    real("--timeout", o.timeout_s, 0.001, 1e6,
         "seconds that a process waits for another one before it gives up");
    text("--json-log", o.json_log, "FILE", "log, one JSON object a line; default OUTPUT/log.jsonl");
    text("--json", o.json, "FILE", "results in the format that all tools share; default none");
    app_.add_flag("--plan-only", o.plan_only,
                  "print the plan of the first step as a table, and train nothing");
    app_.add_flag("--quiet", o.quiet, "print errors only");
    app_.set_version_flag("--version", "lrmoe_train " LRMOE_VERSION_STRING, "print the version");
    app_.set_help_flag("--help", "print this text");
  }

  /// Parses into the options. Returns -1 to go on, else the exit code: 0 after --help and --version,
  /// 2 after a message about bad usage. Several processes are that many ranks.
  int parse(int argc, char** argv, options& o, std::int64_t processes = 1) {
    try {
      app_.parse(argc, argv);
      if (processes > 1) {
        if (o.ranks != 1 && o.ranks != processes)
          throw CLI::ValidationError(fmt::format(
              "--ranks {} under mpirun with {} processes: leave it out, every process is a rank",
              o.ranks, processes));
        o.ranks = processes;
      }
      const std::string problem = conflict(o);
      if (!problem.empty()) throw CLI::ValidationError(problem);
    } catch (const CLI::ParseError& outcome) {
      return app_.exit(outcome) == 0 ? 0 : 2;
    }
    return -1;
  }

 private:
  /// Lines of help; the formatter indents what follows a line break.
  static std::string wrapped(const std::string& help) {
    std::string lines;
    std::size_t column = 0;
    std::istringstream words(help);
    for (std::string word; words >> word; column += word.size() + 1) {
      if (column + word.size() > 66) {
        lines += '\n';
        column = 0;
      }
      lines += (column > 0 ? " " : "") + word;
    }
    return lines;
  }

  static std::string planner_names() {
    std::string names;
    for (const auto& planner : lrmoe::all_planners())
      names += (names.empty() ? "" : ", ") + std::string(planner.attributes().name);
    return names;
  }

  template <class Value>
  static CLI::Validator within(Value least, Value most) {
    return CLI::Validator(
        [=](const std::string& given) {
          Value value{};
          const bool valid =
              CLI::detail::lexical_cast(given, value) && value >= least && value <= most;
          return valid ? std::string()
                       : fmt::format("{} is not a number in [{}, {}]", given, least, most);
        },
        "");
  }

  template <class Value>
  CLI::Option* text(const std::string& flag, Value& value, const std::string& type,
                    const std::string& help) {
    return app_.add_option(flag, value, wrapped(help))->type_name(type);
  }

  template <class Choice>
  void choice(const std::string& flag, Choice& value, const names<Choice>& all,
              const std::string& help) {
    std::vector<std::string> allowed;
    for (const auto& [name, meaning] : all) allowed.push_back(name);
    app_.add_option_function<std::string>(
            flag,
            [&value, &all](const std::string& given) {
              for (const auto& [name, meaning] : all)
                if (name == given) value = meaning;
            },
            wrapped(help))
        ->check(CLI::IsMember(allowed).description(""))
        ->default_str(name_of(all, value))
        ->type_name("NAME");
  }

  void count(const std::string& flag, std::int64_t& value, std::int64_t least,
             const std::string& help) {
    app_.add_option(flag, value, wrapped(help))
        ->check(within(least, std::int64_t{1} << 40))
        ->type_name("INT");
  }

  void size(const std::string& flag, std::uint64_t& value, const std::string& help) {
    app_.add_option(flag, value, wrapped(help))
        ->transform(CLI::AsSizeValue(true))
        // Comes before the one above, which would take a negative number for a huge one.
        ->transform(CLI::Validator(
            [](std::string& given) {
              return given.starts_with('-') ? given + " is negative" : std::string();
            },
            ""))
        ->type_name("BYTES");
  }

  void real(const std::string& flag, double& value, double least, double most,
            const std::string& help) {
    app_.add_option(flag, value, wrapped(help))->check(within(least, most))->type_name("REAL");
  }

  CLI::App app_;
};

}  // namespace train
