#include <lrmoe/placement/fastermoe_shadowing.hpp>

#include "catch.hpp"
#include "requests.hpp"

using requests::counts_type;

namespace {

/// A pair takes 1 s, a row 1/4 s of a link, four times; a shadow copy_bytes / 4 s.
requests::problem hot_expert(std::int64_t copy_bytes) {
  requests::problem of(2, 2, 2);
  of.source_counts = {6, 1, 6, 1};
  of.costs = {.pair_s = 1,
              .row_bytes = 1,
              .weight_bytes = copy_bytes / 2,
              .gradient_bytes = copy_bytes / 2};
  of.machine.across = {4, 0};
  return of;
}

}  // namespace

TEST_CASE("an expert is shadowed where that is cheaper, and its pairs stay", "[placement]") {
  // Without shadows: 12 pairs on rank 0, which receives 6 rows: 18 s.
  // Expert 0 everywhere: 8 pairs on rank 1, which receives 1 row, and the copy: 9 s + copy.
  const auto made = requests::run(lrmoe::fastermoe_shadowing{}, hot_expert(32));
  CHECK(made.slots() == counts_type{0, lrmoe::no_expert, 1, 0});
  CHECK(made.split == counts_type{6, 0, 1, 0, 6, 1});
  CHECK(made.rank_loads() == std::vector<std::int64_t>{6, 8});
  CHECK(requests::run(lrmoe::fastermoe_shadowing{}, hot_expert(36)).slots() ==
        counts_type{0, lrmoe::no_expert, 1, lrmoe::no_expert});
}

TEST_CASE("shadows are limited by slots and by setting", "[placement]") {
  const auto none = lrmoe::no_expert;
  auto of = hot_expert(0);
  CHECK(requests::run(lrmoe::fastermoe_shadowing{.most = 0}, of).slots() ==
        counts_type{0, none, 1, none});
  of.S = 1;
  CHECK(requests::run(lrmoe::fastermoe_shadowing{}, of).slots() == counts_type{0, 1});
}
