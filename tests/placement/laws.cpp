#include <lrmoe/placement/all_planners.hpp>
#include <lrmoe/placement/peak_floor.hpp>

#include "catch.hpp"
#include "requests.hpp"

using lrmoe::index_type;
using requests::counts_type;

static_assert(lrmoe::planner<lrmoe::library_planner>);

namespace {

/// Name of the first law that a plan breaks, from plain loops over slots; empty if it breaks none.
std::string broken_law(const requests::problem& of, const lrmoe::planner_attributes& attributes,
                       const requests::outcome& made) {
  const auto slots = made.slots();
  const auto& where = made.plan.replicas;
  if (slots.size() != static_cast<std::size_t>(of.R * of.S)) return "slots";
  std::vector<std::vector<std::int64_t>> holders(static_cast<std::size_t>(of.E));
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] == lrmoe::no_expert) continue;
    if (slots[i] < 0 || slots[i] >= of.E) return "ids";
    auto& ranks = holders[static_cast<std::size_t>(slots[i])];
    const auto rank = static_cast<std::int64_t>(i) / of.S;
    if (ranks.empty() || ranks.back() != rank) ranks.push_back(rank);
  }
  std::size_t h = 0;
  for (std::size_t e = 0; e < holders.size(); ++e) {
    if (holders[e].empty()) return "every expert is held";
    if (attributes.optimizer == lrmoe::optimizer_place::at_home &&
        std::find(holders[e].begin(), holders[e].end(), of.home[e]) == holders[e].end())
      return "home holds";
    for (const std::int64_t rank : holders[e]) {
      if (where.ranks()[h] != rank || where.experts()[h] != static_cast<index_type>(e))
        return "replicas by expert, then rank";
      ++h;
    }
  }
  const std::size_t H = h;
  if (made.split.size() != static_cast<std::size_t>(of.R) * H) return "extents";
  for (std::size_t s = 0; s < static_cast<std::size_t>(of.R); ++s) {
    h = 0;
    for (std::size_t e = 0; e < holders.size(); ++e) {
      std::int64_t sum = 0;
      for (std::size_t i = 0; i < holders[e].size(); ++i, ++h) {
        if (made.split[s * H + h] < 0) return "not negative";
        sum += made.split[s * H + h];
      }
      if (sum != of.source_counts[s * holders.size() + e]) return "conservation";
    }
  }
  for (std::size_t i = 0; i < made.plan.loads.size(); ++i) {
    std::int64_t run = 0;
    for (std::size_t s = 0; s < static_cast<std::size_t>(of.R); ++s) run += made.split[s * H + i];
    if (std::abs(run - made.plan.loads[i]) >= of.R) return "loads";
  }
  return {};
}

/// A model of several calls, as a trainer makes them.
void check_calls(fixture::random& draw, const lrmoe::library_planner& planner, std::int64_t R,
                 std::int64_t S, std::int64_t E, const std::string& pattern, int calls) {
  const auto attributes = planner.attributes();
  INFO(attributes.name << ", R = " << R << ", S = " << S << ", E = " << E << ", " << pattern);
  requests::problem of(R, S, E);
  of.costs = requests::some_costs();
  of.machine.ranks_per_node = draw.integer(1, 8);
  of.history = lrmoe::load_history(attributes.window);
  for (int call = 0; call < calls; ++call, ++of.step) {
    of.source_counts = requests::random_counts(draw, R, E, pattern, 4000);
    const auto made = requests::run(planner, of);
    REQUIRE(broken_law(of, attributes, made) == "");

    const auto again = requests::run(lrmoe::library_planner(planner), of);
    CHECK(again.plan.replicas == made.plan.replicas);
    CHECK(again.plan.loads == made.plan.loads);
    CHECK(again.split == made.split);

    const auto loads = of.loads();
    std::vector<std::int64_t> holders, free(static_cast<std::size_t>(R), S);
    for (std::int64_t e = 0; e < E; ++e)
      holders.push_back(static_cast<std::int64_t>(made.plan.replicas.holders(e).size()));
    for (const auto rank : of.home) --free[static_cast<std::size_t>(rank)];
    CHECK(made.peak() >= lrmoe::replication_floor(R, loads, holders));
    if (made.plan.replicas.replicas() == E) {
      CHECK(made.peak() >= lrmoe::permutation_floor(R, loads));
    }
    if (attributes.optimizer == lrmoe::optimizer_place::at_home) {
      CHECK(made.peak() >= lrmoe::transient_floor(R, loads, of.home, free));
      const auto own = requests::run(lrmoe::static_ownership{}, of);
      // Sources of ultraep round by themselves.
      if (attributes.name == "ultraep" || attributes.name == "lrmoe") {
        CHECK(made.peak() <= own.peak() + R);
      }
    }
    if (!attributes.exact) {
      auto other = of;
      other.source_counts = requests::random_counts(draw, R, E, "zipf", 9000);
      CHECK(requests::run(planner, other).plan.replicas == made.plan.replicas);
    }
    of.history.record(R, E, of.source_counts);
    of.current = made.plan.replicas;
  }
}

}  // namespace

