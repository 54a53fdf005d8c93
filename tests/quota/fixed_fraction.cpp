#include <limits>

#include <lrmoe/quota/fixed_fraction.hpp>

#include "catch.hpp"
#include "requests.hpp"

using requests::counts_type;
using requests::on_one_rank;

TEST_CASE("a fixed fraction keeps the ceiling of its share of every expert", "[quota]") {
  CHECK(on_one_rank({0, 1, 2, 3, 7, 100}).assigned(lrmoe::fixed_fraction{0.5}) ==
        counts_type{0, 1, 1, 2, 4, 50});
  CHECK(on_one_rank({0, 1, 4, 5, 127, 128, 129}).assigned(lrmoe::fixed_fraction{0.25}) ==
        counts_type{0, 1, 1, 2, 32, 32, 33});
  CHECK(on_one_rank({0, 1, 2147483647}).assigned(lrmoe::fixed_fraction{1.0}) ==
        counts_type{0, 1, 2147483647});
}

TEST_CASE("a share that is whole on paper is not rounded up by the product's rounding", "[quota]") {
  for (int percent = 1; percent <= 100; ++percent)
    for (const std::int32_t hundreds : {1, 3, 7, 1000, 10000000}) {
      INFO(percent << " % of " << 100 * hundreds);
      CHECK(lrmoe::fixed_fraction{percent / 100.0}.of(100 * hundreds) == percent * hundreds);
    }
}

TEST_CASE("any positive fraction keeps at least one pair of an expert that has some", "[quota]") {
  CHECK(on_one_rank({0, 1, 5}).assigned(lrmoe::fixed_fraction{1e-9}) == counts_type{0, 1, 1});
}

TEST_CASE("a fixed fraction is the ceiling on random counts", "[quota]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (int round = 0; round < 200; ++round) {
    auto problem = requests::random_problem(draw, draw.integer(1, 4), draw.integer(1, 40), 500);
    const lrmoe::fixed_fraction policy{draw.uniform(1e-3, 1.0)};
    const auto quotas = problem.assigned(policy);
    CHECK(requests::lawful(quotas, problem.counts));
    for (std::size_t e = 0; e < quotas.size(); ++e) {
      INFO("keep " << policy.keep << " count " << problem.counts[e]);
      CHECK(quotas[e] == std::ceil(policy.keep * problem.counts[e]));
    }
  }
}

TEST_CASE("a fraction outside (0, 1] is refused by name", "[quota]") {
  for (const double keep :
       {0.0, -0.25, 1.0000001, 2.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    INFO("keep = " << keep);
    CHECK(fixture::names(fixture::refusal([&] { lrmoe::fixed_fraction{keep}.validate(); }),
                         {"keep = ", "(0, 1]"}));
  }
  CHECK_NOTHROW(lrmoe::fixed_fraction{1.0}.validate());
}
