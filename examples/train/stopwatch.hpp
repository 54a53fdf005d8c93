// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <functional>
#include <utility>

#include "host.hpp"

namespace train {

/// Sums the time of the sections it is told to measure; fences, so that work that is enqueued
/// inside a section counts there.
class stopwatch {
 public:
  /// clock() tells the time in seconds.
  explicit stopwatch(std::function<double()> clock) : clock_(std::move(clock)) {}

  template <class Section>
  auto measure(const Section& section) {
    fence();
    const double start = clock_();
    struct stop {
      stopwatch& watch;
      double start;
      ~stop() {
        fence();
        watch.seconds_ += watch.clock_() - start;
      }
    } at_end{*this, start};
    return section();
  }

  double seconds() const { return seconds_; }

 private:
  static void fence() { space().fence("train::stopwatch: time of a section"); }

  std::function<double()> clock_;
  double seconds_ = 0.0;
};

}  // namespace train