TEST_CASE("every planner keeps the laws on counts of every kind", "[placement]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (const auto& planner : lrmoe::all_planners()) {
    for (const std::string& pattern : requests::patterns) {
      for (const std::int64_t R : {1, 2, 3, 8}) {
        for (int round = 0; round < 6; ++round) {
          const std::int64_t E = draw.integer(1, 30);
          check_calls(draw, planner, R, (E + R - 1) / R + draw.integer(0, 3), E, pattern, 4);
        }
      }
      for (const std::int64_t E : {128, 70, 20})
        check_calls(draw, planner, 64, (E + 63) / 64 + draw.integer(0, 2), E, pattern, 2);
    }
  }
}

TEST_CASE("planners that plan now and then keep the laws over many calls", "[placement]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (const auto& planner : lrmoe::all_planners())
    check_calls(draw, planner, 4, draw.integer(3, 5), 10, "zipf", 40);
}

TEST_CASE("the check of the laws rejects broken plans", "[placement]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  requests::problem of(3, 3, 6);
  of.route({900, 30, 40, 50, 60, 70});
  const lrmoe::memory_balanced planner;
  const auto attributes = planner.attributes();
  const auto made = requests::run(planner, of);
  REQUIRE(broken_law(of, attributes, made) == "");
  const auto request = of.request();
  const auto refused = [&](const requests::outcome& broken) {
    return fixture::refusal([&] {
      lrmoe::validate(request, attributes, broken.plan);
      lrmoe::validate_split(request, broken.plan, broken.split);
    });
  };
  REQUIRE(refused(made).empty());

  auto broken = made;
  const auto some =
      static_cast<std::size_t>(draw.integer(0, static_cast<std::int64_t>(broken.split.size()) - 1));
  ++broken.split[some];
  CHECK(broken_law(of, attributes, broken) == "conservation");
  CHECK(fixture::names(refused(broken), {"pairs of expert", "are given"}));

  broken = made;
  broken.split[0] -= 5000;
  broken.split[1] += 5000;
  CHECK(broken_law(of, attributes, broken) == "not negative");
  CHECK(fixture::names(refused(broken), {"gives"}));

  broken = made;
  ++broken.plan.loads[0];
  CHECK(fixture::names(refused(broken), {"expert 0", "901", "900"}));

  // Conserved, but not as planned: all pairs of expert 0 on its first replica.
  broken = made;
  REQUIRE(made.plan.replicas.holders(0).size() > 1);
  broken.split[0] = 900;
  for (std::size_t h = 1; h < made.plan.replicas.holders(0).size(); ++h) broken.split[h] = 0;
  CHECK(broken_law(of, attributes, broken) == "loads");
  CHECK(fixture::names(refused(broken), {"replica 0", "900"}));

  broken = made;
  broken.plan.loads.clear();
  broken.plan.replicas = lrmoe::placement(3, 3, 6, {5, 4, -1, 3, 2, -1, 1, 0, -1});
  broken.split.assign(18, 0);
  std::copy(of.source_counts.begin(), of.source_counts.begin() + 6, broken.split.begin());
  CHECK(broken_law(of, attributes, broken) == "home holds");
  CHECK(fixture::names(refused(broken), {"home rank", "optimizer state"}));
}

TEST_CASE("too few slots are refused with both numbers", "[placement]") {
  requests::problem of(3, 2, 7);
  for (const auto& planner : lrmoe::all_planners()) {
    INFO(planner.attributes().name);
    CHECK(fixture::names(requests::refusal(planner, of.request()),
                         {"R S = 3 x 2 = 6", "E = 7", "at least 3"}));
  }
}

TEST_CASE("a rank that owns more than its slots is refused where homes matter", "[placement]") {
  requests::problem of(2, 2, 3);
  of.home = {0, 0, 0};
  for (const auto& planner : lrmoe::all_planners()) {
    const auto attributes = planner.attributes();
    if (attributes.optimizer != lrmoe::optimizer_place::at_home) continue;
    INFO(attributes.name);
    CHECK(fixture::names(requests::refusal(planner, of.request()), {"rank 0", "S = 2"}));
  }
}

