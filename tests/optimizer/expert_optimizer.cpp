#include "training.hpp"

namespace {

using namespace training;
using lrmoe::home_state;
using lrmoe::sharded_state;

/// State after the problem, and the norms, by plain loops in double.
template <class Element>
struct plain {
  rows<double> values[3];
  std::vector<double> squared_norms;

  explicit plain(const problem<Element>& p) {
    for (const auto& row : p.initial) {
      auto& master = values[0].emplace_back();
      for (const Element value : row) master.push_back(fixture::value_of(value));
    }
    values[1] = values[2] = rows<double>(p.initial.size(), std::vector<double>(at(p.n()), 0.0));
    const auto& [decay, beta1, beta2, epsilon] = p.settings;
    for (integer t = 0; t < p.steps(); ++t) {
      rows<double> gradient(p.initial.size(), std::vector<double>(at(p.n()), 0.0));
      for (integer h = 0; h < p.placements[at(t)].replicas(); ++h)
        for (std::size_t i = 0; i < at(p.n()); ++i)
          gradient[at(p.placements[at(t)].experts()[at(h)])][i] +=
              static_cast<double>(p.gradients[at(t)][at(h)][i]);
      double squares = 0.0;
      for (const auto& row : gradient)
        for (const double g : row) squares += g * g;
      squared_norms.push_back(squares);
      const double norm = std::sqrt(squares) * p.scale;
      const double scale =
          p.max_norm > 0.0 && norm > p.max_norm ? p.scale * p.max_norm / norm : p.scale;
      const double steps = static_cast<double>(t + 1);
      for (std::size_t e = 0; e < gradient.size(); ++e)
        for (std::size_t i = 0; i < at(p.n()); ++i) {
          const double g = gradient[e][i] * scale;
          double &w = values[0][e][i], &m = values[1][e][i], &v = values[2][e][i];
          m = beta1 * m + (1.0 - beta1) * g;
          v = beta2 * v + (1.0 - beta2) * g * g;
          const double direction = m / (1.0 - std::pow(beta1, steps)) /
                                   (std::sqrt(v / (1.0 - std::pow(beta2, steps))) + epsilon);
          w -= p.rate * (direction + decay * w);
        }
    }
  }
};

template <class Element, class Outcome>
void check_against_plain(const problem<Element>& p, const Outcome& got) {
  const bool wide = std::is_same_v<Element, double>;
  const double tolerance = wide ? 1e-12 : 1e-5;
  const plain<Element> expected(p);
  for (integer t = 0; t < p.steps(); ++t)
    CHECK(got.squared_norms[at(t)] ==
          Approx(expected.squared_norms[at(t)]).epsilon(wide ? 1e-12 : 1e-6));
  for (int which = 0; which < 3; ++which) {
    double worst = 0.0;
    for (std::size_t e = 0; e < p.initial.size(); ++e)
      for (std::size_t i = 0; i < at(p.n()); ++i)
        worst = std::max(worst, std::abs(static_cast<double>(got.state.values[which][e][i]) -
                                         expected.values[which][e][i]) /
                                    (1.0 + std::abs(expected.values[which][e][i])));
    INFO("value " << which);
    CHECK(worst < tolerance);
  }
}

struct extents {
  integer R, S, E, D, F;
};
// One rank; E that R does not divide; R > E; experts of more than one block of a kernel.
constexpr extents shapes[] = {{1, 5, 4, 3, 5}, {2, 4, 5, 7, 3},   {3, 6, 8, 5, 4},
                              {8, 3, 5, 3, 3}, {3, 2, 2, 30, 71}, {8, 2, 12, 2, 5}};

template <class Element>
void check_all_shapes() {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  for (const auto& [R, S, E, D, F] : shapes) {
    INFO("R " << R << " S " << S << " E " << E);
    problem<Element> p = random_problem<Element>(seed, R, S, E, D, F, 3, false);
    const auto home = run<home_state>(p);
    const auto sharded = run<sharded_state>(p);
    check_against_plain(p, home);
    // Sums over replicas have one order, whoever owns them.
    CHECK(home.state.values[0] == sharded.state.values[0]);
    CHECK(home.state.values[1] == sharded.state.values[1]);
    CHECK(home.state.values[2] == sharded.state.values[2]);
    // With clipping the ranks' parts of the norm come in.
    p.max_norm = 3.0;
    check_against_plain(p, run<home_state>(p));
    check_against_plain(p, run<sharded_state>(p));
  }
}

}  // namespace

TEST_CASE("the experts' optimizer agrees with plain AdamW under placements that change every step",
          "[optimizer]") {
  check_all_shapes<double>();
  check_all_shapes<float>();
  check_all_shapes<lrmoe::bfloat16>();
}

