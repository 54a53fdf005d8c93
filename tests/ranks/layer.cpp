// A layer on many ranks of one process equals the layer on one, whatever a planner does.
#include <lrmoe/exchange/logical.hpp>

#include "layer_on_ranks.hpp"

using namespace ranks_test;

namespace {

using lrmoe::logical::world;
using static_policies = lrmoe::policies<lrmoe::softmax_top_k, lrmoe::fixed_fraction,
                                        lrmoe::lrm_score, layer_test::any_estimator>;
struct seeded {
  std::uint64_t seed = fixture::fresh_seed();
  fixture::random draw{seed};
};

template <class Element>
problem random_problem(fixture::random& draw, integer T, integer E, integer K,
                       integer F_shared = 0) {
  return layer_test::random_problem(
      draw, {.T = T, .D = 12, .F = 9, .E = E, .K = K, .F_shared = F_shared},
      fixture::format_of<Element>(), layer_test::routing_kind::softmax_renormalised);
}

/// Runs every rank and returns what each found; the sums in them are the same everywhere.
template <class Element, class Policies>
std::vector<results> run_all(integer R, const problem& p, const std::vector<integer>& first,
                             const Policies& policies, integer S, integer steps = 1,
                             bool refused_before = false,
                             lrmoe::gradient_update update = lrmoe::gradient_update::add) {
  std::vector<results> found(static_cast<std::size_t>(R));
  world ranks(static_cast<int>(R));
  ranks.run([&](lrmoe::logical::communicator& joined) {
    const auto rank = static_cast<std::size_t>(joined.rank());
    found[rank] = run<Element>(joined, p, first, policies, S, steps, refused_before, update);
  });
  for (const results& of_rank : found) {
    CHECK(of_rank.guards_intact);
    INFO(of_rank.memory);
    CHECK(of_rank.memory_as_planned);
  }
  return found;
}

template <class Element>
void check_exact(integer R, integer E, integer K, integer T, integer F_shared) {
  seeded at;
  INFO("seed " << at.seed << ", R = " << R << ", E = " << E);
  const problem p = random_problem<Element>(at.draw, T, E, K, F_shared);
  const auto first = deal(at.draw, T, R);
  const static_policies policies{.estimator = lrmoe::exact{}};
  const auto found = run_all<Element>(R, p, first, policies, (E + R - 1) / R);
  check_results(p, found[0]);
}

}  // namespace

TEST_CASE("a layer on R ranks equals the oracle with every pair kept") {
  for (const integer R : {1, 2, 3, 8}) {
    check_exact<float>(R, 12, 3, 40, 0);
    check_exact<float>(R, 10, 2, 33, 5);
    check_exact<lrmoe::bfloat16>(R, 12, 3, 40, 0);
  }
  check_exact<double>(3, 7, 2, 20, 0);
}

TEST_CASE("more ranks than experts, or than tokens, are no special case") {
  check_exact<float>(8, 3, 2, 40, 0);
  check_exact<float>(64, 10, 2, 50, 0);
  check_exact<float>(8, 12, 3, 3, 0);
  check_exact<float>(4, 12, 3, 0, 0);
}

TEST_CASE("all tokens on one rank and all pairs on one expert are computed like others") {
  seeded at;
  INFO("seed " << at.seed);
  const integer R = 4, E = 8, T = 30;
  problem p = random_problem<float>(at.draw, T, E, 1);
  for (integer t = 0; t < T; ++t) p.logits[static_cast<std::size_t>(t * E + 5)] = 9.0;
  layer_test::route(p, layer_test::routing_kind::softmax_renormalised);
  const std::vector<integer> first{0, 0, 0, T, T};
  for (const bool exact : {true, false}) {
    static_policies policies{.quota = {.keep = 0.5}, .estimator = lrmoe::pps{.seed = at.seed}};
    if (exact) policies.estimator = lrmoe::exact{};
    const auto found = run_all<float>(R, p, first, policies, 2);
    check_results(p, found[0]);
    CHECK(found[0].pairs_kept == (exact ? T : T / 2));
  }
}

