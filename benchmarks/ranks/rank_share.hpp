// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <cstdint>

#include <lrmoe/placement/placement.hpp>
#include <lrmoe/types.hpp>

#include "../support/layer_problem.hpp"

namespace bench {

/// What one rank has of a layer_problem: its tokens, and the experts in its slots. Nothing else is made.
template <class Element, class Device>
struct rank_share {
  using real = lrmoe::accumulate_t<Element>;

  std::int64_t first, last;                     // tokens
  matrix<Element, Device> x, d_out, out, dx;    // (last - first, D)
  matrix<real, Device> d_logits;                // (last - first, E)
  tensor<Element, Device> gate_up, down;        // (S, D, 2F), (S, F, D)
  tensor<Element, Device> no_gate_up, no_down;  // of a shared expert
  tensor<real, Device> d_gate_up, d_down, no_d_gate_up, no_d_down;

  rank_share(const lrmoe::layer_shape& shape, std::int64_t tokens, std::int64_t rank,
             const lrmoe::placement& placed)
      : rank_share(shape, tokens * rank / placed.R(), tokens * (rank + 1) / placed.R(),
                   placed.S()) {
    fill_normal(x, 2, 1.0, first * shape.D);
    fill_normal(d_out, 3, 1.0, first * shape.D);
    const std::int64_t S = placed.S();
    for (std::int64_t s = 0; s < S; ++s) {
      const auto e = placed.expert_of_slot()[static_cast<std::size_t>(rank * S + s)];
      if (e == lrmoe::no_expert) continue;  // never read
      fill_normal(slot(gate_up, s), 4, 1.0 / std::sqrt(shape.D), e * shape.D * 2 * shape.F);
      fill_normal(slot(down, s), 5, 1.0 / std::sqrt(shape.F), e * shape.F * shape.D);
    }
  }

  /// This rank's rows of a matrix that all ranks can build.
  template <class View>
  View rows_of(const View& all) const {
    return View(all.data() + first * static_cast<std::int64_t>(all.extent(1)),
                static_cast<std::size_t>(last - first), all.extent(1));
  }

  lrmoe::expert_weights<Element, Device> weights() const {
    return {gate_up, down, no_gate_up, no_down};
  }
  lrmoe::expert_gradients<real, Device> gradients() const {
    return {d_gate_up, d_down, no_d_gate_up, no_d_down};
  }

 private:
  rank_share(const lrmoe::layer_shape& shape, std::int64_t from, std::int64_t to, std::int64_t S)
      : first(from),
        last(to),
        x("x", to - from, shape.D),
        d_out("d_out", to - from, shape.D),
        out("out", to - from, shape.D),
        dx("dx", to - from, shape.D),
        d_logits("d_logits", to - from, shape.E),
        gate_up("gate_up", S, shape.D, 2 * shape.F),
        down("down", S, shape.F, shape.D),
        no_gate_up("no_gate_up", 0, shape.D, 0),
        no_down("no_down", 0, 0, shape.D),
        d_gate_up("d_gate_up", S, shape.D, 2 * shape.F),
        d_down("d_down", S, shape.F, shape.D),
        no_d_gate_up("no_d_gate_up", 0, shape.D, 0),
        no_d_down("no_d_down", 0, 0, shape.D) {}

  static matrix<Element, Device> slot(const tensor<Element, Device>& all, std::int64_t s) {
    const std::size_t rows = all.extent(1), columns = all.extent(2);
    return matrix<Element, Device>(all.data() + static_cast<std::size_t>(s) * rows * columns, rows,
                                   columns);
  }
};

}  // namespace bench
