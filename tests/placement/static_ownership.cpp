#include <lrmoe/placement/static_ownership.hpp>

#include "catch.hpp"
#include "requests.hpp"

using requests::counts_type;

TEST_CASE("static ownership keeps contiguous blocks of experts at home", "[placement]") {
  requests::problem of(2, 2, 3);
  of.source_counts = {5, 0, 2, 1, 7, 3};
  const auto made = requests::run(lrmoe::static_ownership{}, of);
  CHECK(made.slots() == counts_type{0, 1, 2, lrmoe::no_expert});
  CHECK(made.split == of.source_counts);
  CHECK(made.rank_loads() == std::vector<std::int64_t>{13, 5});
}

TEST_CASE("static ownership takes homes as they are given", "[placement]") {
  requests::problem of(3, 2, 3);
  of.home = {2, 0, 2};
  const auto none = lrmoe::no_expert;
  CHECK(requests::run(lrmoe::static_ownership{}, of).slots() ==
        counts_type{1, none, none, none, 0, 2});
}
