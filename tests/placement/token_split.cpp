#include <lrmoe/placement/token_split.hpp>

#include "catch.hpp"
#include "requests.hpp"

using requests::counts_type;

namespace {

/// Expert 0 on ranks 0, 1 (twice) and 3, expert 1 on rank 2.
const lrmoe::placement where(4, 2, 2, {0, -1, 0, 0, 1, -1, 0, -1});

template <class Split>
counts_type made(const Split& split) {
  counts_type x(16, -77);
  split(std::span(x));
  return x;
}

}  // namespace

TEST_CASE("pairs go round the slots that hold an expert", "[placement]") {
  const counts_type n{5, 1, 0, 2, 3, 0, 2, 4};
  // Slots 0 | 1 1 | 3: the turn is with 0 first, then with slot 1 after 5 pairs, with 0 after 8.
  CHECK(made([&](auto x) { lrmoe::split_evenly(where, n, x); }) ==
        counts_type{2, 2, 1, 1, 0, 0, 0, 2, 0, 2, 1, 0, 1, 1, 0, 4});
}

TEST_CASE("pairs stay in their node where it has a copy", "[placement]") {
  const counts_type n{5, 1, 0, 2, 3, 0, 2, 4};
  CHECK(made([&](auto x) { lrmoe::split_in_node(where, 2, n, x); }) ==
        counts_type{2, 3, 0, 1, 0, 0, 0, 2, 0, 0, 3, 0, 0, 0, 2, 4});
  // Nodes of one rank: rank 2 has none of expert 0, so its 3 pairs go over all four slots.
  CHECK(made([&](auto x) { lrmoe::split_in_node(where, 1, n, x); }) ==
        counts_type{5, 0, 0, 1, 0, 0, 0, 2, 1, 2, 0, 0, 0, 0, 2, 4});
}

TEST_CASE("pairs stay at their rank or go home", "[placement]") {
  const counts_type n{5, 1, 1, 2, 3, 0, 2, 4}, home{3, 2};
  CHECK(made([&](auto x) { lrmoe::split_own_rank_or_home(where, home, n, x); }) ==
        counts_type{5, 0, 0, 1, 0, 1, 0, 2, 0, 0, 3, 0, 0, 0, 2, 4});
  CHECK(fixture::names(fixture::refusal([&] {
                         made([&](auto x) {
                           lrmoe::split_own_rank_or_home(where, counts_type{2, 2}, n, x);
                         });
                       }),
                       {"home rank 2", "expert 0"}));
}

TEST_CASE("planned loads take their own pairs first, others in proportion", "[placement]") {
  const counts_type n{9, 0, 1, 0, 6, 0, 2, 1}, loads{4, 9, 5, 1};
  // Own: 4, 1, 2. Left: 0, 8, 3 for 5 pairs of rank 0 and 6 of rank 2: 3.64 and 1.36, 4.36 and 1.64.
  CHECK(made([&](auto x) { lrmoe::split_by_loads_in_proportion(where, loads, n, x); }) ==
        counts_type{4, 4, 1, 0, 0, 1, 0, 0, 0, 4, 2, 0, 0, 0, 2, 1});
}

TEST_CASE("planned loads take their node's pairs before others'", "[placement]") {
  const counts_type n{9, 0, 1, 0, 6, 0, 2, 1}, loads{4, 9, 5, 1};
  // Node 0: 5 of rank 0 go to rank 1, which has 3 left. Node 1: 3 of rank 2 go to rank 3, 3 to rank 1.
  CHECK(made([&](auto x) { lrmoe::split_by_loads(where, 2, loads, n, x); }) ==
        counts_type{4, 5, 0, 0, 0, 1, 0, 0, 0, 3, 3, 0, 0, 0, 2, 1});
  // Ranks 3 and 5 of three nodes run 3 pairs each; rank 2 is in the node of 3, rank 0 is alone.
  const lrmoe::placement apart(6, 1, 1, {-1, -1, -1, 0, -1, 0});
  const counts_type from{3, 0, 3, 0, 0, 0}, three{3, 3};
  counts_type x(12, -77);
  lrmoe::split_by_loads(apart, 2, three, from, x);
  CHECK(x == counts_type{0, 3, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0});
  // Without nodes, sources fill holders in order.
  lrmoe::split_by_loads(apart, 6, three, from, x);
  CHECK(x == counts_type{3, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("intervals of sources go to home, then to the other holders", "[placement]") {
  const counts_type n{9, 0, 1, 0, 6, 0, 2, 1}, loads{4, 9, 5, 1}, home{1, 2};
  CHECK(made([&](auto x) { lrmoe::split_in_intervals(where, home, loads, n, x); }) ==
        counts_type{0, 9, 0, 0, 1, 0, 0, 0, 3, 0, 3, 0, 0, 0, 2, 1});
}

TEST_CASE("loads of other counts and wrong extents are refused", "[placement]") {
  const counts_type n{9, 0, 1, 0, 6, 0, 2, 1}, home{1, 2};
  counts_type x(16);
  for (const counts_type& loads : {counts_type{4, 9, 6, 1}, counts_type{4, 9, 4, 1}}) {
    CHECK(fixture::names(
        fixture::refusal([&] { lrmoe::split_by_loads_in_proportion(where, loads, n, x); }),
        {"18", "plan again"}));
    CHECK(fixture::names(fixture::refusal([&] { lrmoe::split_by_loads(where, 2, loads, n, x); }),
                         {"18", "plan again"}));
    CHECK(fixture::names(
        fixture::refusal([&] { lrmoe::split_in_intervals(where, home, loads, n, x); }),
        {"18", "plan again"}));
  }
  CHECK(fixture::names(
      fixture::refusal([&] { lrmoe::split_by_loads(where, 2, counts_type{18}, n, x); }),
      {"1 loads", "H = 4"}));
  CHECK(fixture::names(fixture::refusal([&] {
                         lrmoe::split_evenly(where, counts_type{1, 2}, x);
                       }),
                       {"2 counts", "R = 4"}));
  CHECK(fixture::names(
      fixture::refusal([&] { lrmoe::split_evenly(where, n, std::span(x).first(7)); }),
      {"room for 7", "H = 4"}));
}

TEST_CASE("an even split misses no slot by more than a pair, whatever the sources", "[placement]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (int round = 0; round < 200; ++round) {
    const std::int64_t R = draw.integer(1, 6), S = draw.integer(1, 4), E = draw.integer(1, R * S);
    counts_type slots;
    for (std::int64_t i = 0; i < R * S; ++i)
      slots.push_back(static_cast<lrmoe::index_type>(i < E ? i : draw.integer(0, E - 1)));
    const lrmoe::placement any(R, S, E, slots);
    const auto n = requests::random_counts(draw, R, E, "uniform", 50);
    const std::int64_t H = any.replicas();
    counts_type x(static_cast<std::size_t>(R * H), -77);
    lrmoe::split_evenly(any, n, x);
    for (std::int64_t h = 0; h < H; ++h) {
      const auto e = any.experts()[static_cast<std::size_t>(h)];
      std::int64_t L = 0, C = 0, run = 0;
      for (std::int64_t s = 0; s < R; ++s) {
        L += n[static_cast<std::size_t>(s * E + e)];
        run += x[static_cast<std::size_t>(s * H + h)];
      }
      for (const auto held : slots) C += held == e ? 1 : 0;
      const std::int64_t c = any.copies()[static_cast<std::size_t>(h)];
      CHECK(run >= c * (L / C));
      CHECK(run <= c * ((L + C - 1) / C));
    }
  }
}
