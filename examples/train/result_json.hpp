// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <string>

#if LRMOE_HAS_CUDA_BACKEND
#include "../../benchmarks/support/gpu.hpp"
#endif
#include "../../benchmarks/support/results.hpp"
#include "options.hpp"

namespace train {

/// The results of a complete run in the form that all tools share.
inline json result_document(const options& o, const json& summary, const std::string& command,
                            const std::string& commit) {
  std::string method = name_of(method_names, o.method);
  if (o.method == method::lrmoe && o.estimator != estimator_choice::pps)
    method += "_" + name_of(estimator_names, o.estimator);
  std::replace(method.begin(), method.end(), '-', '_');
  const std::string path = fmt::format("{}/T{}-K{}-E{}-D{}-F{}", method, o.batch * o.context,
                                       o.top_k, o.experts, o.width, o.expert_width);
  bench::result_set results;
  const auto add = [&](const std::string& name, const json& value, const char* unit) {
    // A value that does not exist, a target that was not reached, becomes null.
    const double number = value.is_null() ? std::nan("") : value.get<double>();
    results.add(
        name, number, unit, {},
        {{"keep", o.keep}, {"seed", o.seed}, {"backend", name_of(backend_names, o.backend)}});
  };
  if (o.target_loss > 0.0)
    add(fmt::format("time_to_loss/{}/{}", path, o.target_loss), summary.at("moe_s_to_target"), "s");
  add("final_loss/" + path, summary.at("final_val_loss"), "nat");
  add("moe_time/" + path, summary.at("moe_s_cumulative"), "s");
  add("wall_time/" + path, summary.at("wall_s"), "s");
  json machine = bench::host_machine();
#if LRMOE_HAS_CUDA_BACKEND
  if (o.backend == backend_choice::cuda) machine = bench::gpu_machine();
#endif
  machine["threads"] = summary.at("threads");
  return results.document("lrmoe_train", command, commit, machine);
}

}  // namespace train
