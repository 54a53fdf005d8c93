// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <fstream>
#include <string>

#include <lrmoe/control/cost_model.hpp>

#include "../../benchmarks/support/results.hpp"
#include "error.hpp"

namespace train {

/// Rates of this machine from a file of lrmoe_calibrate. Throws when the file is missing, damaged, or of
/// another machine.
inline lrmoe::machine_rates read_calibration(const std::string& path) {
  std::ifstream stream(path);
  require(stream.good(), "cannot open the calibration {}: run lrmoe_calibrate --json {}", path,
          path);
  lrmoe::machine_rates rates;
  bench::json machine;
  try {
    const auto document = bench::json::parse(stream);
    machine = document.at("machine");
    const auto& of = document.at("rates");
    rates.product_flops_per_s = of.at("product_flops_per_s");
    rates.product_half_width = of.at("product_half_width");
    rates.memory_bytes_per_s = of.at("memory_bytes_per_s");
    rates.inside = {of.at("inside").at("bytes_per_s"), of.at("inside").at("latency_s")};
    rates.across = {of.at("across").at("bytes_per_s"), of.at("across").at("latency_s")};
    rates.ranks_per_node = of.at("ranks_per_node");
    rates.validate();
  } catch (const std::exception& problem) {
    throw error(
        fmt::format("the calibration {} is damaged ({}): make it again with lrmoe_calibrate "
                    "--json {}",
                    path, problem.what(), path));
  }
  const auto here = bench::host_machine();
  require(machine == here,
          "the calibration {} is of another machine, {}; this is {}: run "
          "lrmoe_calibrate here",
          path, machine.dump(), here.dump());
  return rates;
}

}  // namespace train
