// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string_view>

#include <lrmoe/error.hpp>

namespace lrmoe {

/// What a byte is held for.
enum class memory_category : std::size_t {
  expert_weights,
  replicas,
  gradients,
  optimizer,
  token_buffers,      ///< routing, order, plan, selection
  saved_activations,  ///< forward results that backward needs
  workspace,          ///< scratch shared by all layers of a context
};

inline constexpr std::size_t num_memory_categories = 7;

constexpr std::string_view name_of(memory_category category) {
  constexpr std::array<std::string_view, num_memory_categories> names{
      "expert weights", "replicas",          "gradients", "optimizer",
      "token buffers",  "saved activations", "workspace"};
  return names[static_cast<std::size_t>(category)];
}

/// Account of every allocation of the library by category: live and peak bytes, and how many
/// allocations were ever made (unchanged from call to call in steady state).
/// An optional budget is checked before an allocation is made.
/// Not thread-safe: a ledger belongs to one context, used by one host thread at a time.
class ledger {
 public:
  /// Throws memory_error when live + bytes exceeds the budget; the account is then unchanged.
  void add(memory_category category, std::int64_t bytes) {
    if (budget_bytes_ > 0 && live_bytes() + bytes > budget_bytes_)
      throw memory_error(refusal(category, bytes));
    auto& account = accounts_[static_cast<std::size_t>(category)];
    account.live += bytes;
    account.peak = std::max(account.peak, account.live);
    live_ += bytes;
    peak_ = std::max(peak_, live_);
    ++allocations_;
  }

  void remove(memory_category category, std::int64_t bytes) noexcept {
    accounts_[static_cast<std::size_t>(category)].live -= bytes;
    live_ -= bytes;
  }

  std::int64_t live_bytes() const noexcept { return live_; }
  std::int64_t peak_bytes() const noexcept { return peak_; }
  std::int64_t live_bytes(memory_category category) const noexcept {
    return accounts_[static_cast<std::size_t>(category)].live;
  }
  std::int64_t peak_bytes(memory_category category) const noexcept {
    return accounts_[static_cast<std::size_t>(category)].peak;
  }
  std::int64_t allocations() const noexcept { return allocations_; }

  /// Most bytes that may be live at once; 0, the default, sets no limit.
  void set_budget_bytes(std::int64_t bytes) {
    require(bytes >= 0, "ledger: a budget of ", bytes, " bytes is negative: use 0 for no limit");
    budget_bytes_ = bytes;
  }
  std::int64_t budget_bytes() const noexcept { return budget_bytes_; }

 private:
  struct account {
    std::int64_t live = 0;
    std::int64_t peak = 0;
  };

  std::string refusal(memory_category category, std::int64_t bytes) const {
    std::ostringstream message;
    message << "lrmoe: " << bytes << " bytes of " << name_of(category) << " do not fit: " << live_
            << " of a budget of " << budget_bytes_ << " bytes are in use";
    const char* separator = " (";
    for (std::size_t i = 0; i < num_memory_categories; ++i) {
      if (accounts_[i].live == 0) continue;
      message << separator << name_of(static_cast<memory_category>(i)) << " " << accounts_[i].live;
      separator = ", ";
    }
    message << (live_ == 0 ? "" : ")") << "; raise the budget to at least " << live_ + bytes
            << " bytes, or lower the tokens per call or the kept fraction";
    return message.str();
  }

  std::array<account, num_memory_categories> accounts_{};
  std::int64_t live_ = 0;
  std::int64_t peak_ = 0;
  std::int64_t allocations_ = 0;
  std::int64_t budget_bytes_ = 0;
};

}  // namespace lrmoe
