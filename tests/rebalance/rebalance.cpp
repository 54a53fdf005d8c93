#include <cmath>

#include <lrmoe/rebalance/rebalance.hpp>
#include <lrmoe/rebalance/rebalance_certificate.hpp>

#include "cases.hpp"
#include "catch.hpp"

using namespace rebalance_cases;

namespace {

/// Few pairs, so that all splits can be enumerated.
problem small_problem(fixture::random& draw) {
  while (true) {
    const auto R = draw.integer(1, 4), S = draw.integer(1, 3);
    const auto E = draw.integer(1, std::min<std::int64_t>(R * S, 4));
    problem of{random_placement(draw, R, S, E), {}, {}};
    const auto most = draw.integer(1, 6);
    double splits = 1;
    for (std::int64_t e = 0; e < E; ++e) {
      const auto replicas = static_cast<std::int64_t>(of.where.holders(e).size());
      std::int64_t sum = 0;
      for (std::int64_t i = 0; i < replicas; ++i) {
        of.kept.push_back(
            static_cast<index_type>(draw.integer(0, 2) == 0 ? 0 : draw.integer(0, most)));
        sum += of.kept.back();
      }
      for (std::int64_t i = 1; i < replicas; ++i)
        splits *= static_cast<double>(sum + i) / static_cast<double>(i);
    }
    if (splits > 3e3) continue;
    if (draw.integer(0, 1) == 1) {
      for (std::int64_t r = 0; r < R; ++r) {
        of.fixed.push_back(static_cast<index_type>(draw.integer(0, 8)));
      }
    }
    return of;
  }
}

/// Loads as a quota may leave them: `skew` spreads experts, and pairs of one expert lie anywhere.
problem large_problem(fixture::random& draw, std::int64_t R, std::int64_t S, std::int64_t E,
                      double skew, index_type most) {
  problem of{random_placement(draw, R, S, E), {}, {}};
  for (std::size_t h = 0; h < static_cast<std::size_t>(of.where.replicas()); ++h) {
    const double popularity = std::pow(1.0 + of.where.experts()[h], -skew);
    const bool none = draw.integer(0, 4) == 0;
    of.kept.push_back(none ? 0 : static_cast<index_type>(draw.uniform(0, most * popularity)));
  }
  return of;
}

/// Optimal in both objectives, as certificates that know nothing of the solver show.
void check_optimal(const problem& of, const lrmoe::rebalanced& result) {
  REQUIRE(consistent(of, result));
  const auto proof = lrmoe::certify_rebalance(of.where, of.kept, of.fixed, result.pairs);
  CHECK(result.peak == proof.peak_bound);
  CHECK(result.pairs_moved == proof.moves_bound);
}

}  // namespace

TEST_CASE("no split of few pairs has a lower peak or the same with fewer moves", "[rebalance]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  lrmoe::rebalancer rebalancer;
  for (int round = 0; round < 5000; ++round) {
    const problem of = small_problem(draw);
    const auto& result = rebalancer.balance(of.where, of.kept, of.fixed);
    INFO("round " << round);
    REQUIRE(consistent(of, result));
    const auto [peak, moves] = enumerate(of);
    REQUIRE(result.peak == peak);
    REQUIRE(result.pairs_moved == moves);
    const auto proof = lrmoe::certify_rebalance(of.where, of.kept, of.fixed, result.pairs);
    REQUIRE(proof.peak_bound == peak);
    REQUIRE(proof.moves_bound == moves);
  }
}

TEST_CASE("certificates prove large splits optimal", "[rebalance]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  lrmoe::rebalancer rebalancer;
  for (int round = 0; round < 60; ++round) {
    auto of = large_problem(draw, 64, 4, draw.integer(1, 4) == 1 ? 40 : 128,
                            0.3 * static_cast<double>(round % 6),
                            static_cast<index_type>(draw.integer(1, 20000)));
    if (round % 2 == 1) {
      for (int r = 0; r < 64; ++r)
        of.fixed.push_back(static_cast<index_type>(draw.integer(0, 9000)));
    }
    INFO("round " << round);
    check_optimal(of, rebalancer.balance(of.where, of.kept, of.fixed));
  }
  for (int round = 0; round < 200; ++round) {
    const auto R = draw.integer(1, 20), S = draw.integer(1, 6);
    const auto E = draw.integer(1, R * S);
    const auto of = large_problem(draw, R, S, E, draw.uniform(0, 1.5),
                                  static_cast<index_type>(draw.integer(1, 300)));
    INFO("R " << R << " S " << S << " E " << E);
    check_optimal(of, rebalancer.balance(of.where, of.kept, of.fixed));
  }
}

