#include <limits>

#include <lrmoe/quota/time_optimal.hpp>

#include "catch.hpp"
#include "requests.hpp"

using requests::counts_type;

namespace {

double objective(const requests::problem& of, const counts_type& quotas, double a) {
  double variance = 0;
  for (std::size_t e = 0; e < quotas.size(); ++e) {
    variance += requests::added_variance(of, e, quotas[e]);
  }
  const auto time = requests::times(of, quotas, false);
  return (1 + a * of.history.noise_correction() * variance / requests::score_total(of)) *
         *std::max_element(time.begin(), time.end());
}

/// Smallest objective over all whole quotas.
double best_objective(const requests::problem& of, double a) {
  std::vector<std::vector<double>> variance;
  for (std::size_t e = 0; e < of.E(); ++e) {
    variance.emplace_back();
    for (int q = 0; q <= of.counts[e]; ++q) {
      variance[e].push_back(requests::added_variance(of, e, std::max(q, 1)));
    }
  }
  const double factor = a * of.history.noise_correction() / requests::score_total(of);
  // Time of one pair of e at r.
  const auto R = static_cast<std::size_t>(of.R);
  std::vector<std::vector<double>> pair_s(of.E(), std::vector<double>(R, 0.0));
  for (std::size_t e = 0; e < of.E(); ++e) {
    for (std::size_t r = 0; r < R; ++r) {
      if (of.counts[e] == 0) continue;
      const double share = static_cast<double>(of.source_counts[r * of.E() + e]) / of.counts[e];
      const bool here = of.home[e] == static_cast<lrmoe::index_type>(r);
      pair_s[e][r] = here ? of.pair.s + of.pair.remote_s * (1 - share) : of.pair.remote_s * share;
    }
  }
  double best = std::numeric_limits<double>::max();
  requests::for_all_quotas(of.counts, [&](const counts_type& tried) {
    double added = 0, slowest = 0;
    for (std::size_t e = 0; e < tried.size(); ++e) {
      added += variance[e][static_cast<std::size_t>(tried[e])];
    }
    for (std::size_t r = 0; r < R; ++r) {
      double time = of.ranks[r].fixed_s;
      for (std::size_t e = 0; e < tried.size(); ++e) time += tried[e] * pair_s[e][r];
      slowest = std::max(slowest, time);
    }
    best = std::min(best, (1 + factor * added) * slowest);
  });
  return best;
}

counts_type one_bin(std::size_t E, int bin) {
  counts_type histogram(E * lrmoe::size_bins::count, 0);
  for (std::size_t e = 0; e < E; ++e) {
    histogram[e * lrmoe::size_bins::count + static_cast<std::size_t>(bin)] = 1;
  }
  return histogram;
}

}  // namespace

TEST_CASE("with equal sizes and a forward that costs something every pair is kept", "[quota]") {
  // 1 + V / S = L / q, and time is L + 2 q: the product falls up to q = L.
  auto problem = requests::on_one_rank({300, 500});
  problem.record(one_bin(2, 120));
  problem.pair.s = 2;
  problem.ranks = {{.fixed_s = 800}};
  CHECK(problem.assigned(lrmoe::time_optimal{1.0}) == counts_type{300, 500});
}

TEST_CASE("if noise is of no weight steps are as short as can be, and more is kept with its weight",
          "[quota]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  auto problem = requests::random_problem(draw, 3, 12, 800);
  requests::record_random_sizes(draw, problem);
  problem.pair = {.s = 2, .remote_s = 1, .bytes = 0};
  for (auto& rank : problem.ranks) rank.fixed_s = 1000;
  const auto quotas = problem.assigned(lrmoe::time_optimal{0.0});
  counts_type least;
  for (const auto L : problem.counts) least.push_back(std::min(L, 1));
  CHECK(objective(problem, quotas, 0.0) <= 1.01 * objective(problem, least, 0.0));
  // Between, monotone up to the grid of candidates.
  std::int64_t before = 0;
  for (const double a : {0.001, 0.01, 0.1, 0.3, 1.0}) {
    const auto kept = requests::sum(problem.assigned(lrmoe::time_optimal{a}));
    CHECK(static_cast<double>(kept) >= 0.9 * static_cast<double>(before));
    before = kept;
  }
}

TEST_CASE("only the slowest rank keeps less when links cost nothing", "[quota]") {
  // Rank 1 has a tenth of the load: it has time for all of its pairs.
  requests::problem problem;
  problem.R = 2;
  problem.home = {0, 1};
  problem.source_counts = {500, 50, 500, 50};
  counts_type histogram(2 * lrmoe::size_bins::count, 0);
  for (std::size_t b = 80; b < 120; ++b) {
    histogram[b] = histogram[lrmoe::size_bins::count + b] = static_cast<int>(120 - b);
  }
  problem.record(histogram);
  problem.pair.s = 2;
  problem.ranks = {{.fixed_s = 1000}, {.fixed_s = 100}};
  const auto quotas = problem.assigned(lrmoe::time_optimal{});
  CHECK(quotas[0] < 700);
  CHECK(quotas[1] == 100);
}

