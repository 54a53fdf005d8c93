// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace lrmoe::detail {

/// n elements of working storage, with whatever they held last. It lives as long as the thread:
/// policies are const and shared, yet should allocate only while sizes grow. Every Tag has its own, so
/// that a policy inside another one does not overwrite what the outer one holds.
template <class Tag, class T>
std::span<T> scratch(std::size_t n) {
  thread_local std::vector<T> storage;
  if (storage.size() < n) storage.resize(n);
  return std::span(storage).first(n);
}

}  // namespace lrmoe::detail
