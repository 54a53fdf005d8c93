// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <utility>
#include <variant>

#include <lrmoe/estimator/estimator.hpp>

namespace lrmoe {

/// One of several estimators, chosen at run time; itself an estimator.
template <estimator... Estimators>
class any_estimator {
 public:
  any_estimator() = default;
  template <class Chosen>
  requires(std::same_as<Chosen, Estimators> || ...) any_estimator(Chosen chosen)
      : chosen_(std::move(chosen)) {}

  bool keeps_all() const {
    return std::visit([](const auto& e) { return e.keeps_all(); }, chosen_);
  }
  bool unbiased() const {
    return std::visit([](const auto& e) { return e.unbiased(); }, chosen_);
  }
  void validate() const {
    std::visit([](const auto& e) { e.validate(); }, chosen_);
  }

  template <class ExecutionSpace, class Device>
  void select(const ExecutionSpace& space, const segments<Device>& rows,
              const vector_view<const float, Device>& sizes, const draw_key& key,
              const selection<Device>& kept) const {
    std::visit([&](const auto& e) { e.select(space, rows, sizes, key, kept); }, chosen_);
  }

 private:
  std::variant<Estimators...> chosen_;
};

}  // namespace lrmoe
