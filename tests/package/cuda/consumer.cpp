// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A layer on a GPU, in a source whose name says C++.
#include <iostream>

#include <lrmoe/cuda/backend.hpp>
#include <lrmoe/lrmoe.hpp>

// Every kernel of the backend, in the other type that it is made for.
template class lrmoe::moe_layer<lrmoe::bfloat16, lrmoe::cuda::backend<>>;

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  using backend = lrmoe::cuda::backend<>;
  using matrix = lrmoe::matrix_view<float, backend::device_type>;
  using tensor = lrmoe::tensor_view<float, backend::device_type>;

  const int T = 64, D = 32, F = 16, E = 4, K = 2;
  const matrix x("x", T, D), logits("logits", T, E), out("out", T, D), d_out("d_out", T, D);
  const tensor gate_up("gate_up", E, D, 2 * F), down("down", E, F, D);
  const Kokkos::RangePolicy<Kokkos::Cuda> rows(0, T);
  Kokkos::parallel_for(
      "fill", rows, KOKKOS_LAMBDA(const int t) { x(t, t % D) = d_out(t, t % D) = 1; });

  lrmoe::context<backend> context;
  lrmoe::moe_layer<float, backend> layer(context, {.D = D, .F = F, .E = E, .K = K},
                                         lrmoe::policies<>{});
  const matrix dx("dx", T, D), d_logits("d_logits", T, E);
  const tensor d_gate_up("d_gate_up", E, D, 2 * F), d_down("d_down", E, F, D);
  layer.forward(0, x, logits, {gate_up, down}, out);
  layer.backward(d_out, {gate_up, down}, dx, d_logits, {d_gate_up, d_down});
  std::cout << layer.report();
}
