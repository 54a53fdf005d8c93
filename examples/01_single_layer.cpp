// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One MoE layer: complete forward, backward of a quarter of the token-expert pairs, the report.
#include <iostream>

#include <Kokkos_Random.hpp>

#include <lrmoe/lrmoe.hpp>
#include <lrmoe/openmp/backend.hpp>

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  using backend = lrmoe::openmp::backend<>;
  using matrix = lrmoe::matrix_view<float, backend::device_type>;
  using tensor = lrmoe::tensor_view<float, backend::device_type>;

  const int T = 1024, D = 64, F = 96, E = 8, K = 2;
  const matrix x("x", T, D), logits("logits", T, E), out("out", T, D), d_out("d_out", T, D);
  const tensor gate_up("gate_up", E, D, 2 * F), down("down", E, F, D);
  Kokkos::Random_XorShift64_Pool<Kokkos::OpenMP> random(1);
  for (const auto& view : {x, logits, d_out}) Kokkos::fill_random(view, random, -1.0f, 1.0f);
  for (const auto& view : {gate_up, down}) Kokkos::fill_random(view, random, -0.1f, 0.1f);

  lrmoe::context<backend> context;
  const lrmoe::policies<> policies{.quota = {.keep = 0.25}, .estimator = {.seed = 1}};
  lrmoe::moe_layer<float, backend> layer(context, {.D = D, .F = F, .E = E, .K = K}, policies);

  const matrix dx("dx", T, D), d_logits("d_logits", T, E);
  const tensor d_gate_up("d_gate_up", E, D, 2 * F), d_down("d_down", E, F, D);
  const std::uint64_t step = 0;
  layer.forward(step, x, logits, {gate_up, down}, out);
  layer.backward(d_out, {gate_up, down}, dx, d_logits, {d_gate_up, d_down});
  std::cout << layer.report();
}
