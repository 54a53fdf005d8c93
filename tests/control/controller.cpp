#include <lrmoe/control/controller.hpp>
#include <lrmoe/quota/fixed_fraction.hpp>

#include "catch.hpp"
#include "fixture.hpp"

namespace {

using fixture::device;
using oracle::integer;

struct planned {
  std::vector<std::int32_t> counts, quotas, kept_offsets;
  integer capacity;
};

template <class View>
std::vector<std::int32_t> copy(const View& view) {
  return {view.data(), view.data() + view.size()};
}

planned plan_of(const std::vector<std::int32_t>& counts, const lrmoe::fixed_fraction& quota,
                bool keep_all) {
  lrmoe::ledger account;
  lrmoe::controller<device> controller(account);
  std::vector<std::int32_t> offsets{0};
  for (const auto count : counts) offsets.push_back(offsets.back() + count);
  const fixture::array<lrmoe::index_type> at(offsets);
  const fixture::space_type space;
  const auto make = [&] {
    return controller.make(space, fixture::constant(at.vector()), offsets.back(), quota, keep_all);
  };
  const auto first = make();
  const auto allocations = account.allocations();
  Kokkos::deep_copy(first.counts, -7);
  Kokkos::deep_copy(first.quotas, -7);
  Kokkos::deep_copy(first.kept_offsets, -7);
  const auto plan = make();
  space.fence("lrmoe_test::plan");
  CHECK(account.allocations() == allocations);
  CHECK(account.live_bytes() == controller.size_bytes());
  return {copy(plan.counts), copy(plan.quotas), copy(plan.kept_offsets), plan.kept_capacity};
}

}  // namespace

TEST_CASE("a plan holds counts, quotas and where each expert's kept pairs start", "[control]") {
  const planned plan = plan_of({0, 8, 0, 3, 1, 0}, {0.25, 1, 1}, false);
  CHECK(plan.counts == std::vector<std::int32_t>{0, 8, 0, 3, 1, 0});
  CHECK(plan.quotas == std::vector<std::int32_t>{0, 2, 0, 1, 1, 0});
  CHECK(plan.kept_offsets == std::vector<std::int32_t>{0, 0, 2, 2, 3, 4, 4});
  CHECK(plan.capacity >= 4);
}

TEST_CASE("a plan that keeps all ignores the quota policy", "[control]") {
  const planned plan = plan_of({5, 0, 2}, {0.25, 1, 1}, true);
  CHECK(plan.quotas == std::vector<std::int32_t>{5, 0, 2});
  CHECK(plan.kept_offsets == std::vector<std::int32_t>{0, 5, 5, 7});
  CHECK(plan.capacity == 7);
}

TEST_CASE("a plan without pairs keeps nothing", "[control]") {
  for (const bool keep_all : {false, true}) {
    const planned plan = plan_of({0, 0, 0}, {0.5, 4, 8}, keep_all);
    CHECK(plan.quotas == std::vector<std::int32_t>{0, 0, 0});
    CHECK(plan.kept_offsets == std::vector<std::int32_t>{0, 0, 0, 0});
    CHECK(plan.capacity == 0);
  }
}

TEST_CASE("many experts have exact kept offsets", "[control]") {
  std::vector<std::int32_t> counts;
  for (int e = 0; e < 3000; ++e) counts.push_back(e % 13);
  const planned plan = plan_of(counts, {0.5, 1, 1}, false);
  std::int32_t sum = 0;
  for (std::size_t e = 0; e < counts.size(); ++e) {
    REQUIRE(plan.kept_offsets[e] == sum);
    sum += (counts[e] + 1) / 2;
  }
  CHECK(plan.kept_offsets.back() == sum);
}
