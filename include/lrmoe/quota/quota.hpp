// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <concepts>
#include <cstdint>

#include <lrmoe/types.hpp>

namespace lrmoe {

/// A quota policy decides, from counts alone and before any expert runs, how many pairs of each
/// expert backward may keep.
///   validate()        throws argument_error when the policy's settings are out of range
///   capacity(P, E)    upper bound, known on the host, of the pairs kept out of P
///   assign(space, counts (E), quotas (E))   writes every quota, asynchronously on the space
/// Laws: 0 <= quotas(e) <= counts(e); sum quotas <= capacity; the same counts give the same quotas on every rank.
template <class Quota>
concept quota = std::copyable<Quota> && requires(const Quota& q, std::int64_t n) {
  q.validate();
  { q.capacity(n, n) } -> std::same_as<std::int64_t>;
};

}  // namespace lrmoe
