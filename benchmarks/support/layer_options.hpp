// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <lrmoe/experts/gradient_update.hpp>
#include <lrmoe/types.hpp>
#include <lrmoe/version.hpp>

#include "skew.hpp"

namespace bench {

struct named_shape {
  const char* name;
  lrmoe::layer_shape shape;
};
inline constexpr std::int64_t named_tokens = 16384;
inline const std::vector<named_shape> named_shapes{
    {"qwen3-30b-a3b", {.D = 2048, .F = 768, .E = 128, .K = 8}},
    {"glm-4.5-air", {.D = 4096, .F = 1408, .E = 128, .K = 8, .F_shared = 1408}}};

/// What a step does with the gradients of the experts' weights, as flags and results name it.
struct named_update {
  const char* name;
  lrmoe::gradient_update update;

  /// Ends the paths of results. Adding goes without saying.
  std::string path() const {
    return update == lrmoe::gradient_update::add ? "" : fmt::format("/gradients={}", name);
  }
};
inline const std::vector<named_update> named_updates{
    {"add", lrmoe::gradient_update::add}, {"overwrite", lrmoe::gradient_update::overwrite}};

struct options {
  std::string backend = "host";
  std::string shape_name;
  lrmoe::layer_shape shape{.D = 512, .F = 512, .E = 32, .K = 4};
  std::int64_t tokens = 4096;
  std::string type = "float";
  std::vector<std::string> routings{"balanced", "zipf0.6", "zipf1.2"};
  std::vector<double> keeps{1.0, 0.5, 0.25};
  std::vector<std::string> gradients{"add"};
  std::vector<std::string> estimators{"pps"};
  std::vector<std::string> saved{"save"};
  bool products = true;
  bool profile = false;
  bool quick = false;
  int repetitions = 9;
  int warm_ups = -1;  // by backend
  int threads = 0;
  std::string json_file;
  std::string tensor_folder;
  bool dropped_shared_expert = false;

  bool on_gpu() const { return backend == "cuda"; }

  /// A small shape and two repetitions.
  void be_quick() {
    quick = true;
    shape = {.D = 64, .F = 64, .E = 8, .K = 2};
    tokens = 256;
    repetitions = 2;
  }

  /// Leaves the shared expert out; the name of a published model's layer then says so.
  void drop_shared_expert() {
    dropped_shared_expert = !shape_name.empty() && shape.F_shared > 0;
    shape.F_shared = 0;
  }

  /// What --gradients names, in its order.
  std::vector<named_update> updates() const {
    std::vector<named_update> found;
    for (const auto& name : gradients)
      for (const auto& one : named_updates)
        if (name == one.name) found.push_back(one);
    return found;
  }

  /// Warm-ups of a GPU also raise its clock, and let a product that is chosen by measuring decide.
  int warm_ups_or_default() const { return warm_ups >= 0 ? warm_ups : on_gpu() ? 6 : 1; }

