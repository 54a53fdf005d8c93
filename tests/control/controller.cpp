#include <limits>

#include <lrmoe/control/controller.hpp>
#include <lrmoe/quota/error_bounded.hpp>
#include <lrmoe/quota/fixed_fraction.hpp>

#include "catch.hpp"
#include "fixture.hpp"

namespace {

using counts_type = std::vector<lrmoe::index_type>;

/// Costs of experts spread over ranks in turn.
struct spread_costs {
  counts_type home;
  std::vector<lrmoe::rank_cost> ranks;

  spread_costs(std::int64_t R, std::int64_t E) : ranks(static_cast<std::size_t>(R)) {
    for (std::int64_t e = 0; e < E; ++e) home.push_back(static_cast<lrmoe::index_type>(e % R));
  }
  lrmoe::call_costs costs() const { return {home, ranks, {}}; }
};

/// A policy that gives all experts the same quota, whatever they have, and remembers the request.
struct constant_quota {
  lrmoe::index_type quota = 0;
  bool history = false;
  lrmoe::quota_request* seen = nullptr;

  void validate() const {}
  bool uses_history() const { return history; }
  void assign(const lrmoe::quota_request& request, std::span<lrmoe::index_type> quotas) const {
    std::fill(quotas.begin(), quotas.end(), quota);
    if (seen != nullptr) *seen = request;
  }
};

}  // namespace

TEST_CASE("a plan holds counts, quotas and the shares of all sources", "[control]") {
  const spread_costs given(2, 3);
  const counts_type n{4, 0, 1,  //
                      2, 0, 3};
  lrmoe::controller controller;
  const lrmoe::plan& plan =
      controller.make(7, 2, 3, n, given.costs(), lrmoe::fixed_fraction{0.5}, false);
  CHECK(plan.R == 2);
  CHECK(plan.E == 3);
  CHECK(plan.source_counts == n);
  CHECK(plan.counts == counts_type{6, 0, 4});
  CHECK(plan.quotas == counts_type{3, 0, 2});
  // 3 of 4 + 2: 2 and 1; 2 of 1 + 3: 0.5 and 1.5, and of equal remainders the lower source wins.
  CHECK(plan.source_quotas == counts_type{2, 0, 1, 1, 0, 1});
  CHECK(plan.pairs() == 10);
  CHECK(plan.pairs_kept() == 5);
  CHECK(plan.pairs_of(0) == 5);
  CHECK(plan.pairs_of(1) == 5);
  CHECK(plan.pairs_kept_of(0) == 3);
  CHECK(plan.pairs_kept_of(1) == 2);
  CHECK(plan.noise_forecast == 0);
  CHECK(&controller.last() == &plan);
}

TEST_CASE("a plan that keeps all ignores the quota policy", "[control]") {
  const spread_costs given(2, 2);
  const counts_type n{5, 0, 2, 9};
  lrmoe::controller controller;
  const auto& plan = controller.make(0, 2, 2, n, given.costs(), constant_quota{1}, true);
  CHECK(plan.quotas == counts_type{7, 9});
  CHECK(plan.source_quotas == n);
}

TEST_CASE("a plan without pairs keeps nothing, and a smaller call leaves nothing behind",
          "[control]") {
  lrmoe::controller controller;
  const spread_costs large(3, 4), small(1, 2);
  controller.make(0, 3, 4, counts_type(12, 9), large.costs(), lrmoe::fixed_fraction{1.0}, false);
  const auto& plan =
      controller.make(1, 1, 2, counts_type(2, 0), small.costs(), lrmoe::fixed_fraction{1.0}, false);
  CHECK(plan.counts == counts_type{0, 0});
  CHECK(plan.quotas == counts_type{0, 0});
  CHECK(plan.source_quotas == counts_type{0, 0});
  CHECK(plan.pairs_kept() == 0);
}

