// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <lrmoe/types.hpp>

namespace lrmoe {

/// The count matrices n[s][e] of the last W calls of a layer, and their sums over sources. Keeps its
/// storage: record allocates only while the history fills.
class load_history {
 public:
  /// Throws argument_error unless window >= 0; a window of 0 keeps nothing.
  explicit load_history(std::int64_t window = 1) : window_(window) {
    require(window >= 0, "load_history: window = ", window, " calls must not be negative");
    calls_.resize(static_cast<std::size_t>(window));
  }

  /// Adds the counts of a call, (R, E), and forgets the oldest when the window is full.
  /// Throws    argument_error for other extents than before, and for negative counts
  void record(std::int64_t R, std::int64_t E, std::span<const index_type> source_counts) {
    require(R >= 1 && E >= 1 && source_counts.size() == static_cast<std::size_t>(R * E),
            "load_history: ", source_counts.size(), " counts given for R = ", R, " and E = ", E,
            ": pass (R, E)");
    require(size_ == 0 || (R == R_ && E == E_), "load_history: counts of R = ", R, " and E = ", E,
            " follow counts of R = ", R_, " and E = ", E_, ": clear the history first");
    for (const index_type n : source_counts)
      require(n >= 0, "load_history: a count is ", n, ": counts cannot be negative");
    R_ = R;
    E_ = E;
    if (window_ == 0) return;
    next_ = (next_ + 1) % window_;
    size_ = std::min(size_ + 1, window_);
    call& to = calls_[static_cast<std::size_t>(next_)];
    to.counts.assign(source_counts.begin(), source_counts.end());
    to.loads.assign(static_cast<std::size_t>(E), 0);
    for (std::size_t s = 0; s < static_cast<std::size_t>(R); ++s)
      for (std::size_t e = 0; e < to.loads.size(); ++e)
        to.loads[e] += source_counts[s * to.loads.size() + e];
  }

  void clear() { size_ = 0; }

  std::int64_t window() const { return window_; }
  std::int64_t size() const { return size_; }  ///< calls held, at most the window
  std::int64_t R() const { return R_; }
  std::int64_t E() const { return E_; }

  /// n[s][e] of the call before `age` others: 0 is the last. (R, E), for 0 <= age < size().
  std::span<const index_type> counts(std::int64_t age) const { return at(age).counts; }
  /// L[e] of that call. (E)
  std::span<const std::int64_t> loads(std::int64_t age) const { return at(age).loads; }

 private:
  struct call {
    std::vector<index_type> counts;
    std::vector<std::int64_t> loads;
  };
  const call& at(std::int64_t age) const {
    return calls_[static_cast<std::size_t>((next_ - age + window_) % window_)];
  }

  std::int64_t window_;
  std::int64_t size_ = 0, next_ = -1;
  std::int64_t R_ = 0, E_ = 0;
  std::vector<call> calls_;
};

}  // namespace lrmoe
