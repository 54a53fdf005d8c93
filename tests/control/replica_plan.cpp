#include <map>
#include <tuple>

#include <lrmoe/control/replica_plan.hpp>
#include <lrmoe/placement/home_placement.hpp>

#include "catch.hpp"
#include "fixture.hpp"
#include "random_plan.hpp"

namespace {

using fixture::at;
using fixture::index_values;
using fixture::plan_case;
using lrmoe::index_type;
using lrmoe::replica_plan;

/// The quota over parts in proportion to their counts, by sorting remainders.
index_values largest_remainders(const index_values& counts, index_type quota) {
  const auto L = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  index_values shares;
  std::vector<std::pair<std::int64_t, std::size_t>> order;  // -remainder, part
  std::int64_t left = quota;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::int64_t product = std::int64_t{quota} * counts[i];
    shares.push_back(L == 0 ? 0 : static_cast<index_type>(product / L));
    order.emplace_back(L == 0 ? 0 : -(product % L), i);
    left -= shares.back();
  }
  std::sort(order.begin(), order.end());
  for (std::int64_t i = 0; i < left; ++i) ++shares[order[at(i)].second];
  return shares;
}

/// Segments are the replicas, each once, by rank and slot; returns the replica of each.
index_values check_segments(const plan_case& of, const replica_plan& plan) {
  REQUIRE(plan.R == of.placed.R());
  REQUIRE(plan.H == of.placed.replicas());
  REQUIRE(plan.first_of_rank.size() == at(plan.R + 1));
  CHECK(plan.first_of_rank.front() == 0);
  CHECK(plan.first_of_rank.back() == plan.H);
  index_values replica;
  std::pair<index_type, index_type> last{-1, -1};
  for (std::int64_t h = 0; h < plan.H; ++h) {
    const index_type r = plan.rank[at(h)];
    const std::pair<index_type, index_type> place{r, plan.slot[at(h)]};
    CHECK(place > last);
    last = place;
    CHECK((plan.first_of_rank[at(r)] <= h && h < plan.first_of_rank[at(r + 1)]));
    replica.push_back(of.placed.find(plan.expert[at(h)], r));
    REQUIRE(replica.back() >= 0);
    CHECK(of.placed.slots()[at(replica.back())] == place.second);
  }
  return replica;
}

/// Counts are the split, and quotas spread by largest remainder, over replicas and then over sources.
void check_counts_and_quotas(const plan_case& of, const replica_plan& plan,
                             const index_values& replica) {
  const std::int64_t R = plan.R, H = plan.H;
  REQUIRE(plan.counts.size() == at(R * H));
  REQUIRE(plan.quotas.size() == at(R * H));
  index_values of_replica(at(H), 0), quota_of_replica(at(H), 0);
  for (std::int64_t s = 0; s < R; ++s) {
    for (std::int64_t h = 0; h < H; ++h) {
      CHECK(plan.count(s, h) == of.split[at(s * H + replica[at(h)])]);
      CHECK((plan.quota(s, h) >= 0 && plan.quota(s, h) <= plan.count(s, h)));
      of_replica[at(replica[at(h)])] += plan.count(s, h);
    }
  }
  for (std::int64_t e = 0; e < of.placed.E(); ++e) {
    const auto first = of.placed.offsets()[at(e)], last = of.placed.offsets()[at(e + 1)];
    const auto shares = largest_remainders({of_replica.begin() + first, of_replica.begin() + last},
                                           of.made.quotas[at(e)]);
    std::copy(shares.begin(), shares.end(), quota_of_replica.begin() + first);
  }
  for (std::int64_t h = 0; h < H; ++h) {
    index_values counts, quotas;
    for (std::int64_t s = 0; s < R; ++s) {
      counts.push_back(plan.count(s, h));
      quotas.push_back(plan.quota(s, h));
    }
    CHECK(quotas == largest_remainders(counts, quota_of_replica[at(replica[at(h)])]));
  }
}

using move_key = std::tuple<index_type, index_type, index_type>;  // source, from, to

/// Gives away the pairs of the rebalancer's moves one by one, each from the receiving rank if that has one
/// and otherwise from the lowest source that has.
std::map<move_key, index_type> moves_pair_by_pair(const plan_case& of, const replica_plan& plan,
                                                  const index_values& replica) {
  index_values kept(at(plan.H), 0), segment(at(plan.H));
  for (std::int64_t h = 0; h < plan.H; ++h) {
    segment[at(replica[at(h)])] = static_cast<index_type>(h);
    for (std::int64_t s = 0; s < plan.R; ++s) kept[at(replica[at(h)])] += plan.quota(s, h);
  }
  lrmoe::rebalancer balance;
  std::map<move_key, index_type> moves;
  index_values left = plan.quotas;
  for (const lrmoe::pair_move& move : balance.balance(of.placed, kept).moves) {
    const index_type from = segment[at(move.from)], to = segment[at(move.to)];
    for (index_type i = 0; i < move.count; ++i) {
      index_type source = plan.rank[at(to)];
      if (left[at(source * plan.H + from)] == 0) {
        source = 0;
        while (left[at(source * plan.H + from)] == 0) ++source;
        REQUIRE(source < plan.R);
      }
      --left[at(source * plan.H + from)];
      ++moves[{source, from, to}];
    }
  }
  return moves;
}