TEST_CASE("no whole quotas are much better, as enumeration shows", "[quota]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (int round = 0; round < 90; ++round) {
    const int kind = round % 3;  // one rank; two without links; two with
    auto problem = requests::random_problem(draw, kind == 0 ? 1 : 2, 3, 0);
    const auto E = problem.E();
    // 20 to 60 pairs of each expert, over both ranks.
    for (std::size_t e = 0; e < E; ++e) {
      const auto L = static_cast<lrmoe::index_type>(draw.integer(20, 60));
      const auto first =
          kind == 0 ? L : L / 2 + static_cast<lrmoe::index_type>(draw.integer(-5, 5));
      problem.source_counts[e] = first;
      if (kind > 0) problem.source_counts[E + e] = L - first;
    }
    requests::record_random_sizes(draw, problem, 100);
    problem.pair = {
        .s = draw.uniform(1, 3), .remote_s = kind == 2 ? draw.uniform(0, 3) : 0.0, .bytes = 0};
    for (auto& rank : problem.ranks) rank.fixed_s = draw.uniform(5, 60);
    const lrmoe::time_optimal policy{draw.uniform(0.05, 1)};
    const auto quotas = problem.assigned(policy);
    REQUIRE(requests::lawful(quotas, problem.counts));
    const double mine = objective(problem, quotas, policy.noise_weight);
    const auto asked = problem.request();
    CHECK(policy.objective(asked, quotas) == Approx(mine).epsilon(1e-5));
    CHECK(mine <= objective(problem, problem.counts, policy.noise_weight) * (1 + 1e-6));
    const double ratio = mine / best_objective(problem, policy.noise_weight);
    INFO("kind " << kind << " a " << policy.noise_weight << " s " << problem.pair.s << " remote_s "
                 << problem.pair.remote_s);
    CHECK(ratio >= 1 - 1e-6);
    CHECK(ratio <= (kind == 2 ? 1.25 : 1.02));
  }
}

TEST_CASE("keeping less pays by the policy's own forecast on large random counts", "[quota]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (int round = 0; round < 20; ++round) {
    auto problem = requests::random_problem(draw, draw.integer(1, 8), draw.integer(1, 40), 2000);
    requests::record_random_sizes(draw, problem);
    if (draw.integer(0, 1) == 1) problem.history.record_noise(1.0, draw.uniform(0.3, 3));
    problem.pair = {.s = 2, .remote_s = draw.integer(0, 1) * draw.uniform(0, 4), .bytes = 0};
    for (auto& rank : problem.ranks) rank.fixed_s = draw.uniform(0, 4000);
    const lrmoe::time_optimal policy{draw.uniform(0, 1)};
    const auto quotas = problem.assigned(policy);
    REQUIRE(requests::lawful(quotas, problem.counts));
    if (requests::sum(problem.counts) == 0) continue;
    CHECK(objective(problem, quotas, policy.noise_weight) <=
          objective(problem, problem.counts, policy.noise_weight) * (1 + 1e-6));
  }
}

TEST_CASE("without a history every pair is kept in any time", "[quota]") {
  auto problem = requests::on_one_rank({5, 0, 7});
  problem.pair.s = 1;
  CHECK(problem.assigned(lrmoe::time_optimal{}) == counts_type{5, 0, 7});
}

TEST_CASE("unknown times and weights out of range are refused by name", "[quota]") {
  auto problem = requests::on_one_rank({5});
  const auto refused = [&] {
    return fixture::refusal([&] { problem.assigned(lrmoe::time_optimal{}); });
  };
  CHECK(fixture::names(refused(), {"no times are known", "calibrate", "fixed_s = pairs"}));
  problem.ranks = {{.fixed_s = 1}};
  CHECK(refused().empty());
  problem.pair.s = std::nan("");
  CHECK(fixture::names(refused(), {"nan s"}));
  problem.pair.s = 1;
  problem.pair.remote_s = -2;
  CHECK(fixture::names(refused(), {"-2 s on links"}));
  problem.pair.remote_s = 0;
  problem.ranks = {{.fixed_s = -3}};
  CHECK(fixture::names(refused(), {"-3 s"}));
  for (const double a : {-0.1, 1.1, std::nan("")}) {
    CHECK(fixture::names(fixture::refusal([&] { lrmoe::time_optimal{a}.validate(); }),
                         {"noise_weight = ", "[0, 1]"}));
  }
}