TEST_CASE("sampled pairs get the oracle's gradients on R ranks, wherever experts are") {
  for (const integer R : {2, 3, 8}) {
    for (const auto saved : {lrmoe::saved_activations::save, lrmoe::saved_activations::recompute,
                             lrmoe::saved_activations::proxy}) {
      for (const bool rebalance : {true, false}) {
        seeded at;
        INFO("seed " << at.seed << ", R = " << R << ", saved " << static_cast<int>(saved));
        const problem p = random_problem<float>(at.draw, 60, 9, 3);
        const auto first = deal(at.draw, 60, R);
        const moving_policies policies{.quota = {.keep = 0.4},
                                       .estimator = lrmoe::pps{.seed = at.seed},
                                       .planner = {at.seed},
                                       .saved = saved,
                                       .rebalance = rebalance};
        const auto found = run_all<float>(R, p, first, policies, (9 + R - 1) / R + 3, 3);
        check_results(p, found[0]);
        CHECK((rebalance || found[0].moved == 0));
        CHECK(found[0].pairs_kept >= 0.4 * 180);
      }
    }
  }
}

TEST_CASE("exact layers with replicas equal the oracle, and pairs do move") {
  integer moved = 0;
  for (const integer R : {2, 3, 8, 64}) {
    seeded at;
    INFO("seed " << at.seed << ", R = " << R);
    const integer E = R == 64 ? 40 : 9;
    const problem p = random_problem<float>(at.draw, 70, E, 3);
    const auto first = deal(at.draw, 70, R);
    const moving_policies policies{.estimator = lrmoe::exact{}, .planner = {at.seed}};
    const auto found = run_all<float>(R, p, first, policies, (E + R - 1) / R + 2, 2);
    check_results(p, found[0]);
    moved += found[0].moved;
  }
  CHECK(moved > 0);
}

TEST_CASE("a call that was refused leaves experts where their weights are") {
  seeded at;
  INFO("seed " << at.seed);
  const problem p = random_problem<float>(at.draw, 60, 9, 3);
  const auto first = std::vector<integer>{0, 25, 40, 60};
  const moving_policies policies{.estimator = lrmoe::exact{}, .planner = {at.seed}};
  const auto found = run_all<float>(3, p, first, policies, 5, 1, true);
  check_results(p, found[0]);
}

TEST_CASE("overwriting the gradients of slots is adding to zeros, replicas and empty slots too") {
  for (const integer R : {1, 3, 8}) {
    for (const integer T : {60, 0}) {
      seeded at;
      INFO("seed " << at.seed << ", R = " << R << ", T = " << T);
      const problem p = random_problem<float>(at.draw, T, 9, 3);
      const auto first = deal(at.draw, T, R);
      for (const auto& estimator :
           std::vector<layer_test::any_estimator>{lrmoe::exact{}, lrmoe::pps{.seed = at.seed}}) {
        const moving_policies policies{
            .quota = {.keep = 0.4}, .estimator = estimator, .planner = {at.seed}};
        const integer S = (9 + R - 1) / R + 3;
        const auto added = run_all<float>(R, p, first, policies, S, 2);
        const auto overwritten =
            run_all<float>(R, p, first, policies, S, 2, false, lrmoe::gradient_update::overwrite);
        check_results(p, overwritten[0]);
        for (std::size_t r = 0; r < added.size(); ++r)
          CHECK(overwritten[r].of_slots == added[r].of_slots);
      }
    }
  }
}

TEST_CASE("a run on R ranks repeats bit for bit") {
  seeded at;
  INFO("seed " << at.seed);
  const problem p = random_problem<float>(at.draw, 50, 8, 2);
  for (const integer R : {2, 8}) {
    const auto first = deal(at.draw, 50, R);
    const moving_policies policies{
        .quota = {.keep = 0.5}, .estimator = lrmoe::pps{.seed = at.seed}, .planner = {at.seed}};
    const auto one = run_all<float>(R, p, first, policies, 8 / R + 2, 2);
    const auto two = run_all<float>(R, p, first, policies, 8 / R + 2, 2);
    for (std::size_t r = 0; r < one.size(); ++r) CHECK(one[r].bits == two[r].bits);
  }
}

