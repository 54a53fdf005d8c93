#include <lrmoe/quota/fixed_fraction.hpp>

#include "catch.hpp"
#include "fixture.hpp"

namespace {

using fixture::device;
using oracle::integer;

std::vector<std::int32_t> assigned(const lrmoe::fixed_fraction& policy,
                                   const std::vector<std::int32_t>& counts) {
  policy.validate();
  const fixture::array<lrmoe::index_type> L(counts), q(static_cast<integer>(counts.size()));
  policy.assign(fixture::space_type{}, fixture::constant(L.vector()), q.vector());
  Kokkos::fence("lrmoe_test::assign");
  CHECK(q.guards_intact());
  return {q.data(), q.data() + q.size()};
}

}  // namespace

TEST_CASE("a fixed fraction keeps the ceiling of its share of every expert", "[quota]") {
  CHECK(assigned({0.5, 0, 1}, {0, 1, 2, 3, 7, 100}) ==
        std::vector<std::int32_t>{0, 1, 1, 2, 4, 50});
  CHECK(assigned({0.25, 0, 1}, {0, 1, 4, 5, 127, 128, 129}) ==
        std::vector<std::int32_t>{0, 1, 1, 2, 32, 32, 33});
  CHECK(assigned({1.0, 0, 1}, {0, 1, 2147483647}) == std::vector<std::int32_t>{0, 1, 2147483647});
}

TEST_CASE("a share that is whole on paper is not rounded up by the product's rounding", "[quota]") {
  for (int percent = 1; percent <= 100; ++percent)
    for (const std::int32_t hundreds : {1, 3, 7, 1000, 10000000}) {
      INFO(percent << " % of " << 100 * hundreds);
      CHECK(lrmoe::fixed_fraction{percent / 100.0, 0, 1}.of(100 * hundreds) == percent * hundreds);
    }
}

TEST_CASE("the floor keeps cold experts and never exceeds what they have", "[quota]") {
  CHECK(assigned({0.1, 8, 1}, {0, 1, 7, 8, 9, 79, 80, 81, 200}) ==
        std::vector<std::int32_t>{0, 1, 7, 8, 8, 8, 8, 9, 20});
}

TEST_CASE("an expert with pairs may have a quota of zero only if the floor allows it", "[quota]") {
  // Any positive share of at least one pair has a ceiling of at least one.
  CHECK(assigned({1e-9, 0, 1}, {0, 1, 5}) == std::vector<std::int32_t>{0, 1, 1});
}

TEST_CASE("quotas are rounded up to whole tiles where the count allows", "[quota]") {
  CHECK(assigned({0.25, 1, 16}, {0, 5, 16, 17, 64, 65, 128, 1000}) ==
        std::vector<std::int32_t>{0, 5, 16, 16, 16, 32, 32, 256});
}

TEST_CASE("quotas lie between zero and the count, and their sum below the capacity", "[quota]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (int round = 0; round < 200; ++round) {
    const lrmoe::fixed_fraction policy{draw.uniform(1e-3, 1.0),
                                       static_cast<std::int32_t>(draw.integer(0, 20)),
                                       static_cast<std::int32_t>(draw.integer(1, 140))};
    std::vector<std::int32_t> counts;
    integer P = 0;
    for (integer e = draw.integer(1, 40); e > 0; --e) {
      counts.push_back(static_cast<std::int32_t>(draw.integer(0, 1) * draw.integer(0, 500)));
      P += counts.back();
    }
    const auto quotas = assigned(policy, counts);
    integer kept = 0;
    for (std::size_t e = 0; e < counts.size(); ++e) {
      INFO("keep " << policy.keep << " floor " << policy.floor << " tile " << policy.tile
                   << " count " << counts[e] << " quota " << quotas[e]);
      // The definition, in doubles and without the policy's slack.
      const double share = std::ceil(policy.keep * counts[e]);
      const double rounded =
          std::ceil(std::max(share, static_cast<double>(policy.floor)) / policy.tile) * policy.tile;
      CHECK(quotas[e] == std::min(rounded, static_cast<double>(counts[e])));
      kept += quotas[e];
    }
    CHECK(kept <= policy.capacity(P, static_cast<integer>(counts.size())));
    CHECK(policy.capacity(P, static_cast<integer>(counts.size())) <= P);
  }
}

TEST_CASE("a kept fraction outside (0, 1] names value, limit and remedy", "[quota]") {
  const auto refused = [](const lrmoe::fixed_fraction& policy,
                          std::initializer_list<std::string> parts) {
    return fixture::names(fixture::refusal([&] { policy.validate(); }), parts);
  };
  for (const double keep :
       {0.0, -0.25, 1.0000001, 2.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    INFO("keep = " << keep);
    CHECK(refused({keep, 1, 1}, {"keep = ", "(0, 1]"}));
  }
  CHECK_NOTHROW(lrmoe::fixed_fraction{1.0, 0, 1}.validate());
  CHECK(refused({0.5, -1, 1}, {"floor = -1"}));
  CHECK(refused({0.5, 1, 0}, {"tile = 0"}));
}
