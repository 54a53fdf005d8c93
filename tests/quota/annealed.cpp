#include <limits>

#include <lrmoe/quota/annealed.hpp>
#include <lrmoe/quota/error_bounded.hpp>
#include <lrmoe/quota/fixed_fraction.hpp>
#include <lrmoe/quota/with_floor.hpp>

#include "catch.hpp"
#include "requests.hpp"

using annealed_keep = lrmoe::annealed<lrmoe::fixed_fraction, &lrmoe::fixed_fraction::keep>;
using annealed_epsilon = lrmoe::annealed<lrmoe::error_bounded, &lrmoe::error_bounded::epsilon>;

TEST_CASE("an annealed fraction moves linearly between its steps and stays outside them",
          "[quota]") {
  auto problem = requests::on_one_rank({1000});
  const annealed_keep policy{{}, 1.0, 0.2, 100, 300};
  const auto quota = [&](std::uint64_t step) {
    problem.step = step;
    return problem.assigned(policy).front();
  };
  CHECK(quota(0) == 1000);
  CHECK(quota(100) == 1000);
  CHECK(quota(150) == 800);
  CHECK(quota(200) == 600);
  CHECK(quota(299) == 204);
  CHECK(quota(300) == 200);
  CHECK(quota(std::numeric_limits<std::uint64_t>::max()) == 200);
}

TEST_CASE("an annealed policy equals its inner one with the parameter of the step", "[quota]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  auto problem = requests::random_problem(draw, 2, 8, 400);
  requests::record_random_sizes(draw, problem);
  const annealed_epsilon policy{{}, 0.0, 2.0, 10, 20};
  CHECK(policy.uses_history());
  CHECK_FALSE(annealed_keep{}.uses_history());
  for (std::uint64_t step = 8; step < 23; ++step) {
    problem.step = step;
    const double epsilon = step <= 10   ? 0.0
                           : step >= 20 ? 2.0
                                        : 0.2 * static_cast<double>(step - 10);
    CHECK(policy.at(step) == Approx(epsilon));
    CHECK(problem.assigned(policy) == problem.assigned(lrmoe::error_bounded{policy.at(step)}));
  }
}

TEST_CASE("a schedule of no length jumps, and may lie inside a wrapper", "[quota]") {
  auto problem = requests::on_one_rank({100});
  const lrmoe::with_floor<annealed_keep> policy{{{}, 0.5, 0.01, 7, 7}, 10};
  problem.step = 6;
  CHECK(problem.assigned(policy).front() == 50);
  problem.step = 7;
  CHECK(problem.assigned(policy).front() == 10);
}

TEST_CASE("a schedule in reverse and ends that the inner policy refuses are refused", "[quota]") {
  const auto refused = [](const annealed_keep& policy) {
    return fixture::refusal([&] { policy.validate(); });
  };
  CHECK(fixture::names(refused({{}, 1.0, 0.5, 10, 9}), {"begin_step = 10", "end_step = 9"}));
  CHECK(fixture::names(refused({{}, 1.0, 0.0, 0, 9}), {"keep = 0"}));
  CHECK(fixture::names(refused({{}, 1.5, 0.5, 0, 9}), {"keep = 1.5"}));
  CHECK(fixture::names(refused({{}, 0.5, std::nan(""), 0, 9}), {"keep = nan"}));
}