TEST_CASE("pairs of hot experts are levelled over replicas made for them", "[rebalance]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  lrmoe::rebalancer rebalancer;
  for (const double skew : {0.0, 0.6, 1.2}) {
    numbers pairs;
    for (int e = 0; e < 128; ++e) {
      pairs.push_back(
          static_cast<index_type>(1e5 * std::pow(1.0 + e, -skew) * draw.uniform(0.8, 1)));
    }
    problem of{hottest_replicated(64, 4, pairs), {}, {}};
    for (std::size_t h = 0; h < static_cast<std::size_t>(of.where.replicas()); ++h) {
      const auto e = of.where.experts()[h];
      const auto replicas = static_cast<double>(of.where.holders(e).size());
      of.kept.push_back(static_cast<index_type>(pairs[static_cast<std::size_t>(e)] / replicas *
                                                draw.uniform(0.1, 0.9)));
    }
    const auto& result = rebalancer.balance(of.where, of.kept);
    check_optimal(of, result);
    CHECK(peak(of, of.kept) > result.peak);
  }
}

TEST_CASE("a rebalanced call stays as it is", "[rebalance]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  lrmoe::rebalancer rebalancer;
  for (int round = 0; round < 50; ++round) {
    auto of = large_problem(draw, 16, 3, 20, 0.5, 1000);
    of.kept = rebalancer.balance(of.where, of.kept).pairs;
    const auto& again = rebalancer.balance(of.where, of.kept);
    CHECK(again.pairs == of.kept);
    CHECK(again.moves.empty());
    CHECK(again.pairs_moved == 0);
  }
}

TEST_CASE("equal problems have equal results, whatever was solved before", "[rebalance]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  lrmoe::rebalancer used;
  for (int round = 0; round < 30; ++round) {
    const auto R = draw.integer(2, 40);
    const auto of = large_problem(draw, R, 4, draw.integer(1, 4 * R), 0.4, 500);
    lrmoe::rebalancer fresh;
    const auto& a = used.balance(of.where, of.kept);
    const auto& b = fresh.balance(of.where, of.kept);
    CHECK(a.pairs == b.pairs);
    REQUIRE(a.moves.size() == b.moves.size());
    for (std::size_t i = 0; i < a.moves.size(); ++i) {
      CHECK(a.moves[i].from == b.moves[i].from);
      CHECK(a.moves[i].to == b.moves[i].to);
      CHECK(a.moves[i].count == b.moves[i].count);
    }
  }
}

TEST_CASE("one rank computes all it holds", "[rebalance]") {
  const problem of{{1, 4, 3, {2, 0, 1, 2}}, {5, 0, 7}, {4}};
  const auto result = lrmoe::rebalancer().balance(of.where, of.kept, of.fixed);
  CHECK(result.pairs == of.kept);
  CHECK(result.peak == 16);
  CHECK(result.moves.empty());
}

TEST_CASE("experts with one holder stay, and all else makes way for them", "[rebalance]") {
  // Expert 0 on rank 0 alone; expert 1 on both.
  const problem of{{2, 2, 2, {0, 1, 1, lrmoe::no_expert}}, {10, 6, 0}, {}};
  lrmoe::rebalancer rebalancer;
  const auto& result = rebalancer.balance(of.where, of.kept);
  CHECK(result.pairs == numbers{10, 0, 6});
  CHECK(result.peak == 10);
  REQUIRE(result.moves.size() == 1);
  CHECK(result.moves[0].from == 1);
  CHECK(result.moves[0].to == 2);
  CHECK(result.moves[0].count == 6);
  // Three fewer need move no more than levels: two more than rank 1 is no better than one more.
  CHECK(rebalancer.balance(of.where, numbers{3, 6, 0}).pairs == numbers{3, 2, 4});
}

