#include <lrmoe/placement/llep.hpp>

#include "catch.hpp"
#include "requests.hpp"

using requests::counts_type;

namespace {

requests::problem hot_rank() {
  requests::problem of(3, 2, 3);
  of.source_counts = {30, 2, 8, 30, 2, 8, 30, 2, 8};
  return of;
}

}  // namespace

TEST_CASE("overflow spills to the least loaded ranks in intervals of sources", "[placement]") {
  // Loads 90, 6, 24, capacity 40: home keeps 40, rank 1 takes 34, rank 2 the last 16.
  const auto made = requests::run(lrmoe::llep{.least_chunk = 1}, hot_rank());
  CHECK(made.slots() == counts_type{0, lrmoe::no_expert, 1, 0, 2, 0});
  CHECK(made.plan.loads == counts_type{40, 34, 16, 6, 24});
  CHECK(made.split == counts_type{30, 0, 0, 2, 8, 10, 20, 0, 2, 8, 0, 14, 16, 2, 8});
}

TEST_CASE("where no chunk is large enough, all of the rest goes to one rank", "[placement]") {
  const auto made = requests::run(lrmoe::llep{}, hot_rank());
  // Rank 1 then is above its capacity, so that its own 6 go to rank 2.
  CHECK(made.slots() == counts_type{0, lrmoe::no_expert, 1, 0, 2, 1});
  CHECK(made.plan.loads == counts_type{40, 50, 0, 6, 24});
}

TEST_CASE("little imbalance is put up with", "[placement]") {
  // 90 of a mean of 40.
  CHECK(requests::run(lrmoe::llep{.trigger = 2.3, .least_chunk = 1}, hot_rank())
            .plan.replicas.replicas() == 3);
  CHECK(requests::run(lrmoe::llep{.trigger = 2.2, .least_chunk = 1}, hot_rank())
            .plan.replicas.replicas() == 5);
}

TEST_CASE("without a free slot pairs stay at home", "[placement]") {
  auto of = hot_rank();
  of.S = 1;
  CHECK(requests::run(lrmoe::llep{.least_chunk = 1}, of).plan.loads == counts_type{90, 6, 24});
}
