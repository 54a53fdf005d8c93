#include <lrmoe/compaction/expert_order.hpp>

#include "catch.hpp"
#include "fixture.hpp"

namespace {

using fixture::device;
using oracle::integer;

struct sorted {
  std::vector<std::int32_t> offsets, pair_of_row, row_of_pair;
};

class sorter {
 public:
  sorted operator()(const std::vector<std::int32_t>& experts, integer T, integer K, integer E) {
    const fixture::array<lrmoe::index_type> ids(experts);
    const auto order = sorter_.sort(space_, scratch_, fixture::constant(ids.matrix(T, K)), E);
    space_.fence("lrmoe_test::sort");
    CHECK(order.offsets.extent(0) == static_cast<std::size_t>(E + 1));
    CHECK(order.row_of_pair.extent(0) == static_cast<std::size_t>(T * K));
    sorted result{fixture::host_copy(order.offsets), fixture::host_copy(order.pair_of_row),
                  fixture::host_copy(order.row_of_pair)};
    // What the next call finds in the buffers must not matter.
    Kokkos::deep_copy(order.pair_of_row, 77);
    Kokkos::deep_copy(order.row_of_pair, 78);
    Kokkos::deep_copy(order.offsets, 79);
    scratch_.fill_bytes(space_, 0xff);
    return result;
  }
  const lrmoe::ledger& account() const { return account_; }
  std::int64_t held_bytes() const { return sorter_.size_bytes(); }

 private:
  fixture::space_type space_;
  lrmoe::ledger account_;
  lrmoe::workspace<device> scratch_{space_, account_};
  lrmoe::expert_sorter<device> sorter_{space_, account_};
};

void check_against_plain_loops(const sorted& got, const std::vector<std::int32_t>& experts,
                               integer E) {
  const auto expected = oracle::pairs_by_expert(experts, E);
  std::vector<std::int32_t> row_of_pair(experts.size(), -1);
  std::int32_t row = 0;
  for (integer e = 0; e < E; ++e) {
    CHECK(got.offsets[static_cast<std::size_t>(e)] == row);
    for (const integer p : expected[static_cast<std::size_t>(e)]) {
      REQUIRE(got.pair_of_row[static_cast<std::size_t>(row)] == p);
      row_of_pair[static_cast<std::size_t>(p)] = row++;
    }
  }
  CHECK(got.offsets[static_cast<std::size_t>(E)] == row);
  CHECK(got.row_of_pair == row_of_pair);
}

}  // namespace

TEST_CASE("pairs are ordered by expert and, within an expert, by pair", "[compaction]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  sorter sort;
  struct size {
    integer T, K, E;
  };
  // Calls of growing and shrinking size reuse one sorter; sizes straddle chunks of 64 pairs.
  for (const auto& [T, K, E] :
       {size{16, 2, 4}, size{63, 1, 7}, size{64, 1, 7}, size{65, 1, 7}, size{1025, 1, 7},
        size{700, 6, 64}, size{3, 3, 3}, size{1, 1, 1}, size{2000, 1, 1}, size{5, 4, 300}}) {
    INFO("T = " << T << ", K = " << K << ", E = " << E);
    const auto experts = draw.routes(T, K, E);
    check_against_plain_loops(sort(experts, T, K, E), experts, E);
  }
}

TEST_CASE("no pairs give offsets of zero", "[compaction]") {
  sorter sort;
  sort({0, 1, 2, 0}, 2, 2, 3);
  const sorted got = sort({}, 0, 2, 3);
  CHECK(got.offsets == std::vector<std::int32_t>{0, 0, 0, 0});
}

TEST_CASE("padded pairs get no row, and all of them may be padded", "[compaction]") {
  sorter sort;
  const std::vector<std::int32_t> some{1, -1, -1, -1, 0, 1, -1, 1};
  check_against_plain_loops(sort(some, 4, 2, 3), some, 3);
  const std::vector<std::int32_t> all(2600, -1);
  check_against_plain_loops(sort(all, 1300, 2, 3), all, 3);
}

TEST_CASE("empty experts first, in the middle and last have equal offsets", "[compaction]") {
  sorter sort;
  std::vector<std::int32_t> experts;
  for (int t = 0; t < 1500; ++t) experts.push_back(t % 2 == 0 ? 2 : 4);
  const sorted got = sort(experts, 1500, 1, 7);
  check_against_plain_loops(got, experts, 7);
  CHECK(got.offsets == std::vector<std::int32_t>{0, 0, 0, 750, 750, 1500, 1500, 1500});
}

TEST_CASE("a sorter allocates nothing for a call of a size it has seen", "[compaction]") {
  sorter sort;
  fixture::random draw(1);
  const auto experts = draw.routes(100, 2, 8);
  sort(experts, 100, 2, 8);
  const auto before = sort.account().allocations();
  sort(experts, 100, 2, 8);
  sort(draw.routes(50, 2, 8), 50, 2, 8);
  CHECK(sort.account().allocations() == before);
  CHECK(sort.account().live_bytes(lrmoe::memory_category::token_buffers) == sort.held_bytes());
}
