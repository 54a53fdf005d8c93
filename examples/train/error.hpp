// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace train {

/// Anything that ends a run with exit code 1; the message names the value, the limit and the remedy.
struct error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Arguments>
void require(bool condition, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  if (!condition) throw error(fmt::format(format, std::forward<Arguments>(arguments)...));
}

}  // namespace train
