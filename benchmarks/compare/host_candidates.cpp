// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <lrmoe/openmp/backend.hpp>

#include "candidates.hpp"
#include "layer_candidate.hpp"

namespace bench::compare {

template <class Element>
std::unique_ptr<candidate<Element>> host_candidate() {
  return std::make_unique<layer_candidate<Element, lrmoe::openmp::backend<>>>(
      std::string("host-") + element_name<Element>());
}

template std::unique_ptr<candidate<float>> host_candidate<float>();
template std::unique_ptr<candidate<lrmoe::bfloat16>> host_candidate<lrmoe::bfloat16>();
template std::unique_ptr<candidate<double>> host_candidate<double>();

}  // namespace bench::compare