TEST_CASE("where experts have one replica, neither ranks nor owners change a bit of the weights",
          "[optimizer]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  constexpr integer E = 7, D = 12, F = 19, steps = 4;
  const auto problem_on = [&](integer R) {
    return random_problem<lrmoe::bfloat16>(seed, R, (E + R - 1) / R + 1, E, D, F, steps, true);
  };
  const auto alone = run<home_state>(problem_on(1));
  for (const integer R : {1, 2, 3, 8}) {
    INFO("R " << R);
    const auto p = problem_on(R);
    const auto home = run<home_state>(p);
    const auto sharded = run<sharded_state>(p);
    for (int which = 0; which < 3; ++which) {
      CHECK(home.state.values[which] == alone.state.values[which]);
      CHECK(sharded.state.values[which] == alone.state.values[which]);
    }
    for (std::size_t t = 0; t < at(steps); ++t) {
      CHECK(home.squared_norms[t] == Approx(alone.squared_norms[t]).epsilon(1e-13));
      CHECK(sharded.squared_norms[t] == Approx(alone.squared_norms[t]).epsilon(1e-13));
    }
  }
}

TEST_CASE("a run of the experts' optimizer repeats bit for bit", "[optimizer]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  auto p = random_problem<float>(seed, 3, 4, 5, 20, 31, 3, false);
  p.max_norm = 2.0;
  const auto first = run<sharded_state>(p), second = run<sharded_state>(p);
  CHECK(first.state == second.state);
  CHECK(first.squared_norms == second.squared_norms);
}

TEST_CASE("the only rank of a program needs no exchange for its experts' optimizer",
          "[optimizer]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  const auto p = random_problem<float>(seed, 1, 6, 5, 4, 7, 3, true);
  using backend = lrmoe::openmp::backend<>;
  using optimizer_type = lrmoe::expert_optimizer<float, backend>;
  lrmoe::context<backend> on;
  auto optimizer = initialised<optimizer_type>(p, on);
  for (integer t = 0; t < p.steps(); ++t) run_step(p, t, optimizer, on);
  const auto saved = save(optimizer, 100);
  const auto logical = run<home_state>(p);
  for (int which = 0; which < 3; ++which) CHECK(saved.values[which] == logical.state.values[which]);
  // State and a chunk for checkpoints, but no messages: those would be 4 bytes a parameter.
  const integer parameters = p.shape.E * p.n();
  CHECK(on.memory.live_bytes(lrmoe::memory_category::optimizer) <
        (3 * parameters + p.n()) * 4 + 4 * parameters);
  CHECK(on.memory.live_bytes(lrmoe::memory_category::workspace) == 0);
}

TEST_CASE("state that eight ranks saved continues on any other number with the same bits",
          "[optimizer]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  constexpr integer E = 5, D = 9, F = 11, steps = 3;
  const auto problem_on = [&](integer R) {
    return random_problem<lrmoe::bfloat16>(seed, R, (E + R - 1) / R + 1, E, D, F, steps, true);
  };
  using eight = lrmoe::expert_optimizer<lrmoe::bfloat16, logical_backend, sharded_state>;
  saved_state<eight> half_way, end;
  const auto continue_on = [&]<class Ownership>(integer R, Ownership, bool restored) {
    using optimizer_type = lrmoe::expert_optimizer<lrmoe::bfloat16, logical_backend, Ownership>;
    saved_state<optimizer_type> before, after;
    const auto p = problem_on(R);
    lrmoe::logical::world world(static_cast<int>(R));
    world.run([&](lrmoe::logical::communicator& own) {
      const int rank = own.rank(), root = static_cast<int>(R) / 2;
      lrmoe::context<logical_backend> on(std::move(own));
      auto optimizer = initialised<optimizer_type>(p, on);
      if (restored) {
        optimizer.update({1, 0.1, 1.0});  // another state than the initial one, to be replaced
        restore(optimizer, half_way, 100, root);
      } else {
        run_step(p, 0, optimizer, on);
      }
      auto saved = save(optimizer, 64, root);
      if (rank == root) before = std::move(saved);
      for (integer t = 1; t < steps; ++t) run_step(p, t, optimizer, on);
      saved = save(optimizer, 1 << 20, 0);
      if (rank == 0) after = std::move(saved);
    });
    return std::pair(before, after);
  };
  std::tie(half_way, end) = continue_on(8, sharded_state(), false);
  CHECK(half_way.values[0] != end.values[0]);
  for (const integer R : {1, 2, 3, 8}) {
    INFO("R " << R);
    const auto check = [&](const auto& states) {
      for (int which = 0; which < 3; ++which) {
        CHECK(states.first.values[which] == half_way.values[which]);
        CHECK(states.second.values[which] == end.values[which]);
      }
    };
    check(continue_on(R, sharded_state(), true));
    check(continue_on(R, home_state(), true));
  }
}