TEST_CASE("pairs go over other experts where no rank below the peak holds theirs", "[rebalance]") {
  // Expert 0 on ranks 0 and 1, expert 1 on ranks 1 and 2: room on rank 2 serves rank 0 over rank 1.
  const problem of{{3, 2, 2, {0, lrmoe::no_expert, 0, 1, 1, lrmoe::no_expert}}, {9, 0, 3, 0}, {}};
  const auto result = lrmoe::rebalancer().balance(of.where, of.kept);
  CHECK(result.peak == 5);
  CHECK(result.pairs_moved == 6);
  check_optimal(of, result);
}

TEST_CASE("no pairs at all, or all on one rank", "[rebalance]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  lrmoe::rebalancer rebalancer;
  problem of{random_placement(draw, 8, 4, 12, 1.0), {}, {}};
  of.kept.assign(static_cast<std::size_t>(of.where.replicas()), 0);
  const auto& empty = rebalancer.balance(of.where, of.kept);
  CHECK(empty.peak == 0);
  CHECK(empty.moves.empty());
  for (index_type r = 0; r < 8; ++r) {
    for (std::size_t h = 0; h < of.kept.size(); ++h) {
      of.kept[h] = of.where.ranks()[h] == r ? static_cast<index_type>(draw.integer(0, 1000)) : 0;
    }
    check_optimal(of, rebalancer.balance(of.where, of.kept));
  }
}

TEST_CASE("fixed loads above everything else take no pairs and set the peak", "[rebalance]") {
  const problem of{{2, 1, 1, {0, 0}}, {50, 50}, {1000, 3}};
  const auto result = lrmoe::rebalancer().balance(of.where, of.kept, of.fixed);
  CHECK(result.pairs == numbers{0, 100});
  CHECK(result.peak == 1000);
  check_optimal(of, result);
}

TEST_CASE("loads beyond 31 bits are right", "[rebalance]") {
  constexpr auto most = std::numeric_limits<index_type>::max();
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  lrmoe::rebalancer rebalancer;
  // Every expert of 2^31 - 1 pairs on the first of its ranks.
  for (int round = 0; round < 20; ++round) {
    problem of{random_placement(draw, 8, 4, 10, 1.0), {}, {}};
    of.kept.assign(static_cast<std::size_t>(of.where.replicas()), 0);
    for (std::size_t e = 0; e < 10; ++e) {
      of.kept[static_cast<std::size_t>(of.where.offsets()[e])] = most - static_cast<index_type>(e);
    }
    if (round % 2 == 1) of.fixed.assign(8, most);
    const auto& result = rebalancer.balance(of.where, of.kept, of.fixed);
    check_optimal(of, result);
    CHECK(result.peak > most);
  }
}

TEST_CASE("what cannot be a load is refused by name", "[rebalance]") {
  constexpr auto most = std::numeric_limits<index_type>::max();
  const lrmoe::placement where(2, 2, 2, {0, 1, 1, lrmoe::no_expert});
  lrmoe::rebalancer rebalancer;
  const auto refused = [&](const numbers& kept, const numbers& fixed) {
    return fixture::refusal([&] { rebalancer.balance(where, kept, fixed); });
  };
  CHECK(refused({1, 2, 3}, {}).empty());
  CHECK(fixture::names(refused({1, 2}, {}), {"2 replicas", "H = 3"}));
  CHECK(fixture::names(refused({1, 2, 3}, {1}), {"1 ranks", "R = 2"}));
  CHECK(fixture::names(refused({1, -2, 3}, {}), {"replica 1", "-2", "negative"}));
  CHECK(fixture::names(refused({1, 2, 3}, {0, -7}), {"rank 1", "-7", "negative"}));
  CHECK(fixture::names(refused({1, most, 1}, {}), {"expert 1", "2147483648", "2^31 - 1"}));
  CHECK(refused({most, most, 0}, {most, most}).empty());
  const auto& before = rebalancer.balance(where, numbers{1, 2, 3});
  CHECK(fixture::names(fixture::refusal([&] { rebalancer.balance({}, {}); }), {"empty"}));
  CHECK(before.peak == 3);
}
