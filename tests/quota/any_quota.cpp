#include <lrmoe/quota/any_quota.hpp>
#include <lrmoe/quota/error_bounded.hpp>
#include <lrmoe/quota/fixed_fraction.hpp>
#include <lrmoe/quota/keep_all.hpp>

#include "catch.hpp"
#include "requests.hpp"

using any = lrmoe::any_quota<lrmoe::keep_all, lrmoe::fixed_fraction, lrmoe::error_bounded>;
static_assert(lrmoe::quota<any>);

TEST_CASE("a quota chosen at run time does what the chosen policy does", "[quota]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  auto problem = requests::random_problem(draw, 3, 9, 100);
  requests::record_random_sizes(draw, problem);
  CHECK(problem.assigned(any{}) == problem.assigned(lrmoe::keep_all{}));
  CHECK(problem.assigned(any{lrmoe::fixed_fraction{0.3}}) ==
        problem.assigned(lrmoe::fixed_fraction{0.3}));
  CHECK(problem.assigned(any{lrmoe::error_bounded{0.7}}) ==
        problem.assigned(lrmoe::error_bounded{0.7}));
  CHECK_FALSE(any{lrmoe::fixed_fraction{0.3}}.uses_history());
  CHECK(any{lrmoe::error_bounded{0.7}}.uses_history());
  CHECK(fixture::names(fixture::refusal([] { any{lrmoe::fixed_fraction{2.0}}.validate(); }),
                       {"keep = 2"}));
}

TEST_CASE("keeping all pairs keeps all pairs", "[quota]") {
  CHECK(requests::on_one_rank({0, 1, 2147483647}).assigned(lrmoe::keep_all{}) ==
        requests::counts_type{0, 1, 2147483647});
}
