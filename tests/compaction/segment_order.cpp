#include <lrmoe/compaction/segment_order.hpp>

#include "catch.hpp"
#include "fixture.hpp"
#include "random_plan.hpp"

namespace {

using fixture::array;
using fixture::at;
using fixture::device;
using fixture::index_values;
using lrmoe::index_type;
using oracle::integer;

template <class View>
index_values copy(const View& view) {
  return fixture::host_copy(view);
}

/// Ids (T, K) of one source, some pairs absent.
index_values random_ids(fixture::random& draw, integer T, integer K, integer E) {
  index_values ids = draw.routes(T, K, E);
  for (auto& e : ids)
    if (draw.integer(0, 4) == 0) e = lrmoe::no_expert;
  return ids;
}

/// By segment: the pairs of its expert that no segment before took, in ascending order.
void check_order(const lrmoe::expert_order<device>& sorted, const lrmoe::replica_plan& plan,
                 integer source, const index_values& ids, integer K) {
  index_values offsets{0}, pairs, tokens, rows(ids.size(), lrmoe::no_expert);
  std::vector<std::size_t> next(10, 0);  // by expert: first pair not taken
  for (integer h = 0; h < plan.H; ++h) {
    const index_type e = plan.expert[at(h)];
    for (integer left = plan.count(source, h); left > 0; ++next[at(e)]) {
      if (ids.at(next[at(e)]) != e) continue;
      rows[next[at(e)]] = static_cast<index_type>(pairs.size());
      pairs.push_back(static_cast<index_type>(next[at(e)]));
      tokens.push_back(pairs.back() / static_cast<index_type>(K));
      --left;
    }
    offsets.push_back(static_cast<index_type>(pairs.size()));
  }
  CHECK(copy(sorted.offsets) == offsets);
  CHECK(copy(sorted.pair_of_row) == pairs);
  CHECK(copy(sorted.token_of_row) == tokens);
  CHECK(copy(sorted.row_of_pair) == rows);
}

}  // namespace

TEST_CASE("an expert's rows go to its segments in ascending order, each a run of them",
          "[compaction]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const fixture::space_type space;
  lrmoe::ledger account;
  lrmoe::workspace<device> scratch(space, account);
  lrmoe::expert_sorter<device> by_expert(space, account);
  lrmoe::segment_sorter<device> by_segment(space, account);
  lrmoe::replica_planner planner;
  for (int round = 0; round < 60; ++round) {
    const integer R = draw.integer(1, 8), E = draw.integer(1, 10), K = draw.integer(1, E),
                  T = draw.integer(0, 30), source = draw.integer(0, R - 1);
    INFO("round " << round << ", R = " << R << ", E = " << E << ", T = " << T);
    const index_values ids = random_ids(draw, T, K, E);
    const auto placed = fixture::random_placement(draw, R, (E + R - 1) / R + draw.integer(0, 3), E);
    index_values counts = fixture::random_counts(draw, R, E, 9), host_offsets(at(E + 1), 0);
    for (const index_type e : ids)
      if (e != lrmoe::no_expert) ++host_offsets[at(e + 1)];
    std::copy(host_offsets.begin() + 1, host_offsets.end(), counts.begin() + source * E);
    std::partial_sum(host_offsets.begin(), host_offsets.end(), host_offsets.begin());
    const auto made = fixture::random_quotas(draw, R, E, counts);
    const auto& plan =
        planner.make(made, placed, fixture::random_split(draw, placed, counts), true);

    const array<index_type> experts(ids);
    const auto order = by_expert.sort(
        space, scratch, lrmoe::matrix_view<const index_type, device>(experts.matrix(T, K)), E);
    const auto sorted = by_segment.sort(space, plan, source, order, host_offsets);
    space.fence("lrmoe_test::segment_order");
    check_order(sorted, plan, source, ids, K);
  }
  CHECK(by_segment.size_bytes() > 0);
}
