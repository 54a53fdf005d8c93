// One global problem, its tokens dealt out to the ranks of a communicator: every rank runs a layer on its
// own, and the results of all are put together and compared with the oracle of the whole.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>
#include <utility>
#include <vector>

#include <lrmoe/exchange/collectives.hpp>
#include <lrmoe/lrmoe.hpp>

#include "layer_harness.hpp"

namespace ranks_test {

using fixture::array;
using fixture::device;
using layer_test::problem;
using lrmoe::index_type;
using oracle::integer;

/// Which rank holds which experts, and how pairs are split, by chance: anything that a planner may do.
/// Reads nothing but the step, so that it may be any planner's stand-in.
struct random_planner {
  std::uint64_t seed = 0;

  void validate() const {}
  lrmoe::planner_attributes attributes() const { return {.name = "random", .exact = true}; }

  void plan(const lrmoe::placement_request& request, lrmoe::placement_plan& to) const {
    const auto R = request.R, S = request.S, E = request.E;
    fixture::random draw(seed + request.step);
    std::vector<index_type> slots(static_cast<std::size_t>(R * S), lrmoe::no_expert);
    std::vector<integer> order(slots.size());
    std::iota(order.begin(), order.end(), integer{0});
    for (std::size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1],
                order[static_cast<std::size_t>(draw.integer(0, static_cast<integer>(i) - 1))]);
    for (integer i = 0; i < R * S; ++i) {
      // Every expert once, then replicas of any, then empty slots.
      const auto slot = static_cast<std::size_t>(order[static_cast<std::size_t>(i)]);
      if (i < E)
        slots[slot] = static_cast<index_type>(i);
      else if (draw.integer(0, 3) > 0)
        slots[slot] = static_cast<index_type>(draw.integer(0, E - 1));
    }
    to.replicas = lrmoe::placement(R, S, E, std::move(slots));
    to.loads.clear();
  }
  void split(const lrmoe::placement_request& request, const lrmoe::placement_plan& plan,
             std::span<index_type> split) const {
    fixture::random draw(seed + request.step + 1);
    const auto& placed = plan.replicas;
    const auto H = static_cast<std::size_t>(placed.replicas());
    std::fill(split.begin(), split.end(), 0);
    for (integer s = 0; s < request.R; ++s) {
      for (integer e = 0; e < request.E; ++e) {
        const auto first = placed.offsets()[static_cast<std::size_t>(e)];
        const auto holders = static_cast<integer>(placed.holders(e).size());
        for (index_type n = request.source_counts[static_cast<std::size_t>(s * request.E + e)];
             n > 0; --n) {
          ++split[static_cast<std::size_t>(s) * H +
                  static_cast<std::size_t>(first + draw.integer(0, holders - 1))];
        }
      }
    }
  }
};

/// A layer whose pairs change their ranks.
using moving_policies =
    lrmoe::policies<lrmoe::softmax_top_k, lrmoe::fixed_fraction, lrmoe::lrm_score,
                    layer_test::any_estimator, random_planner>;

/// Results of all ranks together.
struct results {
  std::vector<double> out, dx, d_logits;   // (T, .)
  std::vector<double> gate_up, down;       // (E, ., .), summed over replicas
  std::vector<double> of_slots;            // gradients of this rank's slots, empty ones too
  std::vector<double> coefficients;        // (T K)
  std::vector<fixture::byte_string> bits;  // of this rank
  lrmoe::backward_report report;           // of this rank
  integer moved = 0;                       // kept pairs that changed their rank, of all ranks
  integer pairs_kept = 0, bytes_sent = 0;  // in backward, of all ranks
  integer bytes_planned = 0;               // by the plan, where forward saves activations
  bool guards_intact = true, memory_as_planned = true;
  std::string memory;  // what was planned and found
};

/// Token at which each rank's share begins, (R+1).
inline std::vector<integer> deal(fixture::random& draw, integer T, integer R) {
  std::vector<integer> first(static_cast<std::size_t>(R) + 1, 0);
  for (std::size_t r = 1; r + 1 < first.size(); ++r) first[r] = draw.integer(0, T);
  first.back() = T;
  std::sort(first.begin(), first.end());
  return first;
}

template <class T>
std::vector<T> rows(const std::vector<T>& of, integer first, integer last, integer columns) {
  return std::vector<T>(of.begin() + first * columns, of.begin() + last * columns);
}

