// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace lrmoe {

/// Base of everything the library throws.
struct error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// An argument is outside its limits. Thrown before anything is allocated or changed.
struct argument_error : error {
  using error::error;
};

/// The memory budget cannot hold what is asked for. Thrown before the allocation.
struct memory_error : error {
  using error::error;
};

/// Another rank failed, left or did not answer in time. Names the rank and, where it is known, the cause.
struct rank_error : error {
  using error::error;
};

/// Throw argument_error with the concatenated message unless the condition holds.
/// The message names the value, the limit and the remedy; it is only built on failure.
template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (condition) return;
  std::ostringstream message;
  message << "lrmoe: ";
  (message << ... << parts);
  throw argument_error(message.str());
}

}  // namespace lrmoe
