#include <lrmoe/optimizer/replica_sum.hpp>
#include <lrmoe/placement/flexmoe.hpp>
#include <lrmoe/placement/home_ranks.hpp>
#include <lrmoe/placement/movement.hpp>

#include "training.hpp"

namespace {

using namespace training;

/// One rank's gradients of step t in the lowest slots, poison in all others.
template <class Element>
auto gradients_of(const problem<Element>& p, integer t, int rank) {
  const lrmoe::placement& now = p.placements[at(t)];
  slot_tensors<lrmoe::accumulate_t<Element>> result(now.S(), p.shape);
  for (integer h = 0; h < now.replicas(); ++h)
    if (now.ranks()[at(h)] == rank) result.set(now.slots()[at(h)], p.gradients[at(t)][at(h)]);
  return result;
}

/// What all slots of all ranks hold in the end, by step.
template <class Element>
std::vector<std::vector<fixture::byte_string>> run_sums(const problem<Element>& p) {
  using real = lrmoe::accumulate_t<Element>;
  const integer R = p.placements[0].R();
  std::vector<std::vector<fixture::byte_string>> results(at(p.steps()));
  for (auto& result : results) result.resize(at(2 * R));
  lrmoe::logical::world world(static_cast<int>(R));
  world.run([&](lrmoe::logical::communicator& own) {
    const int rank = own.rank();
    lrmoe::context<logical_backend> on(std::move(own));
    lrmoe::replica_sum<real, logical_backend> sum(on, p.shape);
    for (integer t = 0; t < p.steps(); ++t) {
      const auto gradients = gradients_of(p, t, rank);
      sum.all_reduce({gradients.gate_up(), gradients.down()}, p.placements[at(t)]);
      on.space.fence();
      results[at(t)][at(2 * rank)] = gradients.gate_up_storage.bits();
      results[at(t)][at(2 * rank + 1)] = gradients.down_storage.bits();
      CHECK(gradients.gate_up_storage.guards_intact());
      CHECK(gradients.down_storage.guards_intact());
    }
  });
  return results;
}

/// The same by a plain sum in rank order.
template <class Element>
std::vector<std::vector<fixture::byte_string>> plain_sums(const problem<Element>& p) {
  std::vector<std::vector<fixture::byte_string>> results(at(p.steps()));
  for (integer t = 0; t < p.steps(); ++t) {
    const lrmoe::placement& now = p.placements[at(t)];
    const auto sums = summed(p, t);
    for (integer r = 0; r < now.R(); ++r) {
      const slot_tensors<lrmoe::accumulate_t<Element>> expected(now.S(), p.shape);
      std::vector<bool> seen(at(now.E()));
      for (integer s = 0; s < now.S(); ++s) {
        const index_type e = now.expert_of_slot()[at(r * now.S() + s)];
        if (e == lrmoe::no_expert || seen[at(e)]) continue;
        seen[at(e)] = true;
        expected.set(s, sums[at(e)]);
      }
      results[at(t)].push_back(expected.gate_up_storage.bits());
      results[at(t)].push_back(expected.down_storage.bits());
    }
  }
  return results;
}

struct extents {
  integer R, S, E, D, F;
};
// One rank; as many slots as experts and more; more holders than one expert's parameters would fill
// evenly; experts of more than one block of a kernel; many experts for few slots.
constexpr extents shapes[] = {{1, 5, 4, 3, 5}, {2, 4, 5, 7, 3},   {3, 6, 8, 5, 4}, {8, 3, 5, 3, 3},
                              {8, 2, 3, 1, 2}, {3, 2, 2, 30, 71}, {8, 4, 2, 5, 7}, {2, 3, 6, 2, 2}};

template <class Element>
void check_all_shapes() {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  for (const auto& [R, S, E, D, F] : shapes) {
    INFO("R " << R << " S " << S << " E " << E);
    const auto p = random_problem<Element>(seed, R, S, E, D, F, 4, false);
    const auto got = run_sums(p);
    CHECK(got == plain_sums(p));
    CHECK(got == run_sums(p));
  }
}

}  // namespace

TEST_CASE(
    "every holder of an expert has the sum in rank order, bit for bit, and no other slot changes",
    "[optimizer]") {
  check_all_shapes<float>();
  check_all_shapes<double>();
  check_all_shapes<lrmoe::bfloat16>();
}

