// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <concepts>

#include <lrmoe/draw_key.hpp>
#include <lrmoe/types.hpp>

namespace lrmoe {

/// The rows of one source, in segments: expert e owns rows offsets(e) .. offsets(e+1) and keeps
/// kept_offsets(e+1) - kept_offsets(e) of them, at most as many as it owns.
template <class Device>
struct segments {
  vector_view<const index_type, Device> offsets;       // (E+1)
  vector_view<const index_type, Device> kept_offsets;  // (E+1)
};

/// What an estimator kept: kept row m of expert e, in ascending row order, at positions
/// kept_offsets(e) .. kept_offsets(e+1).
template <class Device>
struct selection {
  vector_view<index_type, Device> rows;  // (M)  row of the m-th kept pair
  vector_view<float, Device> factors;    // (M)  factor c of the pair in every gradient
  vector_view<float, Device> inclusion;  // (P)  by row: probability of being kept for unbiased
                                         //      rules; 1 kept, 0 dropped for biased ones
};

/// An estimator keeps exactly the quota of every segment.
///   validate()    throws argument_error when the estimator's settings are out of range
///   select(space, segments, sizes (P) by row, key, selection)   writes the selection, asynchronously
///   keeps_all()   true: quotas are ignored, every pair is kept and no sizes are needed
///   unbiased()    true: kept pairs with their factors have the exact gradient as expectation
/// `inclusion` is written for every row, also of segments that keep none.
/// Laws: equal sizes, segments and key give the same selection on every backend; rows ascend in a
/// segment; factors are positive and finite.
template <class Estimator>
concept estimator = std::copyable<Estimator> && requires(const Estimator& e) {
  e.validate();
  { e.keeps_all() } -> std::same_as<bool>;
  { e.unbiased() } -> std::same_as<bool>;
};

}  // namespace lrmoe
