// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

namespace lrmoe::detail {

/// Last template parameter, by default, of every function that launches a kernel from a lambda.
/// nvcc keeps what a __host__ __device__ lambda is copied and destroyed by in variables of the translation
/// unit. Two units that instantiate the same function would share its code but not those variables, and one
/// of them would call through a null pointer. With this parameter every unit has a function of its own.
#if defined(__CUDACC__)
namespace {
struct translation_unit;
}
#else
struct translation_unit;
#endif

}  // namespace lrmoe::detail
