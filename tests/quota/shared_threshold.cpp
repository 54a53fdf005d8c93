#include <limits>

#include <lrmoe/quota/shared_threshold.hpp>

#include "catch.hpp"
#include "requests.hpp"

using requests::counts_type;

namespace {

double variance(const requests::problem& of, const counts_type& quotas) {
  double sum = 0;
  for (std::size_t e = 0; e < quotas.size(); ++e) sum += requests::added_variance(of, e, quotas[e]);
  return sum;
}

std::int64_t wanted(const requests::problem& of, double keep) {
  std::int64_t sum = 0;
  for (const auto L : of.counts) sum += lrmoe::fixed_fraction{keep}.of(L);
  return sum;
}

}  // namespace

TEST_CASE("one threshold gives experts with larger sizes more of the same number of pairs",
          "[quota]") {
  // Sizes of the second expert are 4 times those of the first: it keeps 4 times the share.
  auto problem = requests::on_one_rank({1000, 1000});
  counts_type histogram(2 * lrmoe::size_bins::count, 0);
  histogram[100] = 10;
  histogram[lrmoe::size_bins::count + 108] = 10;
  problem.record(histogram);
  CHECK(problem.assigned(lrmoe::shared_threshold{0.125}) == counts_type{50, 200});
  // Its pairs are all kept before the first expert's are.
  CHECK(problem.assigned(lrmoe::shared_threshold{0.75}) == counts_type{500, 1000});
  CHECK(problem.assigned(lrmoe::shared_threshold{1.0}) == counts_type{1000, 1000});
}

TEST_CASE("without a history every expert keeps the same fraction", "[quota]") {
  CHECK(requests::on_one_rank({5, 0, 7}).assigned(lrmoe::shared_threshold{0.5}) ==
        counts_type{3, 0, 4});
}

TEST_CASE("the least variance of all quotas with that many pairs, as enumeration finds it",
          "[quota]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (int round = 0; round < 150; ++round) {
    auto problem = requests::random_problem(draw, 1, draw.integer(1, 4), 11);
    requests::record_random_sizes(draw, problem, 30);
    const lrmoe::shared_threshold policy{draw.uniform(0.01, 1.0)};
    const auto quotas = problem.assigned(policy);
    REQUIRE(requests::lawful(quotas, problem.counts));
    const std::int64_t total = wanted(problem, policy.keep);
    CHECK(requests::sum(quotas) == total);
    std::vector<std::vector<double>> table;
    for (std::size_t e = 0; e < quotas.size(); ++e) {
      table.emplace_back();
      for (int q = 0; q <= problem.counts[e]; ++q)
        table[e].push_back(requests::added_variance(problem, e, std::max(q, 1)));
    }
    double least = std::numeric_limits<double>::infinity();
    requests::for_all_quotas(problem.counts, [&](const counts_type& tried) {
      if (requests::sum(tried) != total) return;
      double sum = 0;
      for (std::size_t e = 0; e < tried.size(); ++e)
        sum += table[e][static_cast<std::size_t>(tried[e])];
      least = std::min(least, sum);
    });
    INFO("keep " << policy.keep);
    CHECK(variance(problem, quotas) <= least + 1e-9 * requests::score_total(problem));
  }
}

TEST_CASE("no exchange of two pairs lowers the variance on large counts", "[quota]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (int round = 0; round < 20; ++round) {
    auto problem = requests::random_problem(draw, 4, draw.integer(1, 40), 20000);
    requests::record_random_sizes(draw, problem);
    const lrmoe::shared_threshold policy{draw.uniform(0.01, 0.99)};
    const auto quotas = problem.assigned(policy);
    REQUIRE(requests::lawful(quotas, problem.counts));
    CHECK(requests::sum(quotas) == wanted(problem, policy.keep));
    // For convex V it is enough that no single pair is better elsewhere.
    double least_loss = std::numeric_limits<double>::infinity(), most_gain = 0;
    for (std::size_t e = 0; e < quotas.size(); ++e) {
      const double here = requests::added_variance(problem, e, quotas[e]);
      if (quotas[e] > 1)
        least_loss =
            std::min(least_loss, requests::added_variance(problem, e, quotas[e] - 1) - here);
      if (quotas[e] < problem.counts[e])
        most_gain = std::max(most_gain, here - requests::added_variance(problem, e, quotas[e] + 1));
    }
    CHECK(most_gain <= least_loss + 1e-9 * requests::score_total(problem));
    // Beside a threshold of each expert's own, which fixed_fraction has.
    counts_type fixed(quotas.size());
    lrmoe::fixed_fraction{policy.keep}.assign(problem.request(), fixed);
    CHECK(variance(problem, quotas) <= variance(problem, fixed) * (1 + 1e-9));
  }
}

TEST_CASE("a share outside (0, 1] is refused", "[quota]") {
  for (const double keep : {0.0, -0.5, 1.5, std::nan("")}) {
    CHECK(fixture::names(fixture::refusal([&] { lrmoe::shared_threshold{keep}.validate(); }),
                         {"keep = ", "(0, 1]"}));
  }
}