TEST_CASE("a policy sees counts, costs and step, and the forecast if it asks for it", "[control]") {
  spread_costs given(2, 2);
  given.ranks[1].fixed_s = 3.5;
  const counts_type n{1, 2, 3, 4};
  lrmoe::controller controller;
  lrmoe::quota_request seen;
  lrmoe::call_costs costs = given.costs();
  costs.pair = {.s = 1.5, .remote_s = 2.5, .bytes = 16};
  const auto make = [&](bool history) {
    controller.make(42, 2, 2, n, costs, constant_quota{1, history, &seen}, false);
  };
  make(true);
  CHECK(seen.step == 42);
  CHECK(seen.R == 2);
  CHECK(seen.E == 2);
  CHECK(counts_type(seen.counts.begin(), seen.counts.end()) == counts_type{4, 6});
  CHECK(counts_type(seen.source_counts.begin(), seen.source_counts.end()) == n);
  CHECK(seen.home[1] == 1);
  CHECK(seen.ranks[1].fixed_s == 3.5);
  CHECK(seen.pair.remote_s == 2.5);
  CHECK(seen.forecast == nullptr);

  counts_type histogram(2 * lrmoe::size_bins::count, 0);
  histogram[100] = histogram[lrmoe::size_bins::count + 100] = 1;
  controller.history().record_sizes(histogram);
  make(false);
  CHECK(seen.forecast == nullptr);
  make(true);
  REQUIRE(seen.forecast != nullptr);
  CHECK(seen.forecast->score_total() ==
        Approx(10 * lrmoe::size_bins::middle(100) * lrmoe::size_bins::middle(100)));
  // Quotas of 1 with equal sizes: V = sum (L^2 - L) a^2.
  CHECK(controller.last().noise_forecast == Approx((12.0 + 30.0) / 10.0));
}

TEST_CASE("ranks that feed their controllers the same numbers hold the same plans", "[control]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const std::int64_t R = 4, E = 10;
  const spread_costs given(R, E);
  lrmoe::controller mine, yours;
  for (std::uint64_t step = 0; step < 20; ++step) {
    counts_type n, histogram;
    for (std::int64_t i = 0; i < R * E; ++i) {
      n.push_back(static_cast<lrmoe::index_type>(draw.integer(0, 1) * draw.integer(0, 300)));
    }
    const lrmoe::error_bounded policy{draw.uniform(0.01, 2)};
    const auto one = mine.make(step, R, E, n, given.costs(), policy, false);
    const auto& other = yours.make(step, R, E, n, given.costs(), policy, false);
    CHECK(one.quotas == other.quotas);
    CHECK(one.source_quotas == other.source_quotas);
    CHECK(one.noise_forecast == other.noise_forecast);
    for (std::int64_t i = 0; i < E * lrmoe::size_bins::count; ++i) {
      histogram.push_back(static_cast<lrmoe::index_type>(draw.integer(-20, 9) > 0 ? 3 : 0));
    }
    for (lrmoe::controller* controller : {&mine, &yours}) {
      controller->history().record_sizes(histogram);
      controller->history().record_noise(one.noise_forecast, 0.3);
    }
  }
}

TEST_CASE("extents, counts and quotas that break the contract are refused by name", "[control]") {
  const spread_costs given(2, 2);
  lrmoe::controller controller;
  const auto refused = [&](std::int64_t R, std::int64_t E, const counts_type& n,
                           const lrmoe::call_costs& costs, lrmoe::index_type quota) {
    return fixture::refusal(
        [&] { controller.make(0, R, E, n, costs, constant_quota{quota}, false); });
  };
  const counts_type n{1, 2, 3, 4};
  CHECK(refused(2, 2, n, given.costs(), 1).empty());
  CHECK(fixture::names(refused(0, 2, {}, given.costs(), 1), {"R = 0"}));
  CHECK(fixture::names(refused(2, 2, {1, 2, 3}, given.costs(), 1), {"3 counts", "(R, E)"}));
  CHECK(fixture::names(refused(2, 2, n, spread_costs(2, 3).costs(), 1), {"3 home ranks"}));
  CHECK(fixture::names(refused(2, 2, n, spread_costs(3, 2).costs(), 1), {"3 ranks"}));
  spread_costs astray(2, 2);
  astray.home[1] = 2;
  CHECK(fixture::names(refused(2, 2, n, astray.costs(), 1), {"home rank 2", "R = 2"}));
  CHECK(fixture::names(refused(2, 2, {1, 2, 3, -4}, given.costs(), 1), {"-4", "negative"}));
  CHECK(fixture::names(refused(2, 2, n, given.costs(), 5),
                       {"expert 0", "quota of 5", "[0, 4]", "assign()"}));
  CHECK(fixture::names(refused(2, 2, n, given.costs(), -1), {"quota of -1"}));
  const lrmoe::index_type most = std::numeric_limits<lrmoe::index_type>::max();
  CHECK(fixture::names(refused(2, 2, {0, most, 0, 1}, given.costs(), 0),
                       {"expert 1", "2147483648 pairs", "fewer tokens"}));
}
