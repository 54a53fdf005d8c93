// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <lrmoe/experts/operations.hpp>
#include <lrmoe/layer.hpp>
#include <lrmoe/openmp/backend.hpp>

#include "skew.hpp"

namespace bench {

using host_backend = lrmoe::openmp::backend<>;
using host_device = host_backend::device_type;

template <class T>
using vector = lrmoe::vector_view<T, host_device>;
template <class T>
using matrix = lrmoe::matrix_view<T, host_device>;
template <class T>
using tensor = lrmoe::tensor_view<T, host_device>;

/// Fills a view with bell-shaped values of this standard deviation and mean 0: sums of four uniform
/// numbers, each a pure function of seed and position.
template <class View>
void fill_normal(const View& view, std::uint64_t seed, double deviation) {
  using value_type = typename View::non_const_value_type;
  auto* data = view.data();
  Kokkos::parallel_for(
      "bench::fill_normal", Kokkos::RangePolicy<Kokkos::OpenMP>(0, view.size()),
      [=](const std::int64_t i) {
        // SplitMix64's output function; its bits are cut into four 16-bit numbers.
        std::uint64_t bits = (seed << 40) + static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15ULL;
        bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
        bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebULL;
        bits ^= bits >> 31;
        double sum = 0;
        for (int part = 0; part < 4; ++part)
          sum += static_cast<double>((bits >> (16 * part)) & 0xffff);
        const double standard = (sum / 65535.0 - 2.0) * std::sqrt(3.0);
        data[i] = static_cast<value_type>(static_cast<float>(standard * deviation));
      });
}

/// Logits that softmax_top_k turns into exactly the counts of a skew, and the order that follows.
template <class Real>
struct routed_tokens {
  skew kind;
  std::vector<std::int64_t> counts;        // (E)
  matrix<Real> logits;                     // (T, E)
  vector<lrmoe::index_type> offsets;       // (E+1)
  vector<lrmoe::index_type> token_of_row;  // (P)

  routed_tokens(const skew& wanted, std::int64_t T, std::int64_t E, std::int64_t K)
      : kind(wanted),
        counts(wanted.counts(T, E, K)),
        logits("logits", T, E),
        offsets("offsets", E + 1),
        token_of_row("token_of_row", T * K) {
    const auto experts = assign_experts(counts, T, K);
    // Chosen experts are 4 above the rest on average and 2.5 at least, and differ among themselves.
    fill_normal(logits, 1, 0.2);
    for (std::int64_t p = 0; p < T * K; ++p)
      logits(p / K, experts[static_cast<std::size_t>(p)]) += Real(4);
    for (std::int64_t e = 0; e < E; ++e) {
      offsets(e + 1) =
          offsets(e) + static_cast<lrmoe::index_type>(counts[static_cast<std::size_t>(e)]);
    }
    std::vector<lrmoe::index_type> next(offsets.data(), offsets.data() + E);
    for (std::int64_t p = 0; p < T * K; ++p) {
      token_of_row(next[static_cast<std::size_t>(experts[static_cast<std::size_t>(p)])]++) =
          static_cast<lrmoe::index_type>(p / K);
    }
  }
};

/// Everything that the layer reads and writes, of one element type.
template <class Element>
struct layer_problem {
  using real = lrmoe::accumulate_t<Element>;

  lrmoe::layer_shape shape;
  std::int64_t T;
  matrix<Element> x, d_out, out, dx;  // (T, D)
  matrix<real> d_logits;              // (T, E)
  tensor<Element> gate_up, down;      // (E, D, 2F), (E, F, D)
  tensor<Element> shared_gate_up, shared_down;
  tensor<real> d_gate_up, d_down, d_shared_gate_up, d_shared_down;

  layer_problem(const lrmoe::layer_shape& layer, std::int64_t tokens)
      : shape(layer),
        T(tokens),
        x("x", T, shape.D),
        d_out("d_out", T, shape.D),
        out("out", T, shape.D),
        dx("dx", T, shape.D),
        d_logits("d_logits", T, shape.E),
        gate_up("gate_up", shape.E, shape.D, 2 * shape.F),
        down("down", shape.E, shape.F, shape.D),
        shared_gate_up("shared_gate_up", shared(), shape.D, 2 * shape.F_shared),
        shared_down("shared_down", shared(), shape.F_shared, shape.D),
        d_gate_up("d_gate_up", shape.E, shape.D, 2 * shape.F),
        d_down("d_down", shape.E, shape.F, shape.D),
        d_shared_gate_up("d_shared_gate_up", shared(), shape.D, 2 * shape.F_shared),
        d_shared_down("d_shared_down", shared(), shape.F_shared, shape.D) {
    fill_normal(x, 2, 1.0);
    fill_normal(d_out, 3, 1.0);
    fill_normal(gate_up, 4, 1.0 / std::sqrt(shape.D));
    fill_normal(down, 5, 1.0 / std::sqrt(shape.F));
    fill_normal(shared_gate_up, 6, 1.0 / std::sqrt(shape.D));
    fill_normal(shared_down, 7, 1.0 / std::sqrt(shape.F));
  }

  lrmoe::expert_weights<Element, host_device> weights() const {
    return {gate_up, down, shared_gate_up, shared_down};
  }
  lrmoe::expert_gradients<real, host_device> gradients() const {
    return {d_gate_up, d_down, d_shared_gate_up, d_shared_down};
  }

  /// FLOPs of forward's products.
  double forward_flops() const {
    return 6.0 * static_cast<double>(T) * static_cast<double>(shape.D) *
           static_cast<double>(shape.K * shape.F + shape.F_shared);
  }

 private:
  std::int64_t shared() const { return shape.F_shared > 0 ? 1 : 0; }
};

}  // namespace bench
