#include <lrmoe/rebalance/rebalance_certificate.hpp>

#include "cases.hpp"
#include "catch.hpp"

using namespace rebalance_cases;

namespace {

/// Move one pair of a replica that has some to another one of its expert; false if none can.
bool disturb(fixture::random& draw, const problem& of, numbers& pairs) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    const auto from =
        static_cast<std::size_t>(draw.integer(0, static_cast<std::int64_t>(pairs.size()) - 1));
    const auto e = static_cast<std::size_t>(of.where.experts()[from]);
    const auto to = static_cast<std::size_t>(
        draw.integer(of.where.offsets()[e], of.where.offsets()[e + 1] - 1));
    if (pairs[from] == 0 || to == from) continue;
    --pairs[from];
    ++pairs[to];
    return true;
  }
  return false;
}

}  // namespace

TEST_CASE("splits that are not optimal do not meet the bounds", "[rebalance]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  lrmoe::rebalancer rebalancer;
  int higher = 0, farther = 0;
  for (int round = 0; round < 400; ++round) {
    const auto R = draw.integer(2, 12);
    problem of{random_placement(draw, R, 3, draw.integer(1, 2 * R)), {}, {}};
    for (std::int64_t h = 0; h < of.where.replicas(); ++h) {
      of.kept.push_back(static_cast<index_type>(draw.integer(0, 50)));
    }
    const auto best = rebalancer.balance(of.where, of.kept);
    numbers pairs = best.pairs;
    const auto changes = draw.integer(1, 3);
    for (int i = 0; i < changes; ++i) disturb(draw, of, pairs);
    const auto proof = lrmoe::certify_rebalance(of.where, of.kept, {}, pairs);
    const auto peak_now = peak(of, pairs), moved_now = moved(of, pairs);
    if (peak_now > best.peak) {
      ++higher;
      CHECK(proof.peak_bound < peak_now);
    } else {
      CHECK(proof.peak_bound == peak_now);
      // Equal in both: another optimal split.
      if (moved_now > best.pairs_moved) ++farther;
      CHECK((proof.moves_bound < moved_now) == (moved_now > best.pairs_moved));
    }
  }
  CHECK(higher > 20);
  CHECK(farther > 20);
}

TEST_CASE("bounds hold for any ranks and any prices", "[rebalance]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  lrmoe::rebalancer rebalancer;
  for (int round = 0; round < 500; ++round) {
    const auto R = draw.integer(1, 6);
    problem of{random_placement(draw, R, 3, draw.integer(1, 2 * R)), {}, {}};
    for (std::int64_t h = 0; h < of.where.replicas(); ++h) {
      of.kept.push_back(static_cast<index_type>(draw.integer(0, 20)));
    }
    for (std::int64_t r = 0; r < R; ++r) {
      of.fixed.push_back(static_cast<index_type>(draw.integer(0, 20)));
    }
    const auto& best = rebalancer.balance(of.where, of.kept, of.fixed);
    numbers ranks, prices;
    for (std::int64_t r = 0; r < R; ++r) {
      if (draw.integer(0, 1) == 1) ranks.push_back(static_cast<index_type>(r));
      prices.push_back(static_cast<index_type>(draw.integer(0, 3)));
    }
    if (!ranks.empty()) {
      CHECK(lrmoe::peak_bound(of.where, of.kept, of.fixed, ranks) <= best.peak);
    }
    CHECK(lrmoe::moves_bound(of.where, of.kept, of.fixed, best.peak, prices) <= best.pairs_moved);
  }
}

TEST_CASE("a certificate names the ranks in the way and what room costs", "[rebalance]") {
  // Expert 0 on rank 0 alone, expert 1 on ranks 0 and 1, expert 2 on ranks 1 and 2.
  const lrmoe::placement where(3, 2, 3, {0, 1, 1, 2, 2, lrmoe::no_expert});
  const numbers kept{9, 0, 2, 5, 0};
  const auto result = lrmoe::rebalancer().balance(where, kept);
  CHECK(result.peak == 9);
  const auto proof = lrmoe::certify_rebalance(where, kept, {}, result.pairs);
  CHECK(proof.ranks == numbers{0});
  CHECK(proof.peak_bound == 9);
  CHECK(proof.moves_bound == 0);
  // Without rank 0's own pairs, the 5 of expert 2 fill ranks 1 and 2, and those of expert 1 give way.
  const numbers light{0, 0, 2, 5, 0};
  const auto level = lrmoe::rebalancer().balance(where, light);
  const auto level_proof = lrmoe::certify_rebalance(where, light, {}, level.pairs);
  CHECK(level.peak == 3);
  CHECK(level_proof.ranks == numbers{1, 2});
  CHECK(level_proof.moves_bound == 4);
  CHECK(level_proof.prices == numbers{0, 1, 0});
}

TEST_CASE("a split of other pairs cannot be certified", "[rebalance]") {
  const lrmoe::placement where(2, 1, 1, {0, 0});
  const auto refused = [&](const numbers& kept, const numbers& fixed, const numbers& pairs) {
    return fixture::refusal([&] { lrmoe::certify_rebalance(where, kept, fixed, pairs); });
  };
  CHECK(refused({3, 2}, {}, {1, 4}).empty());
  CHECK(fixture::names(refused({3, 2}, {}, {1, 3}), {"lacks 1", "expert 0"}));
  CHECK(fixture::names(refused({3, 2}, {}, {-1, 6}), {"replica 0", "-1"}));
  CHECK(fixture::names(refused({3}, {}, {3, 0}), {"1 numbers", "H = 2"}));
  CHECK(fixture::names(refused({3, 2}, {1}, {3, 2}), {"1 ranks", "R = 2"}));
}
