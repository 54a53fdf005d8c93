// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdio>
#include <string>

#include <sys/ioctl.h>
#include <unistd.h>

namespace train {

/// What a person sees while a run goes on: on a terminal one line that is rewritten, elsewhere a
/// plain line now and then.
class progress {
 public:
  progress(bool quiet, std::int64_t plain_every)
      : quiet_(quiet), terminal_(::isatty(STDOUT_FILENO) != 0), plain_every_(plain_every) {}

  /// The state after a step.
  void update(std::int64_t step, const std::string& line) {
    if (quiet_) return;
    if (terminal_) {
      std::fputs(("\r" + line.substr(0, columns()) + "\x1b[K").c_str(), stdout);
      open_ = true;
    } else if (step % plain_every_ == 0) {
      std::fputs((line + "\n").c_str(), stdout);
    }
    std::fflush(stdout);
  }

  /// A line that stays.
  void say(const std::string& line) {
    if (quiet_) return;
    std::fputs(((open_ ? "\r\x1b[K" : "") + line + "\n").c_str(), stdout);
    std::fflush(stdout);
    open_ = false;
  }

  ~progress() {
    if (open_) std::fputs("\n", stdout);
  }

 private:
  /// A line that wraps could not be rewritten.
  static std::size_t columns() {
    winsize size{};
    const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    return known ? size.ws_col - 1u : 79u;
  }

  bool quiet_, terminal_;
  bool open_ = false;
  std::int64_t plain_every_;
};

}  // namespace train