  /// Name of shape and type in paths of results.
  std::string path() const {
    std::string text = shape_name;
    if (text.empty()) {
      text = fmt::format("T{}-K{}-E{}-D{}-F{}", tokens, shape.K, shape.E, shape.D, shape.F);
      if (shape.F_shared > 0) text += fmt::format("-S{}", shape.F_shared);
    } else if (tokens != named_tokens) {
      text += fmt::format("-T{}", tokens);
    }
    if (dropped_shared_expert) text += "-S0";
    return type == "float" ? text : text + "-" + type;
  }
};

/// A flag with a count of at least so many.
template <class Count>
CLI::Option* add_count(CLI::App& app, const std::string& flag, Count& value, std::int64_t least,
                       const std::string& text) {
  return app.add_option(flag, value, text)
      ->check(CLI::Range(least, std::int64_t{1} << 31))
      ->type_name("INT");
}

/// Declares the flags that all benchmarks of a layer have on `app`, which then parses into `o`. Returns the
/// one that names a shape.
inline CLI::Option* declare_common_options(CLI::App& app, options& o,
                                           const std::vector<std::string>& types,
                                           const std::string& tokens_text) {
  app.option_defaults()->always_capture_default();
  app.get_formatter()->column_width(38);
  const auto count = [&](const std::string& flag, auto& value, const std::string& text) {
    return add_count(app, flag, value, 1, text);
  };
  app.add_option("--backend", o.backend, "where the layer runs: host, or cuda in a build with CUDA")
      ->check(CLI::IsMember({"host", "cuda"}))
      ->type_name("NAME");
  std::vector<std::string> shape_names;
  for (const auto& one : named_shapes) shape_names.push_back(one.name);
  auto* named = app.add_option_function<std::string>(
                       "--shape",
                       [&o](const std::string& name) {
                         o.shape_name = name;
                         for (const auto& one : named_shapes) {
                           if (name == one.name) o.shape = one.shape;
                         }
                         o.tokens = named_tokens;
                       },
                       "layer of a published model, with 16384 tokens unless --tokens says "
                       "otherwise; instead "
                       "of the flags of its extents")
                    ->check(CLI::IsMember(shape_names))
                    ->type_name("NAME")
                    ->trigger_on_parse();
  count("--width", o.shape.D, "model width D")->excludes(named);
  count("--expert-width", o.shape.F, "expert width F")->excludes(named);
  count("--experts", o.shape.E, "experts E")->excludes(named);
  count("--top-k", o.shape.K, "experts K of a token, at most --experts")->excludes(named);
  count("--tokens", o.tokens, tokens_text);
  app.add_option("--type", o.type,
                 "storage of activations and weights; on the host products of bf16 are "
                 "computed in float")
      ->check(CLI::IsMember(types))
      ->type_name("NAME");
  app.add_option("--routing", o.routings,
                 "how tokens spread over experts, one or more of balanced, zipf<exponent>, one_hot "
                 "(all tokens to the same K experts)")
      ->delimiter(',')
      ->check([](const std::string& name) {
        try {
          if (name != "one_hot") (void)skew{name}.exponent();
          return std::string();
        } catch (const std::invalid_argument& problem) {
          return std::string(problem.what());
        }
      })
      ->type_name("NAME...");
  app.add_option("--keep", o.keeps,
                 "shares of pairs kept in backward, in (0, 1]; 1 is the exact layer")
      ->delimiter(',')
      ->check([](const std::string& text) {
        double value = 0;
        const bool valid = CLI::detail::lexical_cast(text, value) && value > 0.0 && value <= 1.0;
        return valid ? std::string()
                     : "keep = " + text + " is outside (0, 1]: use 1 to keep every pair";
      })
      ->type_name("REAL...");
  app.add_option("--gradients", o.gradients,
                 "what a step does with weight gradients, one or both of add (to those of the step "
                 "before) and overwrite (as the first micro-batch of a step may)")
      ->delimiter(',')
      ->check(CLI::IsMember({"add", "overwrite"}))
      ->type_name("NAME...");
  count("--repetitions", o.repetitions, "measured repetitions of every case");
  app.add_option("--warm-ups", o.warm_ups,
                 "repetitions before them that do not count; -1: 1 on the host, 6 on a GPU")
      ->check(CLI::Range(-1, 1 << 30))
      ->type_name("INT");
  app.add_option("--threads", o.threads, "threads; 0: OMP_NUM_THREADS, or all cores")
      ->check(CLI::Range(0, 4096))
      ->type_name("INT");
  app.add_option("--json", o.json_file, "also write the results to this file")->type_name("FILE");
  return named;
}

/// Declares every flag of lrmoe_bench_layer.
inline void declare_options(CLI::App& app, options& o) {
  app.description(
      "Times one LRMoE layer, on the host or on a GPU: forward, and forward with backward, exact "
      "and reduced, "
      "for\n"
      "balanced and skewed routing; its five expert operations alone; and one plain dense product "
      "as\n"
      "the baseline. All cases are interleaved, so ratios are of one run. Repetitions start with "
      "cold\n"
      "caches. Columns: median time and its range, rate of the products, that rate over the dense\n"
      "product's, time over exact's, time over balanced routing's, and the share of scoring, "
      "drawing\n"
      "and packing in the layer's time. On a GPU also the time of the layer's products alone, and "
      "the\n"
      "share of everything else.");
  app.set_version_flag("--version", "lrmoe_bench_layer " LRMOE_VERSION_STRING);
  auto* named = declare_common_options(app, o, {"float", "bf16", "double"}, "tokens T of a call");
  add_count(app, "--shared-expert-width", o.shape.F_shared, 0,
            "width of the shared expert; 0: none")
      ->excludes(named);
  app.add_flag_callback(
      "--no-shared-expert", [&o]() { o.drop_shared_expert(); },
      "leave out the shared expert of --shape");
  app.add_option("--estimator", o.estimators,
                 "who chooses the pairs kept: pps, top, top_plus_sampled, uniform")
      ->delimiter(',')
      ->check(CLI::IsMember({"pps", "top", "top_plus_sampled", "uniform"}))
      ->type_name("NAME...");
  app.add_option("--save", o.saved,
                 "what forward keeps for backward: save, and beside it recompute and proxy (pps)")
      ->delimiter(',')
      ->check(CLI::IsMember({"save", "recompute", "proxy"}))
      ->type_name("NAME...");
  app.add_flag("!--no-products", o.products,
               "leave out the expert operations alone, and on a GPU the products alone");
  app.add_flag(
      "--profile", o.profile,
      "also print where each layer's time goes, by Kokkos label; on a GPU in steps of their own, "
      "that wait for every kernel");
  app.add_option("--write-tensors", o.tensor_folder,
                 "measure nothing: write inputs and results of one exact step with the first "
                 "--routing to this folder, as NumPy files (bf16 as its bits)")
      ->type_name("DIR");
  app.add_flag_callback(
         "--quick",
         [&o]() {
           o.be_quick();
           o.routings = {"balanced", "zipf1.2"};
         },
         "a small shape and two repetitions, to see that everything works; other flags override it")
      ->excludes(named)
      ->trigger_on_parse();
}

/// Rules between flags. Returns what is wrong, or nothing.
inline std::string conflict(const options& o) {
  if (o.shape.K > o.shape.E) {
    return fmt::format(
        "--top-k {} is more than --experts {}: a token cannot choose an expert twice", o.shape.K,
        o.shape.E);
  }
  if (o.tokens * o.shape.K > std::numeric_limits<lrmoe::index_type>::max()) {
    return fmt::format("--tokens {} times --top-k {} exceed 2^31 - 1 pairs in one call", o.tokens,
                       o.shape.K);
  }
  return {};
}

}  // namespace bench