std::map<move_key, index_type> as_map(const replica_plan& plan) {
  std::map<move_key, index_type> moves;
  move_key last{-1, -1, -1};
  for (const lrmoe::source_move& move : plan.moves) {
    const move_key key{move.source, move.from, move.to};
    CHECK(key > last);
    CHECK(move.count >= 1);
    last = key;
    moves[key] = move.count;
  }
  return moves;
}

}  // namespace

TEST_CASE("a replica plan splits counts and quotas by largest remainder, and moves what is to move",
          "[control]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  lrmoe::replica_planner planner;  // one for all: sizes grow and shrink
  std::size_t moves = 0, of_others = 0;
  for (int round = 0; round < 200; ++round) {
    INFO("round " << round);
    const plan_case of = fixture::random_plan(draw);
    const replica_plan& plan = planner.make(of.made, of.placed, of.split, true);
    const index_values replica = check_segments(of, plan);
    check_counts_and_quotas(of, plan, replica);
    CHECK(as_map(plan) == moves_pair_by_pair(of, plan, replica));
    moves += plan.moves.size();
    for (const auto& move : plan.moves) of_others += move.source != plan.rank[at(move.to)];
    CHECK(&planner.last() == &plan);

    const index_values quotas = plan.quotas;
    CHECK(planner.make(of.made, of.placed, of.split, false).moves.empty());
    CHECK(planner.last().quotas == quotas);
  }
  CHECK(moves > 100);
  CHECK(of_others > 0);
}

TEST_CASE(
    "segments are experts where homes are in order, and elsewhere the quotas are the same ones",
    "[control]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  lrmoe::replica_planner planner;
  for (int round = 0; round < 50; ++round) {
    const std::int64_t R = draw.integer(1, 8), E = draw.integer(2, 20),
                       S = (E + R - 1) / R + draw.integer(1, 2);
    const plan_case home = fixture::random_plan(draw, lrmoe::home_placement(R, S, E));
    const replica_plan ordered = planner.make(home.made, home.placed, home.split, true);
    CHECK(ordered.by_expert);
    CHECK(ordered.moves.empty());
    CHECK(ordered.counts == home.made.source_counts);
    check_counts_and_quotas(home, ordered, check_segments(home, ordered));

    // The same slots with their experts mirrored: one holder each, in falling order.
    index_values slots(home.placed.expert_of_slot().begin(), home.placed.expert_of_slot().end());
    for (index_type& e : slots)
      if (e != lrmoe::no_expert) e = static_cast<index_type>(E - 1 - e);
    const lrmoe::placement mirrored(R, S, E, slots);
    const replica_plan& general = planner.make(home.made, mirrored, home.made.source_counts, true);
    CHECK_FALSE(general.by_expert);
    CHECK(general.moves.empty());
    for (std::int64_t s = 0; s < R; ++s)
      for (std::int64_t h = 0; h < E; ++h) {
        const auto e = at(s * E + general.expert[at(h)]);
        CHECK(general.count(s, h) == ordered.counts[e]);
        CHECK(general.quota(s, h) == ordered.quotas[e]);
      }
  }
}

TEST_CASE("several copies of an expert on one rank are one segment", "[control]") {
  const lrmoe::placement placed(2, 3, 2, {1, 0, 1, 0, lrmoe::no_expert, 0});
  fixture::random draw(1);
  const plan_case of{placed, fixture::random_quotas(draw, 2, 2, {4, 3, 2, 1}), {3, 1, 3, 0, 2, 1}};
  lrmoe::replica_planner planner;
  const replica_plan& plan = planner.make(of.made, of.placed, of.split, true);
  check_counts_and_quotas(of, plan, check_segments(of, plan));
  CHECK(plan.expert == index_values{1, 0, 0});
  CHECK(plan.slot == index_values{0, 1, 0});
  CHECK(plan.first_of_rank == index_values{0, 2, 3});
}

TEST_CASE("placements and splits that do not fit a plan are refused by name", "[control]") {
  const lrmoe::placement placed(2, 2, 3, {0, 1, 2, 0});  // replicas: 0 on both, 1, 2
  fixture::random draw(1);
  const lrmoe::plan made = fixture::random_quotas(draw, 2, 3, {5, 1, 2, 3, 0, 4});
  lrmoe::replica_planner planner;
  const auto refusal = [&](const lrmoe::placement& where, const index_values& split) {
    return fixture::refusal([&] { planner.make(made, where, split, true); });
  };
  CHECK(refusal(placed, {2, 3, 1, 2, 3, 0, 0, 4}).empty());
  CHECK(fixture::names(refusal(placed, {2, 2, 1, 2, 3, 0, 0, 4}),
                       {"expert 0", "4 pairs", "source 0", "has 5"}));
  CHECK(fixture::names(refusal(placed, {2, 3, 1, 2, 3, 0, 0, 5}), {"expert 2", "source 1"}));
  CHECK(fixture::names(refusal(placed, {6, -1, 1, 2, 3, 0, 0, 4}), {"negative"}));
  CHECK(fixture::names(refusal(placed, {2, 3, 1, 2}), {"4 numbers", "4 replicas", "(R, H)"}));
  const lrmoe::placement fewer(1, 3, 3, {0, 1, 2}), more(2, 2, 4, {0, 1, 2, 3});
  CHECK(fixture::names(refusal(fewer, {5, 1, 2}), {"R = 1", "R = 2"}));
  CHECK(fixture::names(refusal(more, {5, 1, 2, 0, 3, 0, 4, 0}), {"E = 4", "E = 3"}));
}
