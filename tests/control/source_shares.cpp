#include <algorithm>
#include <numeric>

#include <lrmoe/control/source_shares.hpp>

#include "catch.hpp"
#include "fixture.hpp"

namespace {

using counts_type = std::vector<lrmoe::index_type>;
using wide = std::int64_t;  // q n is below 2^62

counts_type split(std::int64_t R, std::int64_t E, const counts_type& n, const counts_type& q) {
  counts_type shares(n.size(), -77);
  lrmoe::split_by_source(R, E, n, q, shares);
  return shares;
}

/// Largest remainders by sorting, in integers of 64 bits.
counts_type split_by_sorting(std::int64_t R, std::int64_t E, const counts_type& n,
                             const counts_type& q) {
  counts_type shares(n.size(), 0);
  for (std::int64_t e = 0; e < E; ++e) {
    wide L = 0;
    for (std::int64_t s = 0; s < R; ++s) L += n[static_cast<std::size_t>(s * E + e)];
    if (L == 0) continue;
    std::vector<std::int64_t> order;
    std::vector<wide> rest;
    wide left = q[static_cast<std::size_t>(e)];
    for (std::int64_t s = 0; s < R; ++s) {
      const wide product = static_cast<wide>(q[static_cast<std::size_t>(e)]) *
                           n[static_cast<std::size_t>(s * E + e)];
      shares[static_cast<std::size_t>(s * E + e)] = static_cast<lrmoe::index_type>(product / L);
      left -= product / L;
      rest.push_back(product % L);
      order.push_back(s);
    }
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return rest[static_cast<std::size_t>(a)] > rest[static_cast<std::size_t>(b)];
    });
    for (wide i = 0; i < left; ++i) {
      ++shares[static_cast<std::size_t>(order[static_cast<std::size_t>(i)] * E + e)];
    }
  }
  return shares;
}

}  // namespace

TEST_CASE("shares go to the largest remainders, and of equal ones to the lowest source",
          "[control]") {
  // 5 of 3 + 3 + 4: 1.5, 1.5, 2.
  CHECK(split(3, 1, {3, 3, 4}, {5}) == counts_type{2, 1, 2});
  CHECK(split(4, 1, {1, 1, 1, 1}, {2}) == counts_type{1, 1, 0, 0});
  CHECK(split(3, 1, {0, 7, 0}, {4}) == counts_type{0, 4, 0});
  CHECK(split(2, 3, {4, 0, 1, 2, 0, 3}, {3, 0, 2}) == counts_type{2, 0, 1, 1, 0, 1});
}

TEST_CASE("one source takes the quota, and no quota is no share", "[control]") {
  CHECK(split(1, 3, {5, 0, 2147483647}, {3, 0, 2147483647}) == counts_type{3, 0, 2147483647});
  CHECK(split(2, 2, {5, 6, 7, 8}, {0, 0}) == counts_type{0, 0, 0, 0});
  CHECK(split(2, 2, {5, 6, 7, 8}, {12, 14}) == counts_type{5, 6, 7, 8});
}

TEST_CASE("shares equal those of sorting in wide integers", "[control]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (int round = 0; round < 300; ++round) {
    const auto R = draw.integer(1, 20), E = draw.integer(1, 12);
    // Small counts tie often; large ones need more than 53 bits for q n.
    const oracle::integer most[] = {1, 3, 40, 30000, 3000000, 100000000};
    counts_type n, q;
    for (std::int64_t i = 0; i < R * E; ++i) {
      const auto high = most[static_cast<std::size_t>(draw.integer(0, round % 6))];
      n.push_back(
          static_cast<lrmoe::index_type>(draw.integer(0, 3) == 0 ? 0 : draw.integer(0, high)));
    }
    for (std::int64_t e = 0; e < E; ++e) {
      std::int64_t L = 0;
      for (std::int64_t s = 0; s < R; ++s) L += n[static_cast<std::size_t>(s * E + e)];
      q.push_back(static_cast<lrmoe::index_type>(draw.integer(0, L)));
      if (draw.integer(0, 5) == 0) q.back() = static_cast<lrmoe::index_type>(L);
    }
    const counts_type shares = split(R, E, n, q);
    REQUIRE(shares == split_by_sorting(R, E, n, q));
    for (std::size_t i = 0; i < n.size(); ++i) REQUIRE((shares[i] >= 0 && shares[i] <= n[i]));
  }
}

TEST_CASE("quotients next to a whole number are exact up to the largest counts", "[control]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (int round = 0; round < 2000; ++round) {
    // q n = k L - 1 or k L: with L = q m + 1 and n = L - m, q n = (q - 1) L + 1; near them all kinds.
    const auto bits = draw.integer(20, 30);
    const auto L = (std::int64_t{1} << bits) + draw.integer(-3, 3);
    const auto q = draw.integer(L / 2, L);
    const auto first = draw.integer(0, 1) == 0 ? L - draw.integer(1, 4) : draw.integer(0, L);
    const counts_type n{static_cast<lrmoe::index_type>(first),
                        static_cast<lrmoe::index_type>(L - first)};
    const counts_type quota{static_cast<lrmoe::index_type>(q)};
    REQUIRE(split(2, 1, n, quota) == split_by_sorting(2, 1, n, quota));
  }
}

TEST_CASE("shares of many sources whose remainders are close, or equal, are exact", "[control]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (int round = 0; round < 40; ++round) {
    const auto R = draw.integer(100, 400), E = draw.integer(1, 40);
    counts_type n(static_cast<std::size_t>(R * E)), q;
    std::vector<std::int64_t> L(static_cast<std::size_t>(E), 0);
    // All sources alike to within a few pairs, of a number that differs between experts.
    for (std::int64_t e = 0; e < E; ++e) {
      const auto usual = draw.integer(0, 60000), spread = draw.integer(0, 3);
      for (std::int64_t s = 0; s < R; ++s) {
        const auto count = usual + draw.integer(0, spread);
        n[static_cast<std::size_t>(s * E + e)] = static_cast<lrmoe::index_type>(count);
        L[static_cast<std::size_t>(e)] += count;
      }
      const auto most = L[static_cast<std::size_t>(e)];
      const auto few = draw.integer(0, std::min<std::int64_t>(R, most));
      const std::int64_t quotas[] = {few, most - few, draw.integer(0, most)};
      q.push_back(static_cast<lrmoe::index_type>(quotas[draw.integer(0, 2)]));
    }
    REQUIRE(split(R, E, n, q) == split_by_sorting(R, E, n, q));
  }
}
