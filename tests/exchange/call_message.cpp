#include <functional>

#include <lrmoe/exchange/call_message.hpp>
#include <lrmoe/exchange/logical.hpp>

#include "catch.hpp"
#include "fixture.hpp"
#include "random_plan.hpp"

namespace {

using fixture::index_values;
using lrmoe::call_message;
using lrmoe::index_type;
using lrmoe::logical::communicator;

call_message message_of(int rank) {
  call_message message;
  message.T = 10 + rank;
  message.available_bytes = 1000 * rank;
  message.step = 7;
  message.slots = 3;
  message.element_bytes = 4;
  message.shape = {.D = 8, .F = 6, .E = 2, .K = 1, .F_shared = 0};
  return message;
}

/// What each rank's program fails with; empty if it does not.
template <class Error, class Program>
std::vector<std::string> errors_of(int R, const Program& program) {
  std::vector<std::string> found(static_cast<std::size_t>(R));
  lrmoe::logical::world world(R);
  world.run([&](communicator& ranks) {
    try {
      program(ranks);
    } catch (const Error& failure) {
      found[static_cast<std::size_t>(ranks.rank())] = failure.what();
    }
    CHECK(lrmoe::sum_over_ranks(ranks, std::int64_t{1}) == R);  // usable either way
  });
  return found;
}

}  // namespace

TEST_CASE("calls and counts of all ranks come to all, and tokens and memory may differ",
          "[exchange]") {
  for (const int R : {1, 2, 3, 8}) {
    lrmoe::logical::world world(R);
    world.run([&](communicator& ranks) {
      const index_values counts{ranks.rank(), 100 + ranks.rank()};
      // Longer than they become: what an earlier call left must go.
      std::vector<call_message> calls(20);
      index_values source_counts(50, -1);
      lrmoe::gather_calls(ranks, message_of(ranks.rank()), counts, calls, source_counts);
      REQUIRE(calls.size() == static_cast<std::size_t>(R));
      REQUIRE(source_counts.size() == static_cast<std::size_t>(2 * R));
      for (int r = 0; r < R; ++r) {
        const auto at = static_cast<std::size_t>(r);
        CHECK(calls[at].T == 10 + r);
        CHECK(calls[at].available_bytes == 1000 * r);
        CHECK(calls[at].settings() == message_of(0).settings());
        CHECK(source_counts[2 * at] == r);
        CHECK(source_counts[2 * at + 1] == 100 + r);
      }
    });
  }
}

TEST_CASE("a setting that differs on one rank is refused on all, with its name, values and ranks",
          "[exchange]") {
  using change = std::function<void(call_message&)>;
  const std::pair<std::string, change> changes[] = {
      {"step is '7' on ranks 0, 1, '8' on rank 2", [](auto& m) { m.step = 8; }},
      {"slots S is '3' on ranks 0, 1, '4' on rank 2", [](auto& m) { m.slots = 4; }},
      {"layer id", [](auto& m) { m.layer = 1; }},
      {"bytes of an element", [](auto& m) { m.element_bytes = 2; }},
      {"keep_for_backward", [](auto& m) { m.backward = 1; }},
      {"D is '8'", [](auto& m) { m.shape.D = 9; }},
      {"F is '6'", [](auto& m) { m.shape.F = 9; }},
      {"E is '2'", [](auto& m) { m.shape.E = 9; }},
      {"K is '1'", [](auto& m) { m.shape.K = 2; }},
      {"F_shared is '0'", [](auto& m) { m.shape.F_shared = 5; }},
  };
  for (const auto& [name, apply] : changes) {
    const auto found = errors_of<lrmoe::argument_error>(3, [&](communicator& ranks) {
      call_message mine = message_of(ranks.rank());
      if (ranks.rank() == 2) apply(mine);
      std::vector<call_message> calls;
      index_values source_counts;
      lrmoe::gather_calls(ranks, mine, index_values{1, 2}, calls, source_counts);
    });
    for (const auto& message : found) CHECK(fixture::names(message, {name}));
  }
}

TEST_CASE("plans that differ in anything that messages depend on are refused on every rank",
          "[exchange]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const auto of = fixture::random_plan(draw, fixture::random_placement(draw, 3, 4, 4));
  lrmoe::replica_planner planner;
  lrmoe::replica_plan replicas = planner.make(of.made, of.placed, of.split, false);
  replicas.moves = {{0, 0, 1, 1}};

  using change = std::function<void(lrmoe::plan&, lrmoe::replica_plan&)>;
  const auto refusals = [&](const change& apply) {
    return errors_of<lrmoe::rank_error>(3, [&](communicator& ranks) {
      lrmoe::plan made = of.made;
      lrmoe::replica_plan here = replicas;
      if (ranks.rank() == 1) apply(made, here);
      lrmoe::require_same_plan(ranks, made, here);
    });
  };
  for (const auto& message : refusals([](auto&, auto&) {})) CHECK(message.empty());
  const change changes[] = {
      [](auto& made, auto&) { ++made.quotas[2]; },
      [](auto&, auto& here) { ++here.expert.front(); },
      [](auto&, auto& here) { ++here.rank.back(); },
      [](auto&, auto& here) { ++here.slot.front(); },
      [](auto&, auto& here) { ++here.counts.back(); },
      [](auto&, auto& here) { ++here.quotas.front(); },
      [](auto&, auto& here) { here.moves.clear(); },
      [](auto&, auto& here) { ++here.moves[0].source; },
      [](auto&, auto& here) { ++here.moves[0].from; },
      [](auto&, auto& here) { ++here.moves[0].to; },
      [](auto&, auto& here) { ++here.moves[0].count; },
  };
  for (const change& apply : changes)
    for (const auto& message : refusals(apply))
      CHECK(fixture::names(message, {"ranks 0 and 1", "policies"}));
}
