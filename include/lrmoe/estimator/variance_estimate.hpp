// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/types.hpp>

namespace lrmoe {

/// Expected squared errors that scores do not know, estimated from the kept pairs.
struct variance_estimate {
  double gate_up = 0;  ///< of [dW_gate dW_up] together
  double dx = 0;       ///< of the layer's dx, all tokens together

  KOKKOS_FUNCTION variance_estimate& operator+=(const variance_estimate& other) {
    gate_up += other.gate_up;
    dx += other.dx;
    return *this;
  }
};

/// Squared error that a kept row stands for: (1 - 1/c) ||c z||^2 ||other||^2.
/// With pi = 1/c the row's probability, the sum over kept rows has the expectation
/// sum_p (1/pi_p - 1) ||z_p||^2 ||other_p||^2 over all rows (Horvitz and Thompson 1952), which is the
/// expected squared error under independent draws. Rows with c = 1 add nothing.
/// Shapes    scaled_rows (., columns): c z; index (S) rows to take, or empty for the first S; c (S);
///           norms (.) of the other factor of an outer product, at tokens (S) or, empty, in order; norms
///           empty for 1; terms (S)
/// Numerics  a row's squares in the accumulation type, serially, the rest in double: deterministic
/// Order     asynchronous on the space
template <class ExecutionSpace, class Element, class Device>
void variance_terms(const ExecutionSpace& space,
                    const matrix_view<const Element, Device>& scaled_rows,
                    const vector_view<const index_type, Device>& index,
                    const vector_view<const float, Device>& c,
                    const vector_view<const float, Device>& norms,
                    const vector_view<const index_type, Device>& tokens,
                    const vector_view<double, Device>& terms) {
  const auto columns = static_cast<std::int64_t>(scaled_rows.extent(1));
  const bool indexed = index.extent(0) != 0;
  const bool outer = norms.extent(0) != 0;
  const bool by_token = tokens.extent(0) != 0;
  Kokkos::parallel_for(
      "lrmoe::variance_estimate::terms",
      Kokkos::RangePolicy<ExecutionSpace>(space, 0, terms.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const double factor = c(i);
        if (factor <= 1.0) {
          terms(i) = 0.0;
          return;
        }
        accumulate_t<Element> squares = 0;
        const Element* row = &scaled_rows(indexed ? index(i) : i, 0);
        for (std::int64_t d = 0; d < columns; ++d) {
          const auto value = static_cast<accumulate_t<Element>>(row[d]);
          squares += value * value;
        }
        const double other = outer ? static_cast<double>(norms(by_token ? tokens(i) : i)) : 1.0;
        terms(i) = (1.0 - 1.0 / factor) * static_cast<double>(squares) * other * other;
      });
}

/// Total of terms (S) into *total; overwrites terms.
/// Numerics  chunks of fixed length, each in order, then their sums in order: deterministic
/// Order     asynchronous on the space
template <class ExecutionSpace, class Device>
void sum_terms(const ExecutionSpace& space, const vector_view<double, Device>& terms,
               double* total) {
  constexpr std::int64_t chunk = 1024;
  const auto count = static_cast<std::int64_t>(terms.extent(0));
  const std::int64_t chunks = (count + chunk - 1) / chunk;
  Kokkos::parallel_for(
      "lrmoe::variance_estimate::sum_chunk", Kokkos::RangePolicy<ExecutionSpace>(space, 0, chunks),
      KOKKOS_LAMBDA(const std::int64_t i) {
        double sum = 0;
        const std::int64_t end = Kokkos::min(count, (i + 1) * chunk);
        for (std::int64_t j = i * chunk; j < end; ++j) sum += terms(j);
        terms(i * chunk) = sum;
      });
  Kokkos::parallel_for(
      "lrmoe::variance_estimate::sum", Kokkos::RangePolicy<ExecutionSpace>(space, 0, 1),
      KOKKOS_LAMBDA(const int) {
        double sum = 0;
        for (std::int64_t i = 0; i < chunks; ++i) sum += terms(i * chunk);
        *total = sum;
      });
}

}  // namespace lrmoe
