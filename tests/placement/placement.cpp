#include <lrmoe/placement/placement.hpp>

#include "catch.hpp"
#include "requests.hpp"

using requests::counts_type;

namespace {

counts_type values(std::span<const lrmoe::index_type> from) {
  return counts_type(from.begin(), from.end());
}

}  // namespace

TEST_CASE("replicas are counted by expert, then by rank", "[placement]") {
  // Rank 0 holds 2 twice, rank 1 has an empty slot, rank 2 holds what the others do.
  lrmoe::placement where(3, 3, 3, {2, 0, 2, 1, -1, 0, 0, 1, 2});
  CHECK(where.replicas() == 7);
  CHECK(values(where.offsets()) == counts_type{0, 3, 5, 7});
  CHECK(values(where.experts()) == counts_type{0, 0, 0, 1, 1, 2, 2});
  CHECK(values(where.ranks()) == counts_type{0, 1, 2, 1, 2, 0, 2});
  CHECK(values(where.slots()) == counts_type{1, 2, 0, 0, 1, 0, 2});
  CHECK(values(where.copies()) == counts_type{1, 1, 1, 1, 1, 2, 1});
  CHECK(where.find(1, 0) == -1);
  CHECK(where.find(2, 2) == 6);

  where.assign(1, 4, 2, counts_type{1, -1, 0, 1});
  CHECK(where == lrmoe::placement(1, 4, 2, {1, -1, 0, 1}));
  CHECK(values(where.ranks()) == counts_type{0, 0});
  CHECK(values(where.slots()) == counts_type{2, 0});
  CHECK(values(where.copies()) == counts_type{1, 2});
}

TEST_CASE("a damaged placement is refused", "[placement]") {
  const auto refused = [](std::int64_t R, std::int64_t S, std::int64_t E, const counts_type& slots,
                          std::initializer_list<std::string> parts) {
    CHECK(fixture::names(fixture::refusal([&] { lrmoe::placement(R, S, E, slots); }), parts));
    CHECK(fixture::names(fixture::refusal([&] {
                           lrmoe::placement reused(1, 1, 1, {0});
                           reused.assign(R, S, E, slots);
                         }),
                         parts));
  };
  refused(0, 1, 1, {}, {"R = 0"});
  refused(2, 1, 3, {0, 1}, {"R S = 2 x 1 = 2", "E = 3"});
  refused(2, 1, 2, {0, 1, 1}, {"3 slots given"});
  refused(2, 1, 2, {0, 2}, {"rank 1", "expert 2", "E = 2"});
  refused(2, 1, 2, {0, -2}, {"expert -2"});
  refused(2, 1, 2, {1, 1}, {"expert 0"});
}
