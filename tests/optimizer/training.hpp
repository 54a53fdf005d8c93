// Steps of an expert_optimizer on logical ranks, beside plain bookkeeping of what must come out.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <lrmoe/exchange/logical.hpp>
#include <lrmoe/openmp/backend.hpp>
#include <lrmoe/optimizer/expert_optimizer.hpp>
#include <lrmoe/optimizer/sharded_state.hpp>

#include "catch.hpp"
#include "fixture.hpp"

namespace training {

using fixture::array;
using fixture::device;
using lrmoe::index_type;
using oracle::integer;
using logical_backend = lrmoe::with_ranks<lrmoe::openmp::backend<>, lrmoe::logical::communicator>;

inline std::size_t at(integer i) {
  return static_cast<std::size_t>(i);
}

/// Each expert somewhere; the other slots hold a random expert, possibly one that the rank already
/// holds, or nothing. With one_replica they hold nothing.
inline lrmoe::placement random_placement(fixture::random& draw, integer R, integer S, integer E,
                                         bool one_replica) {
  std::vector<index_type> slots(at(R * S), lrmoe::no_expert);
  std::vector<integer> order(slots.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<integer>(i);
    std::swap(order[i], order[at(draw.integer(0, static_cast<integer>(i)))]);
  }
  for (integer i = 0; i < R * S; ++i) {
    index_type& slot = slots[at(order[at(i)])];
    if (i < E)
      slot = static_cast<index_type>(i);
    else if (!one_replica && draw.integer(0, 3) > 0)
      slot = static_cast<index_type>(draw.integer(0, E - 1));
  }
  return lrmoe::placement(R, S, E, slots);
}

/// Values of every expert in one row each, n = 3 D F.
template <class T>
using rows = std::vector<std::vector<T>>;

/// A layer's experts, and what each replica adds to their gradients in each step.
template <class Element>
struct problem {
  using real = lrmoe::accumulate_t<Element>;
  lrmoe::layer_shape shape;
  std::vector<lrmoe::placement> placements;  // one more than steps
  rows<Element> initial;                     // (E, n)
  std::vector<rows<real>> gradients;         // step, replica
  lrmoe::adamw_settings settings{.weight_decay = 0.1, .beta1 = 0.8, .beta2 = 0.9};
  double rate = 0.02;
  double scale = 0.5;     // of gradients
  double max_norm = 0.0;  // none

  integer n() const { return 3 * shape.D * shape.F; }
  integer steps() const { return static_cast<integer>(placements.size()) - 1; }
};

template <class Element>
problem<Element> random_problem(std::uint64_t seed, integer R, integer S, integer E, integer D,
                                integer F, integer steps, bool one_replica) {
  using real = lrmoe::accumulate_t<Element>;
  problem<Element> p;
  p.shape = {.D = D, .F = F, .E = E, .K = 1};
  // What does not depend on the ranks is drawn apart from what does.
  fixture::random draw(seed), place(seed + 1);
  for (integer t = 0; t <= steps; ++t)
    p.placements.push_back(random_placement(place, R, S, E, one_replica));
  for (integer e = 0; e < E; ++e) {
    const auto values = draw.normal(p.n(), 1.0, fixture::format_of<Element>());
    auto& row = p.initial.emplace_back();
    for (const double value : values) row.push_back(fixture::element<Element>(value));
  }
  for (integer t = 0; t < steps; ++t) {
    auto& of_step = p.gradients.emplace_back();
    for (integer h = 0; h < p.placements[at(t)].replicas(); ++h) {
      const auto values = draw.normal(p.n(), 1.0, fixture::format_of<real>());
      of_step.emplace_back(values.begin(), values.end());
    }
  }
  return p;
}

/// Two tensors of a rank's slots, poisoned.
template <class T>
struct slot_tensors {
  integer S, D, F;
  array<T> gate_up_storage, down_storage;

  slot_tensors(integer slots, const lrmoe::layer_shape& shape)
      : S(slots),
        D(shape.D),
        F(shape.F),
        gate_up_storage(slots * shape.D * 2 * shape.F, 1),
        down_storage(slots * shape.D * shape.F, 3) {}

