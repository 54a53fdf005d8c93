#include <lrmoe/placement/peak_floor.hpp>

#include "catch.hpp"
#include "requests.hpp"

using integers = std::vector<std::int64_t>;

TEST_CASE("floors follow from the mean, the hottest expert and its holders", "[placement]") {
  CHECK(lrmoe::permutation_floor(3, integers{4, 4, 5}) == 5);
  CHECK(lrmoe::permutation_floor(2, integers{4, 4, 5}) == 7);
  CHECK(lrmoe::replication_floor(3, integers{9, 1, 1}, integers{2, 1, 1}) == 5);
  CHECK(lrmoe::replication_floor(2, integers{9, 1, 1}, integers{2, 1, 1}) == 6);
}

TEST_CASE("the floor of transient copies counts room and slots", "[placement]") {
  const requests::counts_type home{0, 1, 2};
  // The mean, with a slot on both others.
  CHECK(lrmoe::transient_floor(3, integers{90, 6, 24}, home, integers{0, 1, 1}) == 40);
  // Only rank 1 has a slot: 90 - tau = tau - 6.
  CHECK(lrmoe::transient_floor(3, integers{90, 6, 24}, home, integers{0, 1, 0}) == 48);
  CHECK(lrmoe::transient_floor(3, integers{90, 6, 24}, home, integers{0, 0, 0}) == 90);
  // Three experts of 30 at rank 0 and one slot elsewhere: two stay.
  CHECK(lrmoe::transient_floor(2, integers{30, 30, 30}, {{0, 0, 0}}, integers{0, 1}) == 60);
  CHECK(lrmoe::transient_floor(3, integers{0, 0, 0}, home, integers{1, 1, 1}) == 0);
}
