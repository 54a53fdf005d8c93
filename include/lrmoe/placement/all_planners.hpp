// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <lrmoe/placement/any_planner.hpp>
#include <lrmoe/placement/eplb.hpp>
#include <lrmoe/placement/fastermoe_shadowing.hpp>
#include <lrmoe/placement/flexmoe.hpp>
#include <lrmoe/placement/laer.hpp>
#include <lrmoe/placement/llep.hpp>
#include <lrmoe/placement/memory_balanced.hpp>
#include <lrmoe/placement/smartmoe.hpp>
#include <lrmoe/placement/static_ownership.hpp>
#include <lrmoe/placement/symi.hpp>
#include <lrmoe/placement/topology_aware.hpp>
#include <lrmoe/placement/ultraep.hpp>

namespace lrmoe {

/// Any planner of the library.
using library_planner =
    any_planner<static_ownership, smartmoe, flexmoe, eplb, symi, laer, fastermoe_shadowing, llep,
                ultraep, topology_aware, memory_balanced>;

/// Every planner of the library with its default settings: one copy, several on history, sharded optimizer,
/// transient copies on exact counts.
inline std::vector<library_planner> all_planners() {
  return {static_ownership{},    smartmoe{}, flexmoe{}, eplb{},           symi{},           laer{},
          fastermoe_shadowing{}, llep{},     ultraep{}, topology_aware{}, memory_balanced{}};
}

/// The planner that calls itself so, with its default settings.
/// Throws    argument_error that lists the names
inline library_planner planner_by_name(std::string_view name) {
  std::string names;
  for (const library_planner& one : all_planners()) {
    if (one.attributes().name == name) return one;
    names += (names.empty() ? "" : ", ") + std::string(one.attributes().name);
  }
  require(false, "no planner is called '", name, "': use one of ", names);
  return {};
}

}  // namespace lrmoe
