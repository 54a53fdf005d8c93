// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include <lrmoe/quota/quota.hpp>
#include <lrmoe/quota/scratch.hpp>

namespace lrmoe::detail {

/// Experts grouped by the rank that computes them, in ascending order.
class experts_of_ranks {
 public:
  explicit experts_of_ranks(const quota_request& request)
      : begin_(scratch<begin_tag, std::size_t>(static_cast<std::size_t>(request.R) + 2)),
        experts_(scratch<expert_tag, std::size_t>(request.home.size())) {
    // Counting sort; one place further on than usual, so that filling moves the ends into place.
    std::fill(begin_.begin(), begin_.end(), std::size_t{0});
    for (const index_type rank : request.home) ++begin_[static_cast<std::size_t>(rank) + 2];
    for (std::size_t r = 2; r < begin_.size(); ++r) begin_[r] += begin_[r - 1];
    for (std::size_t e = 0; e < request.home.size(); ++e) {
      experts_[begin_[static_cast<std::size_t>(request.home[e]) + 1]++] = e;
    }
  }

  std::span<const std::size_t> of(std::int64_t rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return experts_.subspan(begin_[r], begin_[r + 1] - begin_[r]);
  }

 private:
  struct begin_tag {};
  struct expert_tag {};
  std::span<std::size_t> begin_;    // (R+2)
  std::span<std::size_t> experts_;  // (E)
};

}  // namespace lrmoe::detail
