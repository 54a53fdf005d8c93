// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>

#include <lrmoe/backend.hpp>
#include <lrmoe/compaction/segment_order.hpp>
#include <lrmoe/control/score_history.hpp>
#include <lrmoe/exchange/row_kernels.hpp>
#include <lrmoe/memory/expert_works.hpp>
#include <lrmoe/memory/memory_use.hpp>
#include <lrmoe/report.hpp>
#include <lrmoe/routing/gradient_sketch.hpp>

namespace lrmoe {

/// Bytes that one layer holds at the peak of a call, its context's workspace included: exactly what
/// the ledger of a fresh context shows after it. A model adds up token buffers and saved activations of
/// its layers and holds one workspace, buffer by buffer the largest. Weights, gradients and optimizer
/// state are the caller's.
/// Cost      about a hundred integer operations
template <class Element, backend Backend>
memory_use layer_memory(const typename Backend::execution_space& space, const layer_shape& shape,
                        const layer_call& call) {
  const auto bytes = [](std::int64_t count, std::size_t each) {
    return count * static_cast<std::int64_t>(each);
  };
  const auto elements = [&](std::int64_t count) { return bytes(count, sizeof(Element)); };
  const auto reals = [&](std::int64_t count) {
    return bytes(count, sizeof(accumulate_t<Element>));
  };
  const auto indices = [&](std::int64_t count) { return bytes(count, sizeof(index_type)); };
  const auto floats = [&](std::int64_t count) { return bytes(count, sizeof(float)); };
  const auto& [D, F, E, K, F_shared] = shape;
  const std::int64_t T = call.T, N = call.pairs, P = T * K;
  const std::int64_t M = call.backward ? call.kept : 0;
  const std::int64_t here = call.pairs_here(), H = call.segments > 0 ? call.segments : E;
  const std::int64_t kept_here = call.backward ? call.kept_here() : 0;
  // Kept pairs that move may make backward the larger pass of a rank.
  const std::int64_t most = std::max(here, kept_here);
  const exchange_sizes& carried = call.exchange;
  const std::int64_t T_shared = F_shared > 0 ? T : 0;

  memory_use use;
  auto& buffers = use[memory_category::token_buffers];
  auto& saved = use[memory_category::saved_activations];
  auto& scratch = use[memory_category::workspace];
  buffers = indices(P) + reals(P)                                      // routing
            + indices(E + 1 + 3 * P) + bytes(1, sizeof(std::int64_t))  // order, verdict
            + indices(E + 1) + bytes(1, sizeof(std::int64_t))          // of these, for the host
            + indices(F_shared > 0 ? 2 : 0);
  scratch = indices(expert_sorter<typename Backend::device_type>::counters(P, E)) +
            elements(most * D) + elements(T_shared * D)          // rows of y, later of dx
            + elements(std::max(most * F, T_shared * F_shared))  // h
            + Backend::expert_operations::template scratch_bytes<Element>(
                  space, expert_works(shape, call));
  if (!call.by_expert)
    buffers += indices(segment_sorter<typename Backend::device_type>::words(H) + 2 * N);
  // Rows of x here, each with its place, and rows to be sent and received on both sides.
  const std::int64_t x_here = carried.here + carried.moved_here;
  const bool x_stays = call.backward && call.saved != saved_activations::proxy;
  if (carried.many) {
    buffers += indices(carried.words + x_here);
    (x_stays ? saved : scratch) += elements(x_here * D);
    scratch += elements((std::max(N, M) + most) * D);
  }
  if (!call.backward) return use;

  if (carried.many) {
    buffers += reals(kept_here) + floats(kept_here);  // weights and factors
    if (!x_stays) saved += elements(kept_here * D);
    scratch += floats(2 * carried.here)                                            // ||h||
               + bytes(M + kept_here, sizeof(kept_header<accumulate_t<Element>>))  // announced
               + indices(3 * kept_here) + reals(2 * kept_here);
    if (carried.moves) {
      const bool with_pre = call.saved != saved_activations::recompute;
      scratch += indices(M + carried.listed + carried.listed_here + carried.moved_away) +
                 floats(M) + elements(carried.moved_away * (D + (with_pre ? 2 * F : 0)));
    }
  }
  buffers += indices(H + 1 + M) + floats(M + N)     // selection
             + bytes(2, sizeof(report_totals));     // on the device and for the host
  saved += floats(N) + elements(T * 2 * F_shared);  // ||h||, shared g, u
  scratch += elements(std::max(kept_here * 2 * F, T_shared * 2 * F_shared))      // [dg du]
             + indices(M) + reals(M) + indices(P)                                // kept pairs
             + reals(M + P);                                                     // dw
  if (!Backend::expert_operations::gathers) scratch += elements(kept_here * D);  // packed dO
  if (call.scores) {
    buffers += bytes(H, sizeof(certificate));
    scratch += floats(T + 2 * N);  // gradient norms, sizes, contributions
  }
  if (call.variance) {
    const std::int64_t drawn = carried.many ? kept_here : std::max(call.kept_dx, call.kept_dw);
    scratch += floats(call.x_rows()) + bytes(drawn, sizeof(double));
  }
  if (call.history) buffers += indices(2 * H * size_bins::count);

  const std::int64_t dropped = call.router == router_gradient::exact ? N - M : 0;
  switch (call.saved) {
    case saved_activations::save:
      saved += elements((here + carried.moved_here) * 2 * F);
      break;
    case saved_activations::recompute:
      scratch += elements(std::max(kept_here, dropped) * 2 * F);
      break;
    case saved_activations::proxy:
      saved += elements(kept_here * 2 * F);
      scratch += elements((here + carried.moved_here) * 2 * F);  // before the kept rows are chosen
      break;
  }
  if (call.router == router_gradient::exact) {
    scratch += indices(E + 1 + 2 * dropped) + reals(dropped);
  }
  if (call.router == router_gradient::sketch) {
    saved += reals(N * call.sketch_size);
    scratch +=
        reals(T * call.sketch_size) + reals(D * sketch_block * sketch_blocks(call.sketch_size));
  }
  const bool dx_drawn = call.kept_dx < M, dw_drawn = call.kept_dw < M;
  const auto second_draw = [&](std::int64_t S) {
    buffers += indices(E + 1 + S) + floats(S + M);
    scratch += indices(S);
  };
  if (dx_drawn) {
    second_draw(call.kept_dx);
    scratch += indices(P);
  }
  if (dw_drawn) {
    second_draw(call.kept_dw);
    scratch += bytes(E, sizeof(certificate));
  }
  if (dx_drawn || dw_drawn) scratch += floats(2 * M + std::max(call.kept_dx, call.kept_dw));
  return use;
}

}  // namespace lrmoe