  auto gate_up() const { return gate_up_storage.tensor(S, D, 2 * F); }
  auto down() const { return down_storage.tensor(S, F, D); }
  T& operator()(integer slot, integer i) const {
    const integer border = 2 * D * F;
    return i < border ? gate_up_storage.data()[slot * border + i]
                      : down_storage.data()[slot * D * F + i - border];
  }
  void set(integer slot, const std::vector<T>& values) const {
    for (std::size_t i = 0; i < values.size(); ++i)
      (*this)(slot, static_cast<integer>(i)) = values[i];
  }
};

template <class Optimizer>
struct saved_state {
  using real = typename Optimizer::accumulate_type;
  rows<real> values[3];  // by optimizer_value; (E, n)
  bool operator==(const saved_state& other) const {
    const auto bits = [](const rows<real>& of) {
      std::vector<fixture::byte_string> result;
      for (const auto& row : of) result.emplace_back(row.data(), row.size());
      return result;
    };
    for (int i = 0; i < 3; ++i)
      if (bits(values[i]) != bits(other.values[i])) return false;
    return true;
  }
};

/// All state in order; what arrives out of order, or in other sizes, fails.
template <class Optimizer>
auto save(Optimizer& optimizer, integer chunk, int root = 0) {
  using real = typename Optimizer::accumulate_type;
  saved_state<Optimizer> result;
  const auto& extents = optimizer.extents();
  for (auto& values : result.values) values.assign(at(extents.E), {});
  integer wrong = 0, last_expert = 0;
  optimizer.save(
      [&](lrmoe::optimizer_value which, integer e, integer first, std::span<const real> values) {
        auto& row = result.values[static_cast<int>(which)][at(e)];
        wrong += first != static_cast<integer>(row.size()) || e < last_expert ||
                 static_cast<integer>(values.size()) > chunk;
        last_expert = e;
        row.insert(row.end(), values.begin(), values.end());
      },
      root, chunk);
  CHECK(wrong == 0);
  return result;
}

template <class Optimizer, class Saved>
void restore(Optimizer& optimizer, const Saved& saved, integer chunk, int root = 0) {
  using real = typename Optimizer::accumulate_type;
  optimizer.restore(
      [&](lrmoe::optimizer_value which, integer e, integer first, std::span<real> values) {
        const auto& row = saved.values[static_cast<int>(which)][at(e)];
        std::copy_n(row.begin() + first, values.size(), values.begin());
      },
      root, chunk);
}

/// What a run leaves behind, on rank 0.
template <class Optimizer>
struct outcome {
  saved_state<Optimizer> state;
  std::vector<double> squared_norms;
};

/// The gradient of each expert: its replicas', in ascending rank order, in the accumulation type.
template <class Element>
rows<lrmoe::accumulate_t<Element>> summed(const problem<Element>& p, integer t) {
  const lrmoe::placement& now = p.placements[at(t)];
  rows<lrmoe::accumulate_t<Element>> result;
  for (integer h = 0; h < now.replicas(); ++h) {
    const auto& gradient = p.gradients[at(t)][at(h)];
    if (now.experts()[at(h)] == static_cast<index_type>(result.size())) {
      result.push_back(gradient);
      continue;
    }
    for (std::size_t i = 0; i < gradient.size(); ++i) result.back()[i] += gradient[i];
  }
  return result;
}

/// One step of the problem on one rank, with everything checked that this rank can see.
template <class Element, class Optimizer, class Context>
double run_step(const problem<Element>& p, integer t, Optimizer& optimizer, Context& on) {
  using real = lrmoe::accumulate_t<Element>;
  const int rank = on.ranks.rank();
  const integer n = p.n();
  const lrmoe::placement &now = p.placements[at(t)], &next = p.placements[at(t + 1)];
  const slot_tensors<real> gradients(now.S(), p.shape);
  integer expected_bytes = 0;
  for (integer h = 0; h < now.replicas(); ++h) {
    if (now.ranks()[at(h)] != rank) continue;
    gradients.set(now.slots()[at(h)], p.gradients[at(t)][at(h)]);
    expected_bytes +=
        (n - optimizer.owned(now.experts()[at(h)]).size()) * static_cast<integer>(sizeof(real));
  }
  integer before = on.ranks.bytes_sent();
  const double squares = optimizer.reduce({gradients.gate_up(), gradients.down()}, now);
  CHECK(on.ranks.bytes_sent() - before == expected_bytes);

  const auto expected = summed(p, t);
  integer wrong = 0, index = 0;
  for (integer e = 0; e < p.shape.E; ++e) {
    const auto part = optimizer.owned(e);
    for (integer i = part.begin; i < part.end; ++i, ++index)
      wrong += optimizer.gradient()(at(index)) != expected[at(e)][at(i)];
  }
  CHECK(wrong == 0);
  CHECK(index == optimizer.owned_parameters());

  const double scale = p.scale * lrmoe::clip_scale(std::sqrt(squares) * p.scale, p.max_norm);
  optimizer.update({t + 1, p.rate, scale});

  const slot_tensors<Element> weights(next.S(), p.shape);
  const slot_tensors<Element> untouched(next.S(), p.shape);
  expected_bytes = 0;
  for (integer h = 0; h < next.replicas(); ++h)
    if (next.ranks()[at(h)] != rank)
      expected_bytes +=
          optimizer.owned(next.experts()[at(h)]).size() * static_cast<integer>(sizeof(Element));
  before = on.ranks.bytes_sent();
  optimizer.send_weights(next, weights.gate_up(), weights.down());
  on.space.fence();
  CHECK(on.ranks.bytes_sent() - before == expected_bytes);

  // The masters of all ranks, which only one of them sees.
  const auto saved = save(optimizer, 1000, t % 2 == 0 ? 0 : on.ranks.size() - 1);
  std::vector<real> masters(at(p.shape.E * n));
  const bool root = !saved.values[0][0].empty();
  for (integer e = 0; root && e < p.shape.E; ++e)
    std::copy_n(saved.values[0][at(e)].begin(), at(n), masters.begin() + e * n);
  std::vector<real> gathered;
  lrmoe::sum_over_ranks(on.ranks, std::span(masters), gathered);
  wrong = 0;
  for (integer s = 0; s < next.S(); ++s) {
    const index_type e = next.expert_of_slot()[at(rank * next.S() + s)];
    for (integer i = 0; i < n; ++i) {
      const Element want =
          e == lrmoe::no_expert ? untouched(s, i) : static_cast<Element>(masters[at(e * n + i)]);
      const Element got = weights(s, i);
      wrong += std::memcmp(&got, &want, sizeof(Element)) != 0;
    }
  }
  CHECK(wrong == 0);
  CHECK(weights.gate_up_storage.guards_intact());
  CHECK(weights.down_storage.guards_intact());
  return squares;
}

/// An optimizer whose masters are the initial weights, as placement 0 holds them.
template <class Optimizer, class Element, class Context>
Optimizer initialised(const problem<Element>& p, Context& on) {
  Optimizer optimizer(on, p.shape, p.settings);
  const lrmoe::placement& first = p.placements[0];
  const slot_tensors<Element> weights(first.S(), p.shape);
  for (integer s = 0; s < first.S(); ++s) {
    const index_type e = first.expert_of_slot()[at(on.ranks.rank() * first.S() + s)];
    if (e != lrmoe::no_expert) weights.set(s, p.initial[at(e)]);
  }
  optimizer.initialise(first, weights.gate_up(), weights.down());
  return optimizer;
}

/// The whole problem on logical ranks.
template <class Ownership, class Element>
auto run(const problem<Element>& p) {
  using optimizer_type = lrmoe::expert_optimizer<Element, logical_backend, Ownership>;
  outcome<optimizer_type> result;
  lrmoe::logical::world world(static_cast<int>(p.placements[0].R()));
  world.run([&](lrmoe::logical::communicator& own) {
    const int rank = own.rank();
    lrmoe::context<logical_backend> on(std::move(own));
    auto optimizer = initialised<optimizer_type>(p, on);
    for (integer t = 0; t < p.steps(); ++t) {
      const double squares = run_step(p, t, optimizer, on);
      if (rank == 0) result.squared_norms.push_back(squares);
    }
    auto saved = save(optimizer, 777);
    if (rank == 0) result.state = std::move(saved);
  });
  return result;
}

}  // namespace training