TEST_CASE("a checkpoint that cannot be written or read fails on all ranks", "[optimizer]") {
  const auto p = random_problem<float>(11, 3, 2, 4, 3, 4, 1, true);
  lrmoe::logical::world world(3);
  world.run([&](lrmoe::logical::communicator& own) {
    const int rank = own.rank();
    using optimizer_type = lrmoe::expert_optimizer<float, logical_backend>;
    lrmoe::context<logical_backend> on(std::move(own));
    auto optimizer = initialised<optimizer_type>(p, on);
    int calls = 0;
    const auto full = [&](auto...) {
      if (++calls == 4) throw std::ios_base::failure("disk full");
    };
    const auto expect_failure = [&](const auto& action) {
      if (rank == 1)
        CHECK_THROWS_AS(action(), std::ios_base::failure);
      else
        CHECK_THROWS_AS(action(), lrmoe::rank_error);
    };
    expect_failure([&] { optimizer.save(full, 1); });
    CHECK(calls == (rank == 1 ? 4 : 0));
    calls = 0;
    expect_failure([&] { optimizer.restore(full, 1); });
    // The ranks are together still.
    CHECK(save(optimizer, 10).values[0].size() == 4);
    CHECK_THROWS_AS(optimizer.save(full, 3), lrmoe::argument_error);
    CHECK_THROWS_AS(optimizer.save(full, 0, 0), lrmoe::argument_error);
  });
}

TEST_CASE("the ledger knows the optimizer's memory, and steps already seen allocate nothing",
          "[optimizer]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  const auto p = random_problem<lrmoe::bfloat16>(seed, 3, 4, 5, 8, 9, 3, false);
  const auto check = [&]<class Ownership>(Ownership) {
    integer total = 0;
    lrmoe::logical::world world(3);
    world.run([&](lrmoe::logical::communicator& own) {
      using optimizer_type = lrmoe::expert_optimizer<lrmoe::bfloat16, logical_backend, Ownership>;
      lrmoe::context<logical_backend> on(std::move(own));
      {
        const auto live = [&](lrmoe::memory_category category) {
          return on.memory.live_bytes(category);
        };
        {
          // The state, and a chunk for checkpoints.
          const optimizer_type bare(on, p.shape, p.settings);
          CHECK(live(lrmoe::memory_category::optimizer) ==
                3 * 4 * bare.owned_parameters() + 4 * p.n());
        }
        auto optimizer = initialised<optimizer_type>(p, on);
        const integer owned = optimizer.owned_parameters();
        total += owned;
        CHECK(live(lrmoe::memory_category::gradients) == 4 * owned);
        // With messages, unless chance left this rank nothing to send. What layers plan with stays untouched.
        CHECK(live(lrmoe::memory_category::optimizer) >= 3 * 4 * owned + 4 * p.n());
        CHECK(on.memory.live_bytes() == 4 * owned + live(lrmoe::memory_category::optimizer));
        for (integer t = 0; t < p.steps(); ++t) run_step(p, t, optimizer, on);
        const integer allocations = on.memory.allocations();
        for (integer t = 0; t < p.steps(); ++t) run_step(p, t, optimizer, on);
        CHECK(on.memory.allocations() == allocations);
      }
      CHECK(on.memory.live_bytes(lrmoe::memory_category::optimizer) == 0);
    });
    CHECK(total == p.shape.E * p.n());
  };
  check(home_state());
  check(sharded_state());
}

TEST_CASE("the experts' optimizer keeps to the budget", "[optimizer]") {
  using backend = lrmoe::openmp::backend<>;
  lrmoe::context<backend> on;
  on.memory.set_budget_bytes(1000);
  const lrmoe::layer_shape shape{.D = 8, .F = 8, .E = 4, .K = 1};
  CHECK_THROWS_AS((lrmoe::expert_optimizer<float, backend>(on, shape)), lrmoe::memory_error);
  CHECK(on.memory.live_bytes() == 0);
}

TEST_CASE("the experts' optimizer refuses other placements and tensors by name", "[optimizer]") {
  using backend = lrmoe::openmp::backend<>;
  lrmoe::context<backend> on;
  const lrmoe::layer_shape shape{.D = 2, .F = 3, .E = 2, .K = 1};
  CHECK_THROWS_AS((lrmoe::expert_optimizer<float, backend>(on, shape, {.beta1 = 2.0})),
                  lrmoe::argument_error);
  lrmoe::expert_optimizer<float, backend> optimizer(on, shape);
  const slot_tensors<float> weights(2, shape), wide(2, {.D = 2, .F = 4, .E = 2, .K = 1});
  const lrmoe::placement good(1, 2, 2, {0, 1});
  const auto refused = [&](const lrmoe::placement& at, const auto& gate_up, const auto& down) {
    CHECK_THROWS_AS(optimizer.send_weights(at, gate_up, down), lrmoe::argument_error);
    CHECK_THROWS_AS(optimizer.initialise(at, gate_up, down), lrmoe::argument_error);
    CHECK_THROWS_AS(optimizer.reduce({gate_up, down}, at), lrmoe::argument_error);
  };
  refused(lrmoe::placement(2, 1, 2, {0, 1}), weights.gate_up(), weights.down());
  refused(lrmoe::placement(1, 3, 3, {0, 1, 2}), weights.gate_up(), weights.down());
  refused(lrmoe::placement(1, 3, 2, {0, 1, 0}), weights.gate_up(), weights.down());
  refused(good, wide.gate_up(), weights.down());
  refused(good, weights.gate_up(), wide.down());
  CHECK_THROWS_AS(optimizer.update({0, 0.1, 1.0}), lrmoe::argument_error);
}
