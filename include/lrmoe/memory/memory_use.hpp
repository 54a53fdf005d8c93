// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <array>
#include <numeric>

#include <lrmoe/memory/ledger.hpp>

namespace lrmoe {

/// Bytes by category.
class memory_use {
 public:
  std::int64_t& operator[](memory_category category) {
    return bytes_[static_cast<std::size_t>(category)];
  }
  std::int64_t operator[](memory_category category) const {
    return bytes_[static_cast<std::size_t>(category)];
  }
  std::int64_t total() const {
    return std::accumulate(bytes_.begin(), bytes_.end(), std::int64_t{0});
  }

 private:
  std::array<std::int64_t, num_memory_categories> bytes_{};
};

}  // namespace lrmoe
