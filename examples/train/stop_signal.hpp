// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <csignal>

namespace train {

/// Ctrl-C or SIGTERM asks for a stop after the current step; a second one ends the program at once.
class stop_signal {
 public:
  static void install() {
    requested_ = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { requested_ = 1; };
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
  }

  static bool requested() { return requested_ != 0; }

 private:
  static inline volatile std::sig_atomic_t requested_ = 0;
};

}  // namespace train
