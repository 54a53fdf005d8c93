// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// lrmoe_compare: runs the layer of every backend and element type on the same inputs and judges every
// result by a reference in double precision and by bounds that follow from the arithmetic.
// Exit code: 0 everything holds, 1 a check failed or an error, 2 bad usage.

#include <algorithm>
#include <optional>
#include <regex>
#include <tuple>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <lrmoe/version.hpp>

#include "compare/candidates.hpp"
#include "compare/load.hpp"
#include "compare/report.hpp"
#include "support/harness.hpp"
#include "support/results.hpp"

namespace {

using namespace bench::compare;

struct options {
  bool quick = false, large = false, list = false, brief = false, strict = false;
  std::vector<std::int64_t> ranks{1, 2, 3, 8};
  std::vector<std::string> types;
#if LRMOE_HAS_CUDA_BACKEND
  std::vector<std::string> backends{"host", "cuda"};
#else
  std::vector<std::string> backends{"host"};
#endif
  std::string cases, json_file, load_path, fault, router = "softmax";
  std::uint64_t seed = 1;
  std::int64_t top_k = 0;
  lrmoe::index_type groups = 0, groups_kept = 0;
  double scaling = 1.0;
  int threads = 0;
};

/// Cases of the loaded tensors: every rule that keeps pairs.
std::vector<compare_case> loaded_cases(const options& o, const tensor_source& from) {
  compare_case base = from.describe();
  const std::map<std::string, router_kind> routers{{"softmax", router_kind::softmax},
                                                   {"softmax_raw", router_kind::softmax_raw},
                                                   {"sigmoid", router_kind::sigmoid}};
  if (base.router != router_kind::given) {
    base.router = routers.at(o.router);
    base.shape.K = o.top_k;
    lrmoe::require(o.top_k >= 1,
                   "--load: logits do not say how many experts a token has: pass --top-k");
  }
  base.own_groups = std::max<lrmoe::index_type>(o.groups, 1);
  base.own_groups_kept = o.groups_kept > 0 ? o.groups_kept : base.own_groups;
  base.scaling = o.scaling;
  base.shape.validate();
  std::vector<compare_case> cases;
  for (const auto& [estimator, keep] : bench::compare::detail::keepings) {
    auto one = base;
    one.estimator = estimator, one.keep = keep;
    cases.push_back(one);
  }
  return cases;
}

std::vector<compare_case> chosen_cases(const options& o, const tensor_source* loaded) {
  std::vector<compare_case> all = loaded != nullptr ? loaded_cases(o, *loaded)
                                  : o.large         ? large_cases()
                                  : o.quick         ? quick_cases()
                                                    : default_cases(o.ranks);
  const std::regex pattern(o.cases.empty() ? ".*" : o.cases);
  std::vector<compare_case> chosen;
  std::copy_if(all.begin(), all.end(), std::back_inserter(chosen),
               [&](const compare_case& one) { return std::regex_search(one.name(), pattern); });
  return chosen;
}

template <class Element>
std::vector<std::unique_ptr<candidate<Element>>> candidates_of(const options& o) {
  const auto chosen = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  std::vector<std::unique_ptr<candidate<Element>>> all;
  if (!chosen(o.types, element_name<Element>())) return all;
  if (chosen(o.backends, "host")) all.push_back(host_candidate<Element>());
#if LRMOE_HAS_CUDA_BACKEND
  if (chosen(o.backends, "cuda")) all.push_back(cuda_candidate<Element>());
#endif
  return all;
}

template <class Element>
void run_type(const compare_case& one, const options& o, const tensor_source* loaded, report& to) {
  const auto candidates = candidates_of<Element>(o);
  if (candidates.empty()) return;
  const auto inputs = loaded != nullptr ? loaded->inputs<Element>(one, o.seed)
                                        : random_inputs<Element>(one, o.seed);
  for (const auto& outcome : evaluate(inputs, candidates, o.fault)) to.add(outcome);
}

int run(const options& o, const std::string& command) {
  std::optional<tensor_source> loaded;
  if (!o.load_path.empty()) loaded.emplace(o.load_path);
  const tensor_source* const source = loaded ? &*loaded : nullptr;
  const auto cases = chosen_cases(o, source);
  if (cases.empty()) {
    std::fprintf(stderr, "lrmoe_compare: no case matches --case '%s': --list shows their names\n",
                 o.cases.c_str());
    return 2;
  }
  if (o.list) {
    for (const auto& one : cases) fmt::print("{}\n", one.name());
    return 0;
  }
  std::optional<bench::result_file> file;
  if (!o.json_file.empty()) file.emplace(o.json_file);
  const bench::stopwatch time;
  report to(o.brief, o.strict);
  for (const auto& one : cases) {
    run_type<double>(one, o, source, to);
    run_type<float>(one, o, source, to);
    run_type<lrmoe::bfloat16>(one, o, source, to);
  }
  to.finish(time.seconds());
  if (!o.fault.empty() && !to.injected()) {
    fmt::print("--inject {}: no case has anything that this fault could damage\n", o.fault);
    return 2;
  }
  if (file) {
    auto machine = bench::host_machine();
#if LRMOE_HAS_CUDA_BACKEND
    std::tie(machine["gpu"], machine["driver"]) = cuda_device();
#endif
    file->write(to.results().document("lrmoe_compare", command,
                                      bench::source_commit(LRMOE_SOURCE_DIR), machine));
  }
  return to.passed() ? 0 : 1;
}

void declare_options(CLI::App& app, options& o) {
  app.description(
      "Runs the layer of every backend and element type on identical inputs and compares each "
      "result,\n"
      "element by element, with a reference in double precision. What an element may be off by is "
      "not\n"
      "tuned: it follows from the formats and the data (docs/compare.md). Also compared, bit by "
      "bit:\n"
      "kept sets from equal scores, plans, and two runs of every call.");
  app.set_version_flag("--version", "lrmoe_compare " LRMOE_VERSION_STRING);
  app.option_defaults()->always_capture_default();
  app.get_formatter()->column_width(34);
  auto* quick = app.add_flag("--quick", o.quick, "a few small cases, seconds on two cores");
  auto* large = app.add_flag("--large", o.large, "layers of the published models at 1,024 tokens")
                    ->excludes(quick);
  app.add_flag("--list", o.list, "print the names of the chosen cases and stop");
  app.add_option("--case", o.cases, "only cases whose name this regular expression finds")
      ->check([](const std::string& text) {
        try {
          std::regex pattern(text);
          return std::string();
        } catch (const std::regex_error&) {
          return "'" + text + "' is no regular expression";
        }
      })
      ->type_name("REGEX");
  app.add_option("--backend", o.backends, "backends that are compared, of those built")
      ->delimiter(',')
      ->check(CLI::IsMember(o.backends))
      ->type_name("NAME...");
  app.add_option("--type", o.types,
                 "element types: float, bf16, double; default all, --large without double")
      ->delimiter(',')
      ->check(CLI::IsMember({"float", "bf16", "double"}))
      ->type_name("NAME...");
  app.add_option("--ranks", o.ranks, "numbers of logical ranks of the cases with several")
      ->delimiter(',')
      ->check(CLI::Range(1, 64))
      ->type_name("INT...");
  app.add_option("--seed", o.seed, "of inputs and draws")->type_name("INT");
  app.add_option("--threads", o.threads, "host threads; 0: OMP_NUM_THREADS, or all cores")
      ->check(CLI::Range(0, 4096))
      ->type_name("INT");
  app.add_flag("--brief", o.brief, "one line for every comparison that holds");
  app.add_flag("--strict", o.strict,
               "fail also where errors exceed what rounding is likely to explain");
  app.add_option("--json", o.json_file, "also write the results to this file")->type_name("FILE");
  app.add_option(
         "--load", o.load_path,
         "compare on these tensors: a .safetensors file, or a folder of .npy files, with x, "
         "gate_up, down and logits, or experts and weights (docs/compare.md)")
      ->check(CLI::ExistingPath)
      ->excludes(quick)
      ->excludes(large)
      ->type_name("PATH");
  app.add_option("--router", o.router, "of loaded logits")
      ->check(CLI::IsMember({"softmax", "softmax_raw", "sigmoid"}))
      ->type_name("NAME");
  app.add_option("--top-k", o.top_k, "experts of a token of loaded logits")
      ->check(CLI::Range(0, 1 << 20))
      ->type_name("INT");
  app.add_option("--groups", o.groups, "groups of experts, for loaded logits and --router sigmoid")
      ->check(CLI::Range(0, 1 << 20))
      ->type_name("INT");
  app.add_option("--groups-kept", o.groups_kept, "groups that a token may use")
      ->check(CLI::Range(0, 1 << 20))
      ->type_name("INT");
  app.add_option("--scaling", o.scaling, "of weights, for loaded logits and --router sigmoid")
      ->type_name("REAL");
  app.add_option(
         "--inject", o.fault,
         "plant this fault in every result, to see that it is found: the name of a tensor (one "
         "element off by 4 times its allowance), nan, kept, factor, quota, placement, routing, "
         "bits")
      ->check(CLI::IsMember(injections()))
      ->type_name("NAME");
}

int main_of(int argc, char** argv) {
  options o;
  CLI::App app;
  declare_options(app, o);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& outcome) {
    return app.exit(outcome) == 0 ? 0 : 2;
  }
  if (o.types.empty())
    o.types = o.large ? std::vector<std::string>{"float", "bf16"}
                      : std::vector<std::string>{"double", "float", "bf16"};
  Kokkos::InitializationSettings settings;
  settings.set_disable_warnings(true);
  if (o.threads > 0) settings.set_num_threads(o.threads);
  const Kokkos::ScopeGuard kokkos(settings);
  try {
    return run(o, bench::command_line(argc, argv));
  } catch (const lrmoe::argument_error& problem) {
    std::fprintf(stderr, "lrmoe_compare: %s\n", problem.what());
    return 2;
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return main_of(argc, argv);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "lrmoe_compare: %s\n", problem.what());
    return 1;
  }
}