TEST_CASE("backward sends the bytes of kept pairs and nothing else") {
  seeded at;
  INFO("seed " << at.seed);
  const problem p = random_problem<float>(at.draw, 200, 8, 2);
  const integer R = 4;
  const auto first = deal(at.draw, 200, R);
  for (const double keep : {0.125, 0.25, 0.5, 1.0}) {
    static_policies policies{.quota = {.keep = keep}, .estimator = lrmoe::pps{.seed = at.seed}};
    const auto fixed = run_all<float>(R, p, first, policies, 2);
    CHECK(fixed[0].bytes_sent == fixed[0].bytes_planned);
    CHECK(fixed[0].bytes_sent > 0);
    const moving_policies moving{
        .quota = {.keep = keep}, .estimator = lrmoe::pps{.seed = at.seed}, .planner = {at.seed}};
    const auto moved = run_all<float>(R, p, first, moving, 4);
    CHECK(moved[0].bytes_sent == moved[0].bytes_planned);
  }
}

TEST_CASE("a sketched router gradient needs no message and is finite on many ranks") {
  seeded at;
  INFO("seed " << at.seed);
  const problem p = random_problem<float>(at.draw, 40, 8, 2);
  const auto first = deal(at.draw, 40, 4);
  static_policies policies{.quota = {.keep = 0.5}, .estimator = lrmoe::pps{.seed = at.seed}};
  const auto without = run_all<float>(4, p, first, policies, 2);
  policies.scope.router = lrmoe::router_gradient::sketch;
  const auto with = run_all<float>(4, p, first, policies, 2);
  CHECK(with[0].bytes_sent == without[0].bytes_sent);
  CHECK(with[0].dx == without[0].dx);
  CHECK(with[0].d_logits != without[0].d_logits);
  for (const double value : with[0].d_logits) REQUIRE(std::isfinite(value));
}

namespace {

/// A small layer whose ranks may each do something else.
template <class Body>
std::vector<std::string> refusals(integer R, const Body& body) {
  std::vector<std::string> found(static_cast<std::size_t>(R));
  world ranks(static_cast<int>(R));
  ranks.run([&](lrmoe::logical::communicator& joined) {
    const int rank = joined.rank();
    using backend = lrmoe::with_ranks<layer_test::backend, lrmoe::logical::communicator>;
    lrmoe::context<backend> context(std::move(joined));
    try {
      body(context, rank);
    } catch (const lrmoe::error& failure) {
      found[static_cast<std::size_t>(rank)] = failure.what();
    }
    joined = std::move(context.ranks);
  });
  return found;
}

using many = lrmoe::with_ranks<layer_test::backend, lrmoe::logical::communicator>;
constexpr integer small_T = 6, small_D = 4, small_F = 3, small_E = 4, small_K = 2;

/// A call that works, to be changed by what a test is about.
struct small_call {
  integer slots = 2;
  std::uint64_t step = 0;
  integer T = small_T;
  integer out_rows = small_T;
  float logit = 0.5f;
  double keep = 1.0;
  bool backward = true;
  integer dx_rows = small_T;  // of the first attempt
  lrmoe::gradient_scope scope{};
  std::int64_t budget_bytes = 0;
};

void run_small(lrmoe::context<many>& context, const small_call& with) {
  lrmoe::moe_layer<float, many> layer(
      context, {small_D, small_F, small_E, small_K},
      {.quota = {.keep = with.keep}, .estimator = {.seed = 1}, .scope = with.scope});
  if (with.budget_bytes > 0) context.memory.set_budget_bytes(with.budget_bytes);
  const auto ones = [](integer n) {
    return array<float>(std::vector<double>(static_cast<std::size_t>(n), 1.0));
  };
  const auto x = ones(with.T * small_D), d_out = ones(with.T * small_D);
  std::vector<double> logit_values;
  for (integer i = 0; i < with.T * small_E; ++i)
    logit_values.push_back(static_cast<double>(with.logit) * static_cast<double>(i % 3));
  const array<float> logits(logit_values);
  const auto gate_up = ones(with.slots * small_D * 2 * small_F),
             down = ones(with.slots * small_F * small_D);
  const array<float> out(with.out_rows * small_D), dx(with.T * small_D), d_logits(with.T * small_E);
  lrmoe::expert_weights<float, device> weights;
  weights.gate_up = gate_up.tensor(with.slots, small_D, 2 * small_F);
  weights.down = down.tensor(with.slots, small_F, small_D);
  try {
    layer.forward(with.step, x.matrix(with.T, small_D),
                  lrmoe::router_logits<float, device>(logits.matrix(with.T, small_E)), weights,
                  out.matrix(with.out_rows, small_D), with.backward);
  } catch (...) {
    CHECK(out.untouched());
    throw;
  }
  if (!with.backward) return;
  const auto backward = [&](integer dx_rows) {
    layer.backward(d_out.matrix(with.T, small_D), weights, dx.matrix(dx_rows, small_D),
                   d_logits.matrix(with.T, small_E), {});
  };
  try {
    backward(with.dx_rows);
  } catch (const lrmoe::error&) {
    // Every rank was told, so every rank may try again.
    CHECK(dx.untouched());
    backward(with.T);
    CHECK_FALSE(dx.untouched());
    throw;
  }
}

}  // namespace

