// Plans are counted again, and every number that is off is found.
#include "compare/plans.hpp"

#include <string>
#include <vector>

#include <lrmoe/placement/home_placement.hpp>

#include "catch.hpp"
#include "compare/injection.hpp"
#include "fixture.hpp"

using namespace bench::compare;

namespace {

constexpr std::int64_t R = 2, E = 4, K = 2, T = 7;

struct plan_problem {
  layer_inputs<float> in;
  layer_results<float> results;

  explicit plan_problem(fixture::random& draw) {
    in.of = {.T = T,
             .shape = {.D = 1, .F = 1, .E = E, .K = K},
             .shape_name = {},
             .estimator = estimator_kind::pps,
             .keep = 0.5,
             .R = R};
    results.experts = draw.routes(T, K, E);
    plan_record record;
    auto& made = record.made;
    made.R = R, made.E = E;
    made.source_counts.assign(R * E, 0);
    for (std::int64_t rank = 0; rank < R; ++rank)
      for (auto p = first_token(in.of, rank) * K; p < first_token(in.of, rank + 1) * K; ++p)
        ++made.source_counts[static_cast<std::size_t>(
            rank * E + results.experts[static_cast<std::size_t>(p)])];
    for (std::size_t e = 0; e < E; ++e) {
      made.counts.push_back(made.source_counts[e] + made.source_counts[E + e]);
      made.quotas.push_back((made.counts[e] + 1) / 2);
    }
    made.source_quotas.resize(R * E);
    lrmoe::split_by_source(R, E, made.source_counts, made.quotas, made.source_quotas);
    const auto placed = lrmoe::home_placement(R, E / R, E);
    lrmoe::replica_planner planner;
    record.replicas = planner.make(made, placed, made.source_counts, false);
    record.expert_of_slot.assign(placed.expert_of_slot().begin(), placed.expert_of_slot().end());
    results.plans = {record, record};
  }
  plan_check<float> judged() const { return {in, results}; }
};

}  // namespace

TEST_CASE("a plan that follows from the routing passes", "[compare]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (int i = 0; i < 20; ++i) {
    const plan_problem p(draw);
    const finding found = p.judged().recount();
    INFO(found.text);
    CHECK(found.passed);
    CHECK(p.judged().ranks_agree().passed);
    CHECK(p.judged().equals("itself", p.results.plans, p.results.experts).passed);
  }
}

TEST_CASE("a quota, a share, a count and a slot off by one are found", "[compare]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const plan_problem good(draw);
  const auto found = [&](const auto& damage) {
    plan_problem bad = good;
    for (auto& plan : bad.results.plans) damage(plan);
    return !bad.judged().recount().passed &&
           !bad.judged().equals("good", good.results.plans, good.results.experts).passed;
  };
  CHECK(found([](plan_record& plan) { ++plan.made.quotas[1]; }));
  CHECK(found([](plan_record& plan) { ++plan.made.source_counts[2]; }));
  CHECK(found([](plan_record& plan) { ++plan.made.source_quotas[3]; }));
  CHECK(found([](plan_record& plan) { ++plan.replicas.counts[0]; }));
  CHECK(found([](plan_record& plan) { ++plan.replicas.quotas[5]; }));
  CHECK(
      found([](plan_record& plan) { std::swap(plan.expert_of_slot[0], plan.expert_of_slot[3]); }));
}

TEST_CASE("ranks whose placements differ are found", "[compare]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  plan_problem p(draw);
  REQUIRE(inject("placement", p.in.of, p.results));
  CHECK_FALSE(p.judged().ranks_agree().passed);
}
