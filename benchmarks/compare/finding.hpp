// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <string>

namespace bench::compare {

/// A check that is no tensor: holds or not, a number that tells how often or how much, and what it found.
struct finding {
  std::string name;
  bool passed = true;
  double value = 0;
  std::string unit;
  std::string text;
};

}  // namespace bench::compare
