#include <lrmoe/compaction/kept_pairs.hpp>

#include "catch.hpp"
#include "fixture.hpp"

namespace {

using fixture::array;
using fixture::device;
using lrmoe::index_type;

template <class View>
std::vector<double> copy(const View& view, std::size_t count) {
  const auto values = fixture::host_copy(view);
  return {values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace

TEST_CASE("kept rows know their token and weight, and values return to their pairs",
          "[compaction]") {
  // Three tokens, two pairs each; pair 3 is padding. Expert 0 has pairs 0, 5; expert 2 has 1, 2, 4.
  const array<index_type> experts(std::vector<index_type>{0, 2, 2, -1, 2, 0});
  const array<float> weights(std::vector<double>{0.5, 1.5, 2.5, 99, 4.5, 5.5});
  const lrmoe::routing<float, device> routed{experts.matrix(3, 2), weights.matrix(3, 2)};
  const fixture::space_type space;
  lrmoe::ledger account;
  lrmoe::workspace<device> scratch(space, account);
  lrmoe::expert_sorter<device> sorter(space, account);
  const auto order =
      sorter.sort(space, scratch, lrmoe::matrix_view<const index_type, device>(routed.experts), 3);
  // Kept: row 1 (pair 5) of expert 0 and rows 2 and 4 (pairs 1 and 4) of expert 2.
  const std::vector<index_type> host_offsets{0, 1, 1, 3};
  const array<index_type> kept_offsets(host_offsets);
  const array<index_type> rows(std::vector<index_type>{1, 2, 4});
  const array<float> factors(std::vector<double>{2, 4, 8});

  const auto gather = [&] {
    return lrmoe::gather_kept_pairs(
        space, scratch, order, routed,
        lrmoe::row_groups<fixture::device>{kept_offsets.vector(), host_offsets},
        fixture::constant(rows.vector()));
  };
  gather();
  scratch.fill_bytes(space, 0xff);
  const auto kept = gather();
  space.fence("lrmoe_test::gather");
  CHECK(copy(kept.tokens, 3) == std::vector<double>{2, 0, 2});
  CHECK(copy(kept.weights, 3) == std::vector<double>{5.5, 1.5, 4.5});
  CHECK(copy(kept.kept_of_pair, 6) == std::vector<double>{-1, 1, -1, -1, 2, 0});

  const array<float> of_kept(std::vector<double>{10, 20, 30});
  array<float> of_pairs(6);
  lrmoe::spread_kept_values(space, kept, of_kept.vector(), {}, of_pairs.matrix(3, 2));
  space.fence("lrmoe_test::spread");
  CHECK(of_pairs.values() == std::vector<double>{0, 20, 0, 0, 30, 10});
  of_pairs.poison();
  lrmoe::spread_kept_values(space, kept, of_kept.vector(), fixture::constant(factors.vector()),
                            of_pairs.matrix(3, 2));
  space.fence("lrmoe_test::spread");
  CHECK(of_pairs.values() == std::vector<double>{0, 5, 0, 0, 3.75, 5});
  CHECK(of_pairs.guards_intact());
}
