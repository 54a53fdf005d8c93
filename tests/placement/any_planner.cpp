#include <lrmoe/placement/any_planner.hpp>
#include <lrmoe/placement/static_ownership.hpp>
#include <lrmoe/placement/symi.hpp>
#include <lrmoe/placement/ultraep.hpp>

#include "catch.hpp"
#include "requests.hpp"

using any = lrmoe::any_planner<lrmoe::static_ownership, lrmoe::symi, lrmoe::ultraep>;
static_assert(lrmoe::planner<any>);

TEST_CASE("a planner chosen at run time does what the chosen one does", "[placement]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  requests::problem of(4, 3, 6);
  of.source_counts = requests::random_counts(draw, 4, 6, "zipf", 500);
  of.history.record(4, 6, of.source_counts);
  const auto same = [&](const auto& planner) {
    const auto chosen = requests::run(any{planner}, of), own = requests::run(planner, of);
    CHECK(chosen.plan.replicas == own.plan.replicas);
    CHECK(chosen.plan.loads == own.plan.loads);
    CHECK(chosen.split == own.split);
    CHECK(any{planner}.attributes().name == planner.attributes().name);
  };
  same(lrmoe::static_ownership{});
  same(lrmoe::symi{});
  same(lrmoe::ultraep{});
  CHECK(any{}.attributes().name == "static");
  CHECK(fixture::names(fixture::refusal([] { any{lrmoe::ultraep{.domain = -3}}.validate(); }),
                       {"domain = -3"}));
}