TEST_CASE("damaged requests are refused by every planner", "[placement]") {
  requests::problem good(2, 2, 3);
  good.remember({1, 2, 3});
  const auto refused = [](const requests::problem& of, auto damage,
                          std::initializer_list<std::string> parts) {
    for (const auto& planner : lrmoe::all_planners()) {
      INFO(planner.attributes().name);
      auto request = of.request();
      damage(request);
      CHECK(fixture::names(requests::refusal(planner, request), parts));
    }
  };
  const auto nothing = [](lrmoe::placement_request&) {};
  auto bad = good;
  bad.source_counts.pop_back();
  refused(bad, nothing, {"5 counts", "R = 2", "E = 3"});
  bad = good;
  bad.source_counts[4] = -1;
  refused(bad, nothing, {"-1", "negative"});
  bad = good;
  bad.source_counts[1] = bad.source_counts[4] = 2000000000;
  refused(bad, nothing, {"expert 1", "4000000000"});
  bad = good;
  bad.home[1] = 2;
  refused(bad, nothing, {"home rank 2", "R = 2"});
  bad = good;
  bad.home.pop_back();
  refused(bad, nothing, {"2 home ranks", "E = 3"});
  bad = good;
  bad.available_bytes = {5};
  refused(bad, nothing, {"1 byte budgets", "R = 2"});
  bad = good;
  bad.costs.row_bytes = -1;
  refused(bad, nothing, {"costs"});
  bad = good;
  bad.machine.ranks_per_node = 0;
  refused(bad, nothing, {"ranks_per_node = 0"});
  bad = good;
  bad.current = lrmoe::placement(1, 3, 3, {0, 1, 2});
  refused(bad, nothing, {"current placement", "null"});
  lrmoe::load_history other(1);
  other.record(1, 3, counts_type{1, 2, 3});
  refused(good, [&](lrmoe::placement_request& request) { request.history = &other; },
          {"history", "clear"});
  refused(good, [](lrmoe::placement_request& request) { request.R = 0; }, {"R = 0"});
}

TEST_CASE("settings out of range are refused by name", "[placement]") {
  const auto refused = [](const auto& planner, std::initializer_list<std::string> parts) {
    CHECK(fixture::names(fixture::refusal([&] { planner.validate(); }), parts));
  };
  refused(lrmoe::fastermoe_shadowing{.most = -1}, {"most = -1"});
  refused(lrmoe::smartmoe{.interval = 0}, {"interval = 0"});
  refused(lrmoe::smartmoe{.window = 0}, {"window = 0"});
  refused(lrmoe::smartmoe{.acceptance = 0.5}, {"acceptance = 0.5"});
  refused(lrmoe::flexmoe{.threshold = 0.9}, {"threshold = 0.9"});
  refused(lrmoe::flexmoe{.steps = 0}, {"steps = 0"});
  refused(lrmoe::eplb{.groups = 0}, {"groups = 0"});
  refused(lrmoe::eplb{.interval = 0}, {"interval = 0"});
  refused(lrmoe::eplb{.window = 0}, {"window = 0"});
  refused(lrmoe::laer{.window = 0}, {"window = 0"});
  refused(lrmoe::ultraep{.domain = -1}, {"domain = -1"});
  refused(lrmoe::ultraep{.margin = std::nan("")}, {"margin = nan"});
  refused(lrmoe::ultraep{.least_export = 0}, {"least_export = 0"});
  refused(lrmoe::llep{.trigger = 0.5}, {"trigger = 0.5"});
  refused(lrmoe::llep{.slack = 0.5}, {"slack = 0.5"});
  refused(lrmoe::llep{.least_chunk = 0}, {"least_chunk = 0"});
  refused(lrmoe::memory_balanced{.slack = -0.1}, {"slack = -0.1"});
  requests::problem of(2, 2, 3);
  CHECK(fixture::names(requests::refusal(lrmoe::eplb{.groups = 2}, of.request()),
                       {"E = 3", "2 equal groups"}));
}

TEST_CASE("a planner is chosen by its name", "[placement]") {
  std::vector<std::string> names;
  for (const auto& planner : lrmoe::all_planners()) {
    const std::string name(planner.attributes().name);
    CHECK(lrmoe::planner_by_name(name).attributes().name == name);
    CHECK(std::find(names.begin(), names.end(), name) == names.end());
    names.push_back(name);
  }
  CHECK(names.size() == 11);
  CHECK(fixture::names(fixture::refusal([] { (void)lrmoe::planner_by_name("best"); }),
                       {"'best'", "static", "ultraep", "lrmoe"}));
}
