// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <chrono>

#include "host.hpp"

namespace train {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Sums the time of the sections it is told to measure; fences, so that work that is enqueued
/// inside a section counts there.
class stopwatch {
 public:
  template <class Section>
  auto measure(const Section& section) {
    fence();
    const double start = seconds_now();
    struct stop {
      stopwatch& watch;
      double start;
      ~stop() {
        fence();
        watch.seconds_ += seconds_now() - start;
      }
    } at_end{*this, start};
    return section();
  }

  double seconds() const { return seconds_; }

 private:
  static void fence() { space().fence("train::stopwatch: time of a section"); }

  double seconds_ = 0.0;
};

}  // namespace train
