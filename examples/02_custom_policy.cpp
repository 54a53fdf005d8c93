// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A quota policy and a scorer of one's own, plugged into the layer. Explained in
// docs/write_a_policy.md.
#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <random>
#include <span>

#include <lrmoe/lrmoe.hpp>
#include <lrmoe/openmp/backend.hpp>

/// The same fraction of every expert's pairs, but no expert keeps more than `peak` times the mean:
///   q[e] = min(ceil(keep L[e]), max(1, floor(peak keep sum(L) / E)))
/// Bounds the backward load of the busiest expert when routing is skewed.
struct peak_capped_fraction {
  double keep = 0.5;  ///< in (0, 1]
  double peak = 1.5;  ///< at least 1

  void validate() const {
    lrmoe::require(keep > 0.0 && keep <= 1.0, "peak_capped_fraction: keep = ", keep,
                   " is outside (0, 1]: keep at least some pairs of every expert");
    lrmoe::require(peak >= 1.0, "peak_capped_fraction: peak = ", peak,
                   " is below 1: the busiest expert cannot keep less than the mean");
  }

  static constexpr bool uses_history() { return false; }

  void assign(const lrmoe::quota_request& request, std::span<lrmoe::index_type> quotas) const {
    double total = 0;
    for (const auto L : request.counts) total += L;
    const double cap = std::max(1.0, std::floor(peak * keep * total / double(quotas.size())));
    for (std::size_t e = 0; e < quotas.size(); ++e) {
      const double share = std::ceil(keep * request.counts[e]);
      quotas[e] = static_cast<lrmoe::index_type>(std::min(share, cap));
    }
  }
};

/// Size of a pair = (|w_p| ||dO_t|| ||h_p||)^exponent: 1 is the LRM score, 0 treats all pairs alike.
struct tempered_score {
  float exponent = 0.5F;

  KOKKOS_FUNCTION float size(const lrmoe::pair_features& pair) const {
    return Kokkos::pow(lrmoe::lrm_score{}.size(pair), exponent);
  }
};

// What the compiler can check of the contracts; the laws beside the concepts are the author's part.
static_assert(lrmoe::quota<peak_capped_fraction>);
static_assert(lrmoe::scorer<tempered_score>);

using backend = lrmoe::openmp::backend<>;
using device = backend::device_type;
using matrix = lrmoe::matrix_view<float, device>;
using tensor = lrmoe::tensor_view<float, device>;

namespace {

constexpr int T = 1024, D = 64, F = 96, E = 8, K = 2;

struct problem {
  matrix x{"x", T, D}, logits{"logits", T, E}, d_out{"d_out", T, D};
  tensor gate_up{"gate_up", E, D, 2 * F}, down{"down", E, F, D};

  problem() {
    std::mt19937 engine(1);
    const auto fill = [&](const auto& view, float scale) {
      for (std::size_t i = 0; i < view.size(); ++i) {
        view.data()[i] = scale * (static_cast<float>(engine() >> 8) * 0x1p-23F - 1.0F);
      }
    };
    fill(x, 1.0F);
    fill(logits, 1.0F);
    fill(d_out, 1.0F);
    fill(gate_up, 0.3F);
    fill(down, 0.3F);
    // As in a trained model, few tokens have a large gradient, and expert 0 is in demand.
    for (int t = 0; t < T; ++t) {
      const float scale = std::pow(static_cast<float>(engine() >> 8) * 0x1p-24F, 2.0F);
      for (int d = 0; d < D; ++d) d_out(t, d) *= scale;
      logits(t, 0) += 0.5F;
    }
  }
};

template <class Policies>
void run(const char* title, const problem& given, const Policies& policies) {
  lrmoe::context<backend> context;
  lrmoe::moe_layer<float, backend, Policies> layer(context, {.D = D, .F = F, .E = E, .K = K},
                                                   policies);
  const matrix out("out", T, D), dx("dx", T, D), d_logits("d_logits", T, E);
  const tensor d_gate_up("d_gate_up", E, D, 2 * F), d_down("d_down", E, F, D);
  layer.forward(0, given.x, given.logits, {given.gate_up, given.down}, out);
  layer.backward(given.d_out, {given.gate_up, given.down}, dx, d_logits, {d_gate_up, d_down});

  const auto& plan = layer.last_plan();
  std::cout << title << "\nexpert  pairs  quota\n";
  for (int e = 0; e < E; ++e) {
    const auto expert = static_cast<std::size_t>(e);
    std::cout << std::setw(6) << e << std::setw(7) << plan.counts[expert] << std::setw(7)
              << plan.quotas[expert] << '\n';
  }
  std::cout << layer.report() << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  const problem given;
  run("fixed_fraction, lrm_score", given, lrmoe::policies<>{.quota = {.keep = 0.5}});
  run("peak_capped_fraction, lrm_score", given,
      lrmoe::policies<lrmoe::softmax_top_k, peak_capped_fraction>{
          .quota = {.keep = 0.5, .peak = 1.1}});
  run("peak_capped_fraction, tempered_score", given,
      lrmoe::policies<lrmoe::softmax_top_k, peak_capped_fraction, tempered_score>{
          .quota = {.keep = 0.5, .peak = 1.1}, .scorer = {.exponent = 0.5F}});
}
