#include <lrmoe/placement/symi.hpp>

#include "catch.hpp"
#include "requests.hpp"

using requests::counts_type;

TEST_CASE("slots follow the popularity of the last call", "[placement]") {
  requests::problem of(2, 2, 3);
  of.remember({1, 1, 6});
  of.remember({6, 1, 1});
  // Goals 3, 1/2, 1/2: floors and the least of one give 3, 1, 1. One too many: 1 and 2 are further above
  // their goals, but keep their last slot.
  of.source_counts = {5, 2, 0, 1, 1, 1};
  const auto made = requests::run(lrmoe::symi{}, of);
  CHECK(made.slots() == counts_type{0, 0, 1, 2});
  CHECK(made.split == of.source_counts);
}

TEST_CASE("what floors leave over goes to the experts furthest below their goal", "[placement]") {
  requests::problem of(3, 2, 3);
  of.remember({5, 4, 1});
  // Goals 3, 2.4, 0.6: floors 3, 2, 1 use all six.
  CHECK(requests::run(lrmoe::symi{}, of).slots() == counts_type{0, 0, 0, 1, 1, 2});
  of.remember({6, 3, 3});
  // Goals 3, 1.5, 1.5: floors 3, 1, 1; of equal ones the first.
  CHECK(requests::run(lrmoe::symi{}, of).slots() == counts_type{0, 0, 0, 1, 1, 2});
}

TEST_CASE("without counts all experts are equally popular", "[placement]") {
  requests::problem of(2, 3, 3);
  CHECK(requests::run(lrmoe::symi{}, of).slots() == counts_type{0, 0, 1, 1, 2, 2});
  of.remember({0, 0, 0});
  CHECK(requests::run(lrmoe::symi{}, of).slots() == counts_type{0, 0, 1, 1, 2, 2});
}
