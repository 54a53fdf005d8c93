// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>

#include <lrmoe/quota/quota.hpp>

namespace lrmoe {

/// Another policy whose parameter moves over training, linearly in the step:
///   from                                         up to begin_step
///   from + (to - from) (step - begin) / (end - begin)
///   to                                           as of end_step
/// e.g. annealed<fixed_fraction, &fixed_fraction::keep> or
/// annealed<error_bounded, &error_bounded::epsilon>. What `inner` holds in that parameter is not used.
/// A wrapper goes around it: with_floor<annealed<...>>.
template <quota Inner, double Inner::*Parameter>
struct annealed {
  Inner inner{};
  double from = 1;
  double to = 1;
  std::uint64_t begin_step = 0;
  std::uint64_t end_step = 0;  ///< not before begin_step; equal: a jump

  /// Both ends must be valid for the inner policy, and with them what lies between.
  void validate() const {
    require(begin_step <= end_step, "annealed: begin_step = ", begin_step,
            " comes after end_step = ", end_step, ": a schedule needs its steps in order");
    with(from).validate();
    with(to).validate();
  }

  bool uses_history() const { return inner.uses_history(); }

  void assign(const quota_request& request, std::span<index_type> quotas) const {
    with(at(request.step)).assign(request, quotas);
  }

  /// The parameter in a step.
  double at(std::uint64_t step) const {
    if (step >= end_step) return to;
    if (step <= begin_step) return from;
    return from + (to - from) * (static_cast<double>(step - begin_step) /
                                 static_cast<double>(end_step - begin_step));
  }

 private:
  Inner with(double value) const {
    Inner moved = inner;
    moved.*Parameter = value;
    return moved;
  }
};

}  // namespace lrmoe
