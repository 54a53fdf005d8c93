// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <utility>
#include <variant>

#include <lrmoe/placement/planner.hpp>

namespace lrmoe {

/// One of several planners, chosen at run time; itself a planner.
template <planner... Planners>
class any_planner {
 public:
  any_planner() = default;
  template <class Chosen>
  requires(std::same_as<Chosen, Planners> || ...) any_planner(Chosen chosen)
      : chosen_(std::move(chosen)) {}

  void validate() const {
    std::visit([](const auto& p) { p.validate(); }, chosen_);
  }
  planner_attributes attributes() const {
    return std::visit([](const auto& p) { return p.attributes(); }, chosen_);
  }
  void plan(const placement_request& request, placement_plan& to) const {
    std::visit([&](const auto& p) { p.plan(request, to); }, chosen_);
  }
  void split(const placement_request& request, const placement_plan& plan,
             std::span<index_type> split) const {
    std::visit([&](const auto& p) { p.split(request, plan, split); }, chosen_);
  }

 private:
  std::variant<Planners...> chosen_;
};

}  // namespace lrmoe
