#include <lrmoe/quota/with_floor.hpp>

#include "catch.hpp"
#include "requests.hpp"

using requests::counts_type;
using requests::on_one_rank;

namespace {

struct keep_nothing {
  void validate() const {}
  static constexpr bool uses_history() { return false; }
  void assign(const lrmoe::quota_request&, std::span<lrmoe::index_type> quotas) const {
    std::fill(quotas.begin(), quotas.end(), 0);
  }
};

}  // namespace

TEST_CASE("the floor keeps cold experts and never exceeds what they have", "[quota]") {
  CHECK(on_one_rank({0, 1, 7, 8, 9, 79, 80, 81, 200}).assigned(lrmoe::with_floor<>{{0.1}, 8}) ==
        counts_type{0, 1, 7, 8, 8, 8, 8, 9, 20});
}

TEST_CASE("the floor lifts the quotas of a policy that keeps nothing", "[quota]") {
  CHECK(on_one_rank({0, 1, 2, 9}).assigned(lrmoe::with_floor<keep_nothing>{{}, 2}) ==
        counts_type{0, 1, 2, 2});
  CHECK(on_one_rank({0, 1, 2, 9}).assigned(lrmoe::with_floor<keep_nothing>{{}, 0}) ==
        counts_type{0, 0, 0, 0});
}

TEST_CASE("the floor never lowers a quota", "[quota]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (int round = 0; round < 100; ++round) {
    auto problem = requests::random_problem(draw, 2, draw.integer(1, 20), 50);
    const lrmoe::fixed_fraction inner{draw.uniform(1e-3, 1.0)};
    const auto floor = static_cast<lrmoe::index_type>(draw.integer(0, 60));
    const auto before = problem.assigned(inner);
    const auto quotas = problem.assigned(lrmoe::with_floor<>{inner, floor});
    for (std::size_t e = 0; e < quotas.size(); ++e) {
      CHECK(quotas[e] == std::max(before[e], std::min(floor, problem.counts[e])));
    }
  }
}

TEST_CASE("a negative floor and a bad inner policy are refused by name", "[quota]") {
  const auto refused = [](const auto& policy) {
    return fixture::refusal([&] { policy.validate(); });
  };
  CHECK(fixture::names(refused(lrmoe::with_floor<>{{0.5}, -1}), {"floor = -1"}));
  CHECK(fixture::names(refused(lrmoe::with_floor<>{{1.5}, 1}), {"keep = 1.5"}));
}
