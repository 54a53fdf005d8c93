// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <utility>
#include <variant>

#include <lrmoe/quota/quota.hpp>

namespace lrmoe {

/// One of several quota policies, chosen at run time; itself a quota policy.
template <quota... Quotas>
class any_quota {
 public:
  any_quota() = default;
  template <class Chosen>
  requires(std::same_as<Chosen, Quotas> || ...) any_quota(Chosen chosen)
      : chosen_(std::move(chosen)) {}

  void validate() const {
    std::visit([](const auto& q) { q.validate(); }, chosen_);
  }
  bool uses_history() const {
    return std::visit([](const auto& q) { return q.uses_history(); }, chosen_);
  }
  void assign(const quota_request& request, std::span<index_type> quotas) const {
    std::visit([&](const auto& q) { q.assign(request, quotas); }, chosen_);
  }

 private:
  std::variant<Quotas...> chosen_;
};

}  // namespace lrmoe
