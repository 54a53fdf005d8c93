// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
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

template <class T, class Device = host_device>
using vector = lrmoe::vector_view<T, Device>;
template <class T, class Device = host_device>
using matrix = lrmoe::matrix_view<T, Device>;
template <class T, class Device = host_device>
using tensor = lrmoe::tensor_view<T, Device>;

/// Indices into views of more than 2^32 values.
template <class View>
using all_values =
    Kokkos::RangePolicy<typename View::execution_space, Kokkos::IndexType<std::int64_t>>;
template <class View>
all_values<View> values_of(const View& view) {
  return {0, static_cast<std::int64_t>(view.size())};
}

/// The view where the host can read and write it: itself, or a copy.
template <class View>
auto host_copy(const View& view) {
  return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace{}, view);
}

/// A device copy of numbers on the host.
template <class Device>
vector<lrmoe::index_type, Device> device_copy(const std::string& label,
                                              const std::vector<lrmoe::index_type>& values) {
  vector<lrmoe::index_type, Device> copy(label, values.size());
  const auto mirror = Kokkos::create_mirror_view(copy);
  std::copy(values.begin(), values.end(), mirror.data());
  Kokkos::deep_copy(copy, mirror);
  return copy;
}

/// Fills a view with bell-shaped values of this standard deviation and mean 0: sums of four uniform
/// numbers, each a pure function of seed and position, the same on every device. A part of a larger view gets
/// the values it has there when `first` is its position.
template <class View>
void fill_normal(const View& view, std::uint64_t seed, double deviation, std::int64_t first = 0) {
  using value_type = typename View::non_const_value_type;
  auto* data = view.data();
  Kokkos::parallel_for(
      "bench::fill_normal", values_of(view), KOKKOS_LAMBDA(const std::int64_t i) {
        // SplitMix64's output function; its bits are cut into four 16-bit numbers.
        std::uint64_t bits =
            (seed << 40) + static_cast<std::uint64_t>(first + i) * 0x9e3779b97f4a7c15ULL;
        bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
        bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebULL;
        bits ^= bits >> 31;
        double sum = 0;
        for (int part = 0; part < 4; ++part)
          sum += static_cast<double>((bits >> (16 * part)) & 0xffff);
        const double standard = (sum / 65535.0 - 2.0) * Kokkos::sqrt(3.0);
        data[i] = static_cast<value_type>(static_cast<float>(standard * deviation));
      });
}

/// Values of a view that are infinite or not a number.
template <class View>
std::int64_t count_not_finite(const View& view) {
  using value_type = typename View::non_const_value_type;
  const auto* data = view.data();
  std::int64_t bad = 0;
  Kokkos::parallel_reduce(
      "bench::count_not_finite", values_of(view),
      KOKKOS_LAMBDA(const std::int64_t i, std::int64_t& sum) {
        sum += Kokkos::isfinite(static_cast<lrmoe::accumulate_t<value_type>>(data[i])) ? 0 : 1;
      },
      bad);
  return bad;
}

/// Logits that softmax_top_k turns into exactly the counts of a skew, and the order that follows. Made on
/// the host, then copied.
template <class Real, class Device = host_device>
struct routed_tokens {
  using index_type = lrmoe::index_type;

  skew kind;
  std::vector<std::int64_t> counts;         // (E)
  std::vector<index_type> host_offsets;     // (E+1)
  matrix<Real, Device> logits;              // (T, E)
  vector<index_type, Device> offsets;       // (E+1)
  vector<index_type, Device> token_of_row;  // (P)
  vector<index_type, Device> row_of_pair;   // (P)

  routed_tokens(const skew& wanted, std::int64_t T, std::int64_t E, std::int64_t K)
      : kind(wanted), counts(wanted.counts(T, E, K)), host_offsets{0}, logits("logits", T, E) {
    const auto experts = assign_experts(counts, T, K);
    // Chosen experts are 4 above the rest on average and 2.5 at least, and differ among themselves.
    fill_normal(logits, 1, 0.2);
    const auto host_logits = host_copy(logits);
    for (std::int64_t p = 0; p < T * K; ++p)
      host_logits(p / K, experts[static_cast<std::size_t>(p)]) += Real(4);
    Kokkos::deep_copy(logits, host_logits);
    for (const auto count : counts)
      host_offsets.push_back(host_offsets.back() + static_cast<index_type>(count));
    std::vector<index_type> next(host_offsets), tokens(experts.size()), rows(experts.size());
    for (std::size_t p = 0; p < experts.size(); ++p) {
      rows[p] = next[static_cast<std::size_t>(experts[p])]++;
      tokens[static_cast<std::size_t>(rows[p])] =
          static_cast<index_type>(static_cast<std::int64_t>(p) / K);
    }
    offsets = device_copy<Device>("offsets", host_offsets);
    token_of_row = device_copy<Device>("token_of_row", tokens);
    row_of_pair = device_copy<Device>("row_of_pair", rows);
  }

  /// All pairs as rows, grouped by expert.
  lrmoe::row_groups<Device> groups() const { return {offsets, host_offsets}; }
};

/// Everything that the layer reads and writes, of one element type.
template <class Element, class Device = host_device>
struct layer_problem {
  using real = lrmoe::accumulate_t<Element>;
  template <class T>
  using matrix = bench::matrix<T, Device>;
  template <class T>
  using tensor = bench::tensor<T, Device>;

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

  lrmoe::expert_weights<Element, Device> weights() const {
    return {gate_up, down, shared_gate_up, shared_down};
  }
  lrmoe::expert_gradients<real, Device> gradients() const {
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