TEST_CASE("replicas on all ranks are summed in ascending rank order on each of them",
          "[optimizer]") {
  // The order decides here: (1e8 + 1) - 1e8 is 0, 1 + (1e8 - 1e8) is 1.
  const float of_rank[] = {1e8f, 1.0f, -1e8f, 0.25f};
  const lrmoe::layer_shape shape{.D = 3, .F = 2, .E = 1, .K = 1};
  const lrmoe::placement now(4, 2, 1, {-1, 0, 0, 0, 0, -1, -1, 0});
  lrmoe::logical::world world(4);
  world.run([&](lrmoe::logical::communicator& own) {
    const auto r = at(own.rank());
    lrmoe::context<logical_backend> on(std::move(own));
    const slot_tensors<float> gradients(2, shape);
    const integer slot = r == 0 || r == 3 ? 1 : 0;
    gradients.set(slot, std::vector<float>(18, of_rank[r]));
    lrmoe::replica_sum<float, logical_backend> sum(on, shape);
    sum.all_reduce({gradients.gate_up(), gradients.down()}, now);
    on.space.fence();
    integer wrong = 0;
    for (integer i = 0; i < 18; ++i) {
      wrong += gradients(slot, i) != 0.25f;
      wrong += !std::isnan(gradients(1 - slot, i));
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("a holder of k sends 2 (k-1)/k of the gradient, as the planners' bytes say",
          "[optimizer]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  constexpr integer value_bytes = 4;
  for (const auto& [R, S, E, D, F] : shapes) {
    INFO("R " << R << " S " << S << " E " << E);
    const auto p = random_problem<float>(seed, R, S, E, D, F, 4, false);
    std::vector<std::vector<integer>> sent(at(p.steps()), std::vector<integer>(at(R)));
    lrmoe::logical::world world(static_cast<int>(R));
    world.run([&](lrmoe::logical::communicator& own) {
      const int rank = own.rank();
      lrmoe::context<logical_backend> on(std::move(own));
      lrmoe::replica_sum<float, logical_backend> sum(on, p.shape);
      for (integer t = 0; t < p.steps(); ++t) {
        const auto gradients = gradients_of(p, t, rank);
        const integer before = on.ranks.bytes_sent();
        sum.all_reduce({gradients.gate_up(), gradients.down()}, p.placements[at(t)]);
        sent[at(t)][at(rank)] = on.ranks.bytes_sent() - before;
      }
    });
    const auto home = lrmoe::home_ranks(R, E);
    for (integer t = 0; t < p.steps(); ++t) {
      const lrmoe::placement& now = p.placements[at(t)];
      // In values, as cuts do not fall within one; then in bytes, for the whole.
      lrmoe::placement_request request{.R = R, .S = S, .E = E, .home = home, .current = &now};
      request.costs.gradient_bytes = p.n();
      lrmoe::movement values, bytes;
      values.count(request, lrmoe::flexmoe{}.attributes(), now);
      request.costs.gradient_bytes = p.n() * value_bytes;
      bytes.count(request, lrmoe::flexmoe{}.attributes(), now);
      integer total = 0;
      for (integer r = 0; r < R; ++r) {
        total += sent[at(t)][at(r)];
        CHECK(sent[at(t)][at(r)] ==
              value_bytes * values.of(lrmoe::moved_state::gradients, r).sent());
        double formula = 0.0;
        integer held = 0;
        for (integer h = 0; h < now.replicas(); ++h) {
          if (now.ranks()[at(h)] != r) continue;
          const auto k = static_cast<double>(now.holders(now.experts()[at(h)]).size());
          formula += 2.0 * (k - 1.0) / k * static_cast<double>(p.n() * value_bytes);
          ++held;
        }
        // A part is a value more or less than n / k.
        CHECK(std::abs(static_cast<double>(sent[at(t)][at(r)]) - formula) <=
              static_cast<double>(held * R * value_bytes));
      }
      CHECK(total == bytes.total(lrmoe::moved_state::gradients));
    }
  }
}

TEST_CASE("where parts are even, each holder sends exactly 2 (k-1)/k of the gradient",
          "[optimizer]") {
  const lrmoe::layer_shape shape{.D = 8, .F = 5, .E = 3, .K = 1};  // 120 values
  for (const integer k : {2, 3, 4, 5, 6, 8}) {
    INFO("k " << k);
    // Expert 0 on ranks 0 .. k-1, experts 1 and 2 on the last rank alone.
    std::vector<index_type> slots(at(3 * 8), lrmoe::no_expert);
    for (integer r = 0; r < k; ++r) slots[at(3 * r)] = 0;
    slots[22] = 1;
    slots[23] = 2;
    const lrmoe::placement now(8, 3, 3, slots);
    lrmoe::logical::world world(8);
    world.run([&](lrmoe::logical::communicator& own) {
      lrmoe::context<logical_backend> on(std::move(own));
      const slot_tensors<double> gradients(3, shape);
      lrmoe::replica_sum<double, logical_backend> sum(on, shape);
      sum.all_reduce({gradients.gate_up(), gradients.down()}, now);
      const bool holds = on.ranks.rank() < k;
      CHECK(on.ranks.bytes_sent() == (holds ? 2 * (k - 1) * 120 * 8 / k : 0));
    });
  }
}

TEST_CASE("experts with one replica each are left alone, without messages or memory",
          "[optimizer]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  const auto p = random_problem<float>(seed, 3, 4, 7, 5, 4, 1, true);
  CHECK(run_sums(p) == plain_sums(p));
  lrmoe::logical::world world(3);
  world.run([&](lrmoe::logical::communicator& own) {
    const int rank = own.rank();
    lrmoe::context<logical_backend> on(std::move(own));
    lrmoe::replica_sum<float, logical_backend> sum(on, p.shape);
    const auto gradients = gradients_of(p, 0, rank);
    sum.all_reduce({gradients.gate_up(), gradients.down()}, p.placements[0]);
    CHECK(on.ranks.bytes_sent() == 0);
    CHECK(on.memory.live_bytes() == 0);
  });
}

TEST_CASE("the ledger knows the memory of replicas' sums, and steps already seen allocate nothing",
          "[optimizer]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  const auto p = random_problem<float>(seed, 3, 4, 3, 40, 40, 4, false);
  lrmoe::logical::world world(3);
  world.run([&](lrmoe::logical::communicator& own) {
    const int rank = own.rank();
    lrmoe::context<logical_backend> on(std::move(own));
    {
      lrmoe::replica_sum<float, logical_backend> sum(on, p.shape);
      integer most = 0;
      const auto all_steps = [&] {
        for (integer t = 0; t < p.steps(); ++t) {
          const auto gradients = gradients_of(p, t, rank);
          const integer before = on.ranks.bytes_sent();
          sum.all_reduce({gradients.gate_up(), gradients.down()}, p.placements[at(t)]);
          most = std::max(most, on.ranks.bytes_sent() - before);
        }
      };
      all_steps();
      // Each message that is sent has memory, and so has each that comes: together they are what both
      // exchanges send. Buffers keep the largest size of each.
      const integer live = on.memory.live_bytes(lrmoe::memory_category::optimizer);
      CHECK(live >= most);
      CHECK(live < 2 * most + 4096);
      CHECK(on.memory.live_bytes() == live);
      const integer allocations = on.memory.allocations();
      all_steps();
      CHECK(on.memory.allocations() == allocations);
    }
    CHECK(on.memory.live_bytes() == 0);
  });
}

TEST_CASE("replicas' sums need the layer's placement and gradients of its slots", "[optimizer]") {
  const lrmoe::layer_shape shape{.D = 2, .F = 3, .E = 2, .K = 1};
  CHECK_THROWS_AS(([&] {
                    lrmoe::context<lrmoe::openmp::backend<>> on;
                    lrmoe::replica_sum<float, lrmoe::openmp::backend<>> sum(
                        on, {.D = 0, .F = 3, .E = 2, .K = 1});
                  }()),
                  lrmoe::argument_error);
  lrmoe::logical::world world(2);
  world.run([&](lrmoe::logical::communicator& own) {
    lrmoe::context<logical_backend> on(std::move(own));
    lrmoe::replica_sum<float, logical_backend> sum(on, shape);
    const slot_tensors<float> good(2, shape), few(1, shape), wide(2, {.D = 2, .F = 4, .E = 2});
    const lrmoe::placement fits(2, 2, 2, {0, 1, 0, 1});
    const auto refused = [&](const lrmoe::placement& now, const auto& gate_up, const auto& down,
                             std::initializer_list<std::string> parts) {
      CHECK(fixture::names(fixture::refusal([&] { sum.all_reduce({gate_up, down}, now); }), parts));
    };
    refused({1, 2, 2, {0, 1}}, good.gate_up(), good.down(), {"replica_sum", "1 ranks", "on 2"});
    refused({2, 2, 3, {0, 1, 2, 0}}, good.gate_up(), good.down(), {"3 experts", "layer of 2"});
    refused(fits, few.gate_up(), good.down(), {"replica_sum", "gate_up"});
    refused(fits, good.gate_up(), few.down(), {"replica_sum", "down"});
    refused(fits, wide.gate_up(), wide.down(), {"replica_sum", "gate_up"});
    // Without the gradient of one tensor no sum is complete.
    refused(fits, lrmoe::tensor_view<float, device>(), good.down(), {"replica_sum", "gate_up"});
    sum.all_reduce({good.gate_up(), good.down()}, fits);  // the ranks are together still
    CHECK(on.ranks.bytes_sent() > 0);
  });
}

TEST_CASE("replicas' sums keep to the budget", "[optimizer]") {
  const lrmoe::layer_shape shape{.D = 16, .F = 16, .E = 1, .K = 1};
  lrmoe::logical::world world(2);
  std::vector<int> refused(2);
  CHECK_THROWS(world.run([&](lrmoe::logical::communicator& own) {
    const auto r = at(own.rank());
    lrmoe::context<logical_backend> on(std::move(own));
    on.memory.set_budget_bytes(1000);
    const slot_tensors<float> gradients(1, shape);
    lrmoe::replica_sum<float, logical_backend> sum(on, shape);
    try {
      sum.all_reduce({gradients.gate_up(), gradients.down()}, {2, 1, 1, {0, 0}});
    } catch (const lrmoe::memory_error&) {
      refused[r] = 1;
      throw;
    }
  }));
  CHECK(refused == std::vector<int>{1, 1});
}
