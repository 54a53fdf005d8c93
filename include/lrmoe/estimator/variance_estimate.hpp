// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/detail/row_parallel.hpp>

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
/// Numerics  a row's squares in the accumulation type, in a fixed order, the rest in double: deterministic
/// Order     asynchronous on the space
template <class ExecutionSpace, class Element, class Device, class Unit = detail::translation_unit>
void variance_terms(const ExecutionSpace& space,
                    const matrix_view<const Element, Device>& scaled_rows,
                    const vector_view<const index_type, Device>& index,
                    const vector_view<const float, Device>& c,
                    const vector_view<const float, Device>& norms,
                    const vector_view<const index_type, Device>& tokens,
                    const vector_view<double, Device>& terms) {
  const auto columns = static_cast<std::int64_t>(scaled_rows.extent(1));
  const bool chunked = detail::in_chunks<ExecutionSpace>(columns, scaled_rows);
  const bool indexed = index.extent(0) != 0;
  const bool outer = norms.extent(0) != 0;
  const bool by_token = tokens.extent(0) != 0;
  detail::for_each_row(
      "lrmoe::variance_estimate::terms", space, static_cast<std::int64_t>(terms.extent(0)),
      KOKKOS_LAMBDA(const detail::row_lanes<ExecutionSpace>& lanes, const std::int64_t i) {
        const double factor = c(i);
        double term = 0.0;
        if (factor > 1.0) {
          const auto squares =
              lanes.sum_squares(&scaled_rows(indexed ? index(i) : i, 0), columns, chunked);
          const double other = outer ? static_cast<double>(norms(by_token ? tokens(i) : i)) : 1.0;
          term = (1.0 - 1.0 / factor) * static_cast<double>(squares) * other * other;
        }
        lanes.once([&] { terms(i) = term; });
      });
}

/// Total of terms (S) into *total; overwrites terms.
/// Numerics  chunks of fixed length, each by a team, then their sums: deterministic
/// Order     asynchronous on the space
template <class ExecutionSpace, class Device, class Unit = detail::translation_unit>
void sum_terms(const ExecutionSpace& space, const vector_view<double, Device>& terms,
               double* total) {
  constexpr std::int64_t chunk = 1024;
  const auto count = static_cast<std::int64_t>(terms.extent(0));
  const std::int64_t chunks = (count + chunk - 1) / chunk;
  using team_policy = Kokkos::TeamPolicy<ExecutionSpace>;
  using team_member = typename team_policy::member_type;
  Kokkos::parallel_for(
      "lrmoe::variance_estimate::sum_chunk",
      team_policy(space, static_cast<int>(chunks), Kokkos::AUTO),
      KOKKOS_LAMBDA(const team_member& team) {
        const std::int64_t begin = team.league_rank() * chunk;
        double sum = 0;
        Kokkos::parallel_reduce(
            Kokkos::TeamThreadRange(team, begin, Kokkos::min(count, begin + chunk)),
            [&](const std::int64_t j, double& part) { part += terms(j); }, sum);
        team.team_barrier();
        Kokkos::single(Kokkos::PerTeam(team), [&] { terms(begin) = sum; });
      });
  Kokkos::parallel_for(
      "lrmoe::variance_estimate::sum", team_policy(space, 1, Kokkos::AUTO),
      KOKKOS_LAMBDA(const team_member& team) {
        double sum = 0;
        Kokkos::parallel_reduce(
            Kokkos::TeamThreadRange(team, chunks),
            [&](const std::int64_t i, double& part) { part += terms(i * chunk); }, sum);
        Kokkos::single(Kokkos::PerTeam(team), [&] { *total = sum; });
      });
}

}  // namespace lrmoe
