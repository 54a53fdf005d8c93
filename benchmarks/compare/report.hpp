// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "../support/results.hpp"
#include "evaluation.hpp"

namespace bench::compare {

/// Prints outcomes as they come, and in the end the worst of every tensor; collects them for --json.
class report {
 public:
  explicit report(bool brief, bool strict = false) : brief_(brief), strict_(strict) {}

  void add(const outcome& one) {
    ++outcomes_;
    const bool passed = one.passed() && !(strict_ && one.unlikely() > 0);
    if (!passed) ++failed_;
    unlikely_ += one.unlikely();
    injected_ = injected_ || one.injected;
    const std::string path = one.case_name + "/" + one.candidate_name;
    fmt::print("{} {}  layer {:.3f} s, reference {:.2f} s\n", passed ? "ok  " : "FAIL", path,
               one.layer_s, one.reference_s);
    if (!brief_ && !one.tensors.empty())
      fmt::print("  {:<17} {:>9} {:>9} {:>10} {:>10} {:>10} {:>9}  {}\n", "tensor", "ratio",
                 "likely", "error there", "allowed", "largest", "row ratio",
                 "place; allowed by storage / accumulation / propagation");
    for (const auto& tensor : one.tensors) add_tensor(one, path, tensor);
    for (const auto& found : one.findings) {
      if (!found.passed || (!brief_ && (found.value > 0 || found.name == "plan/recount")))
        fmt::print("  {:<17} {} {} {}: {}\n", found.name,
                   found.passed ? "holds:" : "FAILS:", found.value, found.unit, found.text);
      results_.add("compare/" + path + "/" + found.name, found.value, found.unit, {},
                   {{"passed", found.passed}, {"text", found.text}});
      if (found.name == "kept/differences") kept_differences_ += found.value;
      if (found.name == "routing") routing_differences_ += found.value;
    }
    std::fflush(stdout);
  }

  void finish(double seconds) const {
    fmt::print(
        "\nlargest error over allowed error, and over what is likely, all cases\n"
        "{:<14} {:<17} {:>9} {:>9} {:>10} {:>10}  {}\n",
        "candidate", "tensor", "ratio", "likely", "error", "allowed", "case of the ratio");
    for (const auto& [key, most] : worst_)
      fmt::print("{:<14} {:<17} {:>9.2e} {:>9.2e} {:>10.2e} {:>10.2e}  {}\n", key.first, key.second,
                 most.ratio, most.likely, most.error, most.allowed, most.case_name);
    fmt::print(
        "\n{} comparisons, {} failed, {} tensors with unlikely errors; {} pairs kept otherwise and "
        "{} pairs routed otherwise than "
        "by "
        "the reference, {}; {:.1f} s\n",
        outcomes_, failed_, unlikely_, kept_differences_, routing_differences_,
        failed_ == 0 ? "all explained by rounding" : "see above", seconds);
  }

  bool passed() const { return failed_ == 0; }
  bool injected() const { return injected_; }
  const bench::result_set& results() const { return results_; }

 private:
  struct extreme {
    double ratio = -1, error = 0, allowed = 0, likely = 0;
    std::string case_name;
  };

  void add_tensor(const outcome& one, const std::string& path, const tensor_comparison& tensor) {
    if (tensor.elements() == 0) return;
    const auto& at = tensor.worst();
    const double total = at.allowed.total();
    const auto share = [&](double part) { return total > 0 ? 100.0 * part / total : 0.0; };
    if (!brief_ || !tensor.passed()) {
      fmt::print(
          "  {:<17} {:>9.2e} {:>9.2e} {:>10.2e} {:>10.2e} {:>10.2e} {:>9.2e}  ({}, {}); {:.0f} / "
          "{:.0f} / {:.0f} %\n",
          tensor.name(), tensor.ratio(), tensor.likely_ratio(), at.error, total,
          tensor.largest_error(), tensor.row_ratio(), at.row, at.column, share(at.allowed.storage),
          share(at.allowed.accumulation), share(at.allowed.propagated));
    }
    if (!tensor.passed())
      fmt::print("  {:<17} FAILS: {} of {} rows, {} of {} elements; got {:.9g}, exact {:.9g}\n",
                 tensor.name(), tensor.wrong_rows(), tensor.rows(), tensor.wrong(),
                 tensor.elements(), at.got, at.exact);
    if (tensor.likely_ratio() > 1.0)
      fmt::print("  {:<17} UNLIKELY: errors up to {:.1f} times what rounding should explain\n",
                 tensor.name(), tensor.likely_ratio());
    results_.add("compare/" + path + "/" + tensor.name(), tensor.ratio(), "allowed errors", {},
                 {{"error", at.error},
                  {"allowed", total},
                  {"storage", at.allowed.storage},
                  {"accumulation", at.allowed.accumulation},
                  {"propagated", at.allowed.propagated},
                  {"row", at.row},
                  {"column", at.column},
                  {"largest_error", tensor.largest_error()},
                  {"row_ratio", tensor.row_ratio()},
                  {"likely_ratio", tensor.likely_ratio()},
                  {"worst_row", tensor.worst_row()},
                  {"elements", tensor.elements()},
                  {"wrong_elements", tensor.wrong()},
                  {"passed", tensor.passed()}});
    auto& most = worst_[{one.candidate_name, tensor.name()}];
    const double likely = std::max(most.likely, tensor.likely_ratio());
    if (tensor.ratio() > most.ratio) most = {tensor.ratio(), at.error, total, 0, one.case_name};
    most.likely = likely;
  }

  bool brief_, strict_;
  std::int64_t outcomes_ = 0, failed_ = 0, unlikely_ = 0;
  double kept_differences_ = 0, routing_differences_ = 0;
  bool injected_ = false;
  std::map<std::pair<std::string, std::string>, extreme> worst_;
  bench::result_set results_;
};

}  // namespace bench::compare
