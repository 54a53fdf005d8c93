// What planners and quota policies are told of a call, on ranks of one process.
#include <limits>

#include <lrmoe/control/call_planner.hpp>
#include <lrmoe/exchange/logical.hpp>
#include <lrmoe/openmp/backend.hpp>
#include <lrmoe/policies.hpp>

#include "catch.hpp"
#include "fixture.hpp"

using lrmoe::index_type;

namespace {

using backend = lrmoe::with_ranks<lrmoe::openmp::backend<>, lrmoe::logical::communicator>;
constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();

struct told {
  std::vector<std::int64_t> available_bytes;
  lrmoe::placement_costs costs;
  std::vector<lrmoe::rank_cost> ranks;
  std::vector<index_type> counts;
};

/// Static ownership that notes the request.
struct noting_planner : lrmoe::static_ownership {
  told* note = nullptr;
  void plan(const lrmoe::placement_request& request, lrmoe::placement_plan& to) const {
    note->available_bytes.assign(request.available_bytes.begin(), request.available_bytes.end());
    note->costs = request.costs;
    lrmoe::static_ownership::plan(request, to);
  }
};
struct noting_quota : lrmoe::fixed_fraction {
  told* note = nullptr;
  void assign(const lrmoe::quota_request& request, std::span<index_type> quotas) const {
    note->ranks.assign(request.ranks.begin(), request.ranks.end());
    note->counts.assign(request.counts.begin(), request.counts.end());
    lrmoe::fixed_fraction::assign(request, quotas);
  }
};
using policies = lrmoe::policies<lrmoe::softmax_top_k, noting_quota, lrmoe::lrm_score, lrmoe::pps,
                                 noting_planner>;

/// What every rank is told when rank r has `available[r]` bytes and r + 1 pairs for each expert.
std::vector<told> plan_on(const std::vector<std::int64_t>& available,
                          const lrmoe::layer_shape& shape, std::int64_t S) {
  const auto R = static_cast<int>(available.size());
  std::vector<told> all(available.size());
  lrmoe::logical::world world(R);
  world.run([&](lrmoe::logical::communicator& joined) {
    const auto rank = static_cast<std::size_t>(joined.rank());
    lrmoe::context<backend> context(std::move(joined));
    lrmoe::call_planner<float, backend> planner(context, shape);
    policies choices;
    choices.quota.keep = 0.5;
    choices.quota.note = &all[rank];
    choices.planner.note = &all[rank];
    const std::vector<index_type> counts(static_cast<std::size_t>(shape.E),
                                         static_cast<index_type>(rank + 1));
    planner.gather({.T = 10,
                    .available_bytes = available[rank],
                    .slots = S,
                    .element_bytes = 4,
                    .backward = 1,
                    .shape = shape},
                   counts);
    const auto& replicas = planner.make(choices);
    CHECK(replicas.R == R);
    CHECK(planner.made().pairs() == shape.E * R * (R + 1) / 2);
    planner.require_same_plan();
    CHECK(!planner.placer().moves());
    CHECK(planner.own_cost().fixed_s > 0.0);
  });
  return all;
}

}  // namespace

TEST_CASE("every rank is told the same of a call", "[control]") {
  const lrmoe::layer_shape shape{.D = 8, .F = 4, .E = 5, .K = 2};
  const auto all = plan_on({unlimited, unlimited, unlimited}, shape, 3);
  for (const told& one : all) {
    CHECK(one.available_bytes.empty());
    CHECK(one.counts == std::vector<index_type>(5, 6));
    REQUIRE(one.ranks.size() == 3);
    for (std::size_t r = 0; r < 3; ++r) {
      CHECK(one.ranks[r].fixed_s == all[0].ranks[r].fixed_s);
      CHECK(one.ranks[r].fixed_bytes == all[0].ranks[r].fixed_bytes);
    }
    CHECK(one.costs.weight_bytes == 3 * 8 * 4 * 4);
    CHECK(one.costs.row_bytes == 8 * 4);
  }
}

TEST_CASE("a planner hears of every rank's budget, and free slots are room already", "[control]") {
  // Homes of 5 experts on 3 ranks: two, two and one. Of S = 3 slots one, one and two are free.
  const lrmoe::layer_shape shape{.D = 8, .F = 4, .E = 5, .K = 2};
  const std::int64_t copy = 3 * 8 * 4 * (4 + 4);
  for (const told& one : plan_on({1000, unlimited, 3000}, shape, 3))
    CHECK(one.available_bytes ==
          std::vector<std::int64_t>{1000 + copy, unlimited, 3000 + 2 * copy});
}
