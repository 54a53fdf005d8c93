// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../support/harness.hpp"
#include "finding.hpp"
#include "injection.hpp"
#include "kept_sets.hpp"
#include "layer_reference.hpp"
#include "plans.hpp"

namespace bench::compare {

/// What came of one candidate in one case.
struct outcome {
  std::string case_name, candidate_name;
  std::vector<tensor_comparison> tensors;
  std::vector<finding> findings;
  double layer_s = 0, reference_s = 0;
  bool injected = false;  ///< the fault asked for found something to damage

  /// Tensors whose errors are larger than rounding is likely to explain.
  std::int64_t unlikely() const {
    return std::count_if(tensors.begin(), tensors.end(),
                         [](const auto& one) { return one.likely_ratio() > 1.0; });
  }

  bool passed() const {
    for (const auto& one : tensors)
      if (!one.passed()) return false;
    for (const auto& one : findings)
      if (!one.passed) return false;
    return true;
  }
};

/// Judges the results of one call: every tensor, the kept sets, the plan.
template <class Element>
void judge(const layer_inputs<Element>& in, const layer_results<Element>& results,
           const candidate<Element>& one, const std::string& fault, outcome& to) {
  const bench::stopwatch time;
  auto reference = layer_reference<Element>(in, results, fault).run();
  const kept_sets<Element> kept(in, results, reference);
  tensor_comparison sizes("sizes");
  if (fault == "sizes") sizes.inject(4.0);
  sizes = kept.compare_sizes(std::move(sizes));
  to.findings.push_back(kept.redraw());
  to.findings.push_back(kept.same_scores(one));
  to.findings.push_back(kept.differences());
  const plan_check<Element> plans(in, results);
  to.findings.push_back(plans.ranks_agree());
  to.findings.push_back(plans.recount());
  const auto& routing = reference.routing;
  to.findings.push_back(
      {"routing", routing.unexplained.empty(), static_cast<double>(routing.differences), "pairs",
       routing.unexplained.empty()
           ? "experts as the reference chooses them, but for scores that rounding ties"
           : fmt::format("pair {} goes to another expert, and rounding cannot be why",
                         routing.unexplained.front())});
  const auto likely = layer_reference<Element>(in, results, {}, true).run();
  for (std::size_t i = 0; i < likely.tensors.size(); ++i)
    reference.tensors[i].set_likely_ratio(likely.tensors[i].ratio());
  to.reference_s = time.seconds();
  to.tensors = std::move(reference.tensors);
  to.tensors.push_back(std::move(sizes));
  for (const auto& tensor : to.tensors)
    to.injected = to.injected || (tensor.name() == fault && tensor.elements() > 0);
}

/// Runs the candidates of one element type on a case. The first one's plan is what the others' must equal.
template <class Element>
std::vector<outcome> evaluate(const layer_inputs<Element>& in,
                              const std::vector<std::unique_ptr<candidate<Element>>>& candidates,
                              const std::string& fault) {
  std::vector<outcome> outcomes;
  std::vector<plan_record> first_plans;
  std::vector<index_type> first_experts;
  for (const auto& one : candidates) {
    outcome to;
    to.case_name = in.of.name();
    to.candidate_name = one->name();
    try {
      // The first run's tensors are gone before the second's are made: published layers are large.
      const std::uint64_t first_sum = one->run(in).checksum();
      layer_results<Element> results = one->run(in);
      to.layer_s = results.seconds;
      std::uint64_t second_sum = results.checksum();
      if (fault == "bits") {
        second_sum ^= 1;
        to.injected = true;
      } else {
        to.injected = inject(fault, in.of, results);
      }
      judge(in, results, *one, fault, to);
      to.findings.push_back({"repeat", first_sum == second_sum, first_sum == second_sum ? 0.0 : 1.0,
                             "runs",
                             first_sum == second_sum ? "two runs agree in every bit"
                                                     : "two runs of the same call differ"});
      if (one == candidates.front()) {
        first_plans = results.plans;
        first_experts = results.experts;
      } else {
        to.findings.push_back(plan_check<Element>(in, results)
                                  .equals(candidates.front()->name(), first_plans, first_experts));
      }
    } catch (const std::exception& problem) {
      to.findings.push_back({"run", false, 1, "errors", problem.what()});
    }
    outcomes.push_back(std::move(to));
  }
  return outcomes;
}

}  // namespace bench::compare
