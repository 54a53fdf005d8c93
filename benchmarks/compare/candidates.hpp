// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "layer_results.hpp"

namespace bench::compare {

template <class Element>
constexpr const char* element_name() {
  return std::is_same_v<Element, float>    ? "float"
         : std::is_same_v<Element, double> ? "double"
                                           : "bf16";
}

/// The layer on the host, and on a GPU. Made in sources of their own, because layers take long to compile.
template <class Element>
std::unique_ptr<candidate<Element>> host_candidate();
template <class Element>
std::unique_ptr<candidate<Element>> cuda_candidate();

/// Name of the GPU in use, and the version of its driver.
std::pair<std::string, std::string> cuda_device();

}  // namespace bench::compare