/// Runs `steps` forward and backward passes of this rank's tokens and returns the last one's results.
/// Gradients are zero before each, or NaN when they are overwritten.
template <class Element, class Policies, class Communicator>
results run(Communicator& joined, const problem& p, const std::vector<integer>& first,
            const Policies& policies, integer S, integer steps = 1, bool refused_before = false,
            lrmoe::gradient_update update = lrmoe::gradient_update::add) {
  using real = lrmoe::accumulate_t<Element>;
  using backend = lrmoe::with_ranks<layer_test::backend, Communicator>;
  const auto& shape = p.in.shape;
  const integer R = joined.size(), rank = joined.rank(), D = shape.D, F = shape.F, E = shape.E,
                K = shape.K;
  const integer t0 = first[static_cast<std::size_t>(rank)],
                t1 = first[static_cast<std::size_t>(rank) + 1], T = t1 - t0;
  const integer groups = R == 1 ? E : S;

  lrmoe::context<backend> context(std::move(joined));
  lrmoe::moe_layer<Element, backend, Policies> layer(context, {D, F, E, K, shape.F_shared},
                                                     policies, 7);

  const array<Element> x(rows(p.in.x, t0, t1, D)), d_out(rows(p.d_out, t0, t1, D));
  const array<real> logits(rows(p.logits, t0, t1, E));
  const array<Element> gate_up(groups * D * 2 * F), down(groups * F * D);
  const array<Element> shared_gate_up(p.in.shared_gate_up), shared_down(p.in.shared_down);
  const auto fill_slots = [&](const lrmoe::placement& placed) {
    const auto slots = [&](const std::vector<double>& experts, integer size) {
      std::vector<double> values(static_cast<std::size_t>(groups * size), NAN);
      for (integer g = 0; g < groups; ++g) {
        const index_type e = placed.expert_of_slot()[static_cast<std::size_t>(rank * groups + g)];
        if (e >= 0) std::copy_n(experts.begin() + e * size, size, values.begin() + g * size);
      }
      return values;
    };
    gate_up.set(slots(p.in.gate_up, D * 2 * F));
    down.set(slots(p.in.down, F * D));
  };
  fill_slots(layer.first_placement(groups));
  layer.set_weight_mover(fill_slots);
  lrmoe::expert_weights<Element, device> weights;
  weights.gate_up = gate_up.tensor(groups, D, 2 * F);
  weights.down = down.tensor(groups, F, D);
  if (shape.F_shared > 0) {
    weights.shared_gate_up = shared_gate_up.tensor(1, D, 2 * shape.F_shared);
    weights.shared_down = shared_down.tensor(1, shape.F_shared, D);
  }

  array<Element> out(T * D), dx(T * D);
  array<real> d_logits(T * E), d_gate_up, d_down;
  results found;
  if (refused_before) {
    // The first rank cannot hold the call, so that nobody's weights move.
    if (rank == 0) context.memory.set_budget_bytes(layer.planned_memory().total() + 20000);
    CHECK_THROWS_AS(
        layer.forward(99, x.matrix(T, D), lrmoe::router_logits<real, device>(logits.matrix(T, E)),
                      weights, out.matrix(T, D)),
        lrmoe::error);
    context.memory.set_budget_bytes(0);
  }
  for (integer step = 0; step < steps; ++step) {
    out.poison(), dx.poison(), d_logits.poison();
    d_gate_up = array<real>(std::vector<double>(static_cast<std::size_t>(groups * D * 2 * F), 0.0));
    d_down = array<real>(std::vector<double>(static_cast<std::size_t>(groups * F * D), 0.0));
    if (update == lrmoe::gradient_update::overwrite) d_gate_up.poison(), d_down.poison();
    lrmoe::expert_gradients<real, device> gradients;
    gradients.gate_up = d_gate_up.tensor(groups, D, 2 * F);
    gradients.down = d_down.tensor(groups, F, D);
    context.scratch.fill_bytes(context.space, 0xff);
    layer.forward(static_cast<std::uint64_t>(step), x.matrix(T, D),
                  lrmoe::router_logits<real, device>(logits.matrix(T, E)), weights,
                  out.matrix(T, D));
    context.scratch.fill_bytes(context.space, 0xff);
    layer.backward(d_out.matrix(T, D), weights, dx.matrix(T, D), d_logits.matrix(T, E), gradients,
                   update);
    found.report = layer.report();
  }

  found.guards_intact = out.guards_intact() && dx.guards_intact() && d_logits.guards_intact() &&
                        d_gate_up.guards_intact() && d_down.guards_intact();
  found.of_slots = d_gate_up.values();
  const std::vector<double> down_of_slots = d_down.values();
  found.of_slots.insert(found.of_slots.end(), down_of_slots.begin(), down_of_slots.end());
  found.bits = {out.bits(), dx.bits(), d_logits.bits(), d_gate_up.bits(), d_down.bits()};

  const auto planned = layer.planned_memory();
  std::ostringstream memory;
  for (std::size_t i = 0; i < lrmoe::num_memory_categories; ++i) {
    const auto category = static_cast<lrmoe::memory_category>(i);
    memory << lrmoe::name_of(category) << " " << planned[category] << " planned, "
           << context.memory.live_bytes(category) << " held; ";
    // Buffers keep the largest size of all calls.
    const auto held = context.memory.live_bytes(category);
    found.memory_as_planned =
        found.memory_as_planned &&
        (steps == 1 && !refused_before ? planned[category] == held : planned[category] <= held);
  }
  found.memory = memory.str();

  // What all ranks together send in backward, counted from the plan.
  const auto& replicas = layer.last_replica_plan();
  std::vector<index_type> staying(replicas.quotas);
  integer remote = 0, moved_bytes = 0;
  for (const auto& move : replicas.moves) {
    const auto from = replicas.rank[static_cast<std::size_t>(move.from)];
    staying[static_cast<std::size_t>(move.source * replicas.H + move.from)] -= move.count;
    found.moved += move.count;
    remote += replicas.rank[static_cast<std::size_t>(move.to)] == move.source ? 0 : move.count;
    moved_bytes += move.count * ((from == move.source ? 0 : 4) +
                                 (D + 2 * F) * static_cast<integer>(sizeof(Element)));
  }
  for (integer s = 0; s < R; ++s) {
    for (integer h = 0; h < replicas.H; ++h) {
      if (replicas.rank[static_cast<std::size_t>(h)] != s)
        remote += staying[static_cast<std::size_t>(s * replicas.H + h)];
    }
  }
  found.bytes_planned =
      remote * static_cast<integer>(2 * static_cast<std::size_t>(D) * sizeof(Element) +
                                    sizeof(lrmoe::kept_header<real>) + sizeof(real)) +
      moved_bytes;
  found.bytes_sent = lrmoe::sum_over_ranks(context.ranks, found.report.bytes_sent);
  found.pairs_kept = lrmoe::sum_over_ranks(context.ranks, found.report.pairs_kept);

  // Everything of everyone, as sums over ranks of what each knows.
  const auto place = [&](const std::vector<double>& own, integer columns) {
    std::vector<double> all(static_cast<std::size_t>(shape.T * columns), 0.0);
    std::copy(own.begin(), own.end(), all.begin() + t0 * columns);
    return all;
  };
  found.out = place(out.values(), D);
  found.dx = place(dx.values(), D);
  found.d_logits = place(d_logits.values(), E);
  std::vector<double> own_coefficients(static_cast<std::size_t>(T * K), 0.0);
  const auto pair_of_row = fixture::host_copy(layer.last_order().pair_of_row);
  const auto kept_rows = fixture::host_copy(layer.last_selection().rows);
  const auto factors = fixture::host_copy(layer.last_selection().factors);
  for (std::size_t m = 0; m < kept_rows.size(); ++m)
    own_coefficients[static_cast<std::size_t>(
        pair_of_row[static_cast<std::size_t>(kept_rows[m])])] = static_cast<double>(factors[m]);
  found.coefficients = place(own_coefficients, K);
  found.gate_up.assign(static_cast<std::size_t>(E * D * 2 * F), 0.0);
  found.down.assign(static_cast<std::size_t>(E * F * D), 0.0);
  const auto& placed = layer.last_placement();
  const auto add = [&](std::vector<double>& sums, const std::vector<double>& slots, integer size) {
    for (integer g = 0; g < groups; ++g) {
      const index_type e = placed.expert_of_slot()[static_cast<std::size_t>(rank * groups + g)];
      if (e < 0) continue;
      for (integer i = 0; i < size; ++i)
        sums[static_cast<std::size_t>(e * size + i)] +=
            slots[static_cast<std::size_t>(g * size + i)];
    }
  };
  add(found.gate_up, d_gate_up.values(), D * 2 * F);
  add(found.down, d_down.values(), F * D);
  std::vector<double> gathered;
  for (auto* values :
       {&found.out, &found.dx, &found.d_logits, &found.gate_up, &found.down, &found.coefficients})
    lrmoe::sum_over_ranks(context.ranks, std::span<double>(*values), gathered);
  joined = std::move(context.ranks);
  return found;
}

/// Compares the results of all ranks with the oracle of the whole problem.
inline void check_results(const problem& p, const results& found) {
  const auto& rules = p.in.rules;
  const auto at = oracle::forward(p.in);
  check::check_close("out", found.out, at.out);
  const auto exact = oracle::backward(p.in, at, p.d_out, found.coefficients);
  check::check_close("dx", found.dx, exact.dx);
  const auto from_zero = [&](const oracle::tensor& gradient) {
    return oracle::accumulated(rules, gradient, std::vector<double>(gradient.data.size(), 0.0));
  };
  check::check_close("d_gate_up", found.gate_up, from_zero(exact.gate_up));
  check::check_close("d_down", found.down, from_zero(exact.down));
  check::check_close("d_logits", found.d_logits,
                     oracle::softmax_top_k_backward(rules, p.routed, exact.d_weights, true));
}

}  // namespace ranks_test
