// Where experts are from call to call: what planners are told, and when weights have to move.
#include <numeric>

#include <lrmoe/placement/expert_placer.hpp>

#include "catch.hpp"
#include "fixture.hpp"

using lrmoe::index_type;

namespace {

/// Puts expert e on rank (e + turn) mod R, and notes what it was told.
struct turning {
  std::int64_t turn = 0;
  std::int64_t window = 2;
  std::vector<lrmoe::placement>* seen_current = nullptr;
  std::vector<std::int64_t>* seen_history = nullptr;

  void validate() const {}
  lrmoe::planner_attributes attributes() const { return {.name = "turning", .window = window}; }
  void plan(const lrmoe::placement_request& request, lrmoe::placement_plan& to) const {
    seen_current->push_back(*request.current);
    seen_history->push_back(request.history->size());
    std::vector<index_type> slots(static_cast<std::size_t>(request.R * request.S), -1);
    for (std::int64_t e = 0; e < request.E; ++e) {
      const std::int64_t r = (e + turn) % request.R;
      slots[static_cast<std::size_t>(r * request.S + e / request.R)] = static_cast<index_type>(e);
    }
    to.replicas = lrmoe::placement(request.R, request.S, request.E, slots);
    to.loads.clear();
  }
  void split(const lrmoe::placement_request& request, const lrmoe::placement_plan&,
             std::span<index_type> split) const {
    std::copy(request.source_counts.begin(), request.source_counts.end(), split.begin());
  }
};

}  // namespace

TEST_CASE("weights move when the placement differs from where they are", "[placement]") {
  std::vector<lrmoe::placement> current;
  std::vector<std::int64_t> history;
  turning policy{0, 2, &current, &history};
  const std::vector<index_type> counts{1, 2, 3, 4, 5, 6, 0, 0};  // R = 2, E = 4
  lrmoe::expert_placer placer;
  const auto place = [&](std::int64_t turn) {
    policy.turn = turn;
    placer.place(policy, {.R = 2, .S = 2, .E = 4, .source_counts = counts, .home = {}});
  };
  place(0);
  CHECK(placer.moves());  // homes are blocks, the planner deals experts out in turn
  CHECK(current[0] == lrmoe::home_placement(2, 2, 4));
  // The call was refused: weights are where they were, and the planner is told so.
  place(0);
  CHECK(placer.moves());
  CHECK(current[1] == lrmoe::home_placement(2, 2, 4));
  placer.settle();
  place(0);
  CHECK(!placer.moves());
  CHECK(current[2] == placer.where());
  place(1);
  CHECK(placer.moves());
  CHECK(history == std::vector<std::int64_t>{0, 1, 2, 2});
  CHECK(std::vector<index_type>(placer.home().begin(), placer.home().end()) ==
        std::vector<index_type>{0, 0, 1, 1});
}

TEST_CASE("the placer counts the pairs and the busy experts of each rank", "[placement]") {
  std::vector<lrmoe::placement> current;
  std::vector<std::int64_t> history;
  const turning policy{0, 1, &current, &history};
  const std::vector<index_type> counts{1, 2, 3, 0, 5, 6, 7, 0};
  lrmoe::expert_placer placer;
  placer.place(policy, {.R = 2, .S = 2, .E = 4, .source_counts = counts, .home = {}});
  const auto list = [](std::span<const std::int64_t> values) {
    return std::vector<std::int64_t>(values.begin(), values.end());
  };
  CHECK(list(placer.pairs_of_rank()) == std::vector<std::int64_t>{1 + 5 + 3 + 7, 2 + 6});
  CHECK(list(placer.experts_of_rank()) == std::vector<std::int64_t>{2, 1});
}

TEST_CASE("on one rank everything stays", "[placement]") {
  lrmoe::expert_placer placer;
  const std::vector<index_type> counts{3, 0, 2};
  placer.stay(3, counts);
  CHECK(placer.where() == lrmoe::home_placement(1, 3, 3));
  CHECK(!placer.moves());
  CHECK(std::vector<index_type>(placer.split().begin(), placer.split().end()) == counts);
}
