#include <deque>

#include <lrmoe/placement/load_history.hpp>

#include "catch.hpp"
#include "requests.hpp"

using requests::counts_type;

TEST_CASE("a history holds the last calls, the latest first", "[placement]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (const std::int64_t window : {1, 2, 5}) {
    lrmoe::load_history history(window);
    std::deque<counts_type> expected;
    for (int call = 0; call < 12; ++call) {
      const auto counts = requests::random_counts(draw, 3, 4, "uniform", 100);
      history.record(3, 4, counts);
      expected.push_front(counts);
      if (static_cast<std::int64_t>(expected.size()) > window) expected.pop_back();
      REQUIRE(history.size() == static_cast<std::int64_t>(expected.size()));
      for (std::int64_t age = 0; age < history.size(); ++age) {
        const auto& matrix = expected[static_cast<std::size_t>(age)];
        const auto held = history.counts(age);
        CHECK(counts_type(held.begin(), held.end()) == matrix);
        for (std::size_t e = 0; e < 4; ++e)
          CHECK(history.loads(age)[e] == matrix[e] + matrix[4 + e] + matrix[8 + e]);
      }
      if (call == 7) {
        history.clear();
        expected.clear();
      }
    }
  }
}

TEST_CASE("a history of no window stays empty", "[placement]") {
  lrmoe::load_history history(0);
  history.record(1, 2, counts_type{1, 2});
  CHECK(history.size() == 0);
}

TEST_CASE("a history refuses counts that do not fit", "[placement]") {
  lrmoe::load_history history(2);
  const auto refused = [&](std::int64_t R, std::int64_t E, const counts_type& counts) {
    return fixture::refusal([&] { history.record(R, E, counts); });
  };
  CHECK(fixture::names(refused(2, 2, {1, 2, 3}), {"3 counts", "R = 2"}));
  CHECK(fixture::names(refused(1, 2, {1, -2}), {"-2"}));
  history.record(1, 2, counts_type{1, 2});
  CHECK(fixture::names(refused(2, 1, {1, 2}), {"R = 2", "R = 1", "clear"}));
  CHECK(fixture::names(fixture::refusal([] { lrmoe::load_history(-1); }), {"window = -1"}));
}
