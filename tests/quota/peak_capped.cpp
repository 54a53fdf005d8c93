#include <limits>

#include <lrmoe/quota/error_bounded.hpp>
#include <lrmoe/quota/fixed_fraction.hpp>
#include <lrmoe/quota/peak_capped.hpp>
#include <lrmoe/quota/tile_rounded.hpp>

#include "catch.hpp"
#include "requests.hpp"

using requests::counts_type;

namespace {

/// Experts with these counts on these ranks, all pairs routed by rank 0.
requests::problem on_ranks(std::int64_t R, const counts_type& home, const counts_type& counts) {
  requests::problem made;
  made.R = R;
  made.home = home;
  made.source_counts.assign(static_cast<std::size_t>(R) * home.size(), 0);
  std::copy(counts.begin(), counts.end(), made.source_counts.begin());
  return made;
}

struct keep_half_of_the_first {
  void validate() const {}
  static constexpr bool uses_history() { return false; }
  void assign(const lrmoe::quota_request& request, std::span<lrmoe::index_type> quotas) const {
    std::fill(quotas.begin(), quotas.end(), 0);
    quotas[0] = request.counts[0] / 2;
  }
};

counts_type ascending(counts_type values) {
  std::sort(values.begin(), values.end());
  return values;
}

}  // namespace

TEST_CASE("an overloaded rank is filled evenly up to its cap", "[quota]") {
  // 60 pairs on three ranks: at most 20 each without slack, 25 with a quarter.
  auto problem = on_ranks(3, {0, 0, 0, 1, 2, 2}, {4, 20, 16, 10, 0, 10});
  CHECK(problem.assigned(lrmoe::peak_capped<>{{}, 0.0}) == counts_type{4, 8, 8, 10, 0, 10});
  CHECK(problem.assigned(lrmoe::peak_capped<>{{}, 0.25}) == counts_type{4, 11, 10, 10, 0, 10});
  CHECK(problem.assigned(lrmoe::peak_capped<>{{}, 1.0}) == counts_type{4, 20, 16, 10, 0, 10});
}

TEST_CASE("a single rank is not capped", "[quota]") {
  CHECK(requests::on_one_rank({9, 0, 100}).assigned(lrmoe::peak_capped<>{{}, 0.0}) ==
        counts_type{9, 0, 100});
}

TEST_CASE("a rank of many experts keeps one pair of each, whatever the cap", "[quota]") {
  auto problem = on_ranks(4, {0, 0, 0, 0}, {1, 2, 3, 0});
  CHECK(problem.assigned(lrmoe::peak_capped<>{{}, 0.0}) == counts_type{1, 1, 1, 0});
}

TEST_CASE("a cap lowers another policy's quotas, zeros included", "[quota]") {
  auto problem = on_ranks(2, {0, 1}, {100, 100});
  CHECK(problem.assigned(lrmoe::peak_capped<keep_half_of_the_first>{{}, 0.0}) ==
        counts_type{25, 0});
  using rounded = lrmoe::peak_capped<lrmoe::tile_rounded<lrmoe::error_bounded>>;
  CHECK(rounded{}.uses_history());
  CHECK(problem.assigned(rounded{{{0.5}, 16}, 0.0}) == counts_type{100, 100});
}

TEST_CASE("caps hold on every rank and only overloaded ranks change", "[quota]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (int round = 0; round < 100; ++round) {
    auto problem = requests::random_problem(draw, draw.integer(1, 8), draw.integer(1, 24), 400);
    const lrmoe::fixed_fraction inner{draw.uniform(0.05, 1.0)};
    const double slack = draw.integer(0, 3) == 0 ? 0.0 : draw.uniform(0, 1.5);
    const auto wanted = problem.assigned(inner);
    const auto quotas = problem.assigned(lrmoe::peak_capped<lrmoe::fixed_fraction>{inner, slack});
    REQUIRE(requests::lawful(quotas, problem.counts));
    const double cap =
        (1 + slack) * static_cast<double>(requests::sum(wanted)) / static_cast<double>(problem.R);
    for (std::int64_t r = 0; r < problem.R; ++r) {
      std::int64_t load = 0, before = 0, experts = 0;
      for (std::size_t e = 0; e < quotas.size(); ++e) {
        if (problem.home[e] != r) continue;
        load += quotas[e];
        before += wanted[e];
        experts += wanted[e] > 0 ? 1 : 0;
        CHECK(quotas[e] <= wanted[e]);
      }
      CHECK(static_cast<double>(load) <= std::max(cap, static_cast<double>(experts)));
      if (static_cast<double>(before) <= cap) {
        CHECK(load == before);
      } else {
        CHECK(static_cast<double>(load + 1) > cap * (1 - 1e-12));
      }
    }
  }
}

TEST_CASE("no quotas within the cap are more even, as enumeration shows", "[quota]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (int round = 0; round < 100; ++round) {
    auto problem = requests::random_problem(draw, 2, draw.integer(2, 5), 4);
    const double slack = draw.uniform(0, 0.6);
    const auto quotas = problem.assigned(lrmoe::peak_capped<>{{}, slack});
    const double cap = (1 + slack) * static_cast<double>(requests::sum(problem.counts)) / 2;
    for (lrmoe::index_type r = 0; r < 2; ++r) {
      counts_type most, mine;
      for (std::size_t e = 0; e < quotas.size(); ++e) {
        if (problem.home[e] != r || problem.counts[e] == 0) continue;
        most.push_back(problem.counts[e]);
        mine.push_back(quotas[e]);
      }
      counts_type best;
      requests::for_all_quotas(most, [&](const counts_type& tried) {
        const double room = std::max(cap, static_cast<double>(most.size()));
        if (static_cast<double>(requests::sum(tried)) <= room) {
          best = std::max(best, ascending(tried));
        }
      });
      CHECK(ascending(mine) == best);
    }
  }
}

TEST_CASE("a slack that is negative or no number is refused by name", "[quota]") {
  for (const double slack : {-0.01, std::nan(""), std::numeric_limits<double>::infinity()}) {
    CHECK(fixture::names(fixture::refusal([&] {
                           lrmoe::peak_capped<>{{}, slack}.validate();
                         }),
                         {"slack = ", "at least 0"}));
  }
  CHECK(fixture::names(fixture::refusal([] {
                         lrmoe::peak_capped<lrmoe::fixed_fraction>{{0.0}, 0.1}.validate();
                       }),
                       {"keep = 0"}));
}