TEST_CASE(
    "what one rank does wrong is known on all, with rank and cause, and no output is touched") {
  const auto wrong_on_2 = [](const small_call& wrong) {
    return refusals(3, [&](lrmoe::context<many>& context, int rank) {
      run_small(context, rank == 2 ? wrong : small_call{});
    });
  };
  for (const auto& message : wrong_on_2({})) CHECK(message.empty());

  auto found = wrong_on_2({.out_rows = small_T + 1});
  for (int r : {0, 1}) CHECK(fixture::names(found[r], {"rank 2 failed", "out is 7 x 4"}));
  CHECK(fixture::names(found[2], {"out is 7 x 4"}));

  found = wrong_on_2({.logit = NAN});
  for (int r : {0, 1}) CHECK(fixture::names(found[r], {"rank 2 failed"}));

  found = wrong_on_2({.budget_bytes = 100});
  for (int r : {0, 1}) CHECK(fixture::names(found[r], {"rank 2 failed", "100 bytes"}));

  found = wrong_on_2({.dx_rows = small_T - 1});
  for (int r : {0, 1}) CHECK(fixture::names(found[r], {"rank 2 failed", "dx is 5 x 4"}));

  for (const auto& [wrong, name] :
       {std::pair{small_call{.step = 5}, "step is '0' on ranks 0, 1, '5' on rank 2"},
        std::pair{small_call{.slots = 3}, "slots S"},
        std::pair{small_call{.backward = false}, "keep_for_backward"},
        std::pair{small_call{.keep = 0.5}, "different plans"}}) {
    found = wrong_on_2(wrong);
    for (const auto& message : found) CHECK(fixture::names(message, {name}));
  }
}

TEST_CASE("too few slots and what only one rank can do are refused by name") {
  const auto all = [](const small_call& call) {
    return refusals(2, [&](lrmoe::context<many>& context, int) { run_small(context, call); });
  };
  for (const auto& message : all({.slots = 1}))
    CHECK(fixture::names(message, {"S = 1", "R = 2", "E = 4", "at least 2"}));
  for (const auto& message : all({.keep = 0.5, .scope = {.dx_share = 0.5}}))
    CHECK(fixture::names(message, {"dx_share = 0.5", "R = 2"}));
  for (const auto& message : all({.keep = 0.5, .scope = {.router = lrmoe::router_gradient::exact}}))
    CHECK(fixture::names(message, {"router_gradient::exact", "sketch"}));
}

TEST_CASE("a planner that moves experts needs something that moves their weights") {
  const auto found = refusals(2, [&](lrmoe::context<many>& context, int) {
    lrmoe::moe_layer<float, many, moving_policies> layer(context, {4, 3, 4, 2},
                                                         {.planner = {.seed = 3}});
    const array<float> x(0), weights(4 * 4 * 6), down(4 * 3 * 4);
    lrmoe::expert_weights<float, device> views;
    views.gate_up = weights.tensor(4, 4, 6);
    views.down = down.tensor(4, 3, 4);
    layer.forward(0, x.matrix(0, 4), lrmoe::router_logits<float, device>(x.matrix(0, 4)), views,
                  x.matrix(0, 4));
  });
  for (const auto& message : found) CHECK(fixture::names(message, {"random", "set_weight_mover"}));
}
