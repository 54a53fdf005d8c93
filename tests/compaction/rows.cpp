#include <algorithm>

#include <lrmoe/compaction/dropped_pairs.hpp>
#include <lrmoe/compaction/gather_rows.hpp>
#include <lrmoe/compaction/scale_rows.hpp>

#include "catch.hpp"
#include "fixture.hpp"

namespace {

using fixture::array;
using fixture::device;
using lrmoe::index_type;
using oracle::integer;

template <class View>
std::vector<integer> copy(const View& view) {
  const auto values = fixture::host_copy(view);
  return {values.begin(), values.end()};
}

}  // namespace

TEST_CASE("gathered rows are copies in the order of the index", "[compaction]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const integer N = 40, columns = draw.integer(1, 9), S = draw.integer(0, 60);
  const auto values = draw.normal(N * columns, 1.0, oracle::format::binary32);
  std::vector<index_type> index;
  for (integer i = 0; i < S; ++i) index.push_back(static_cast<index_type>(draw.integer(0, N - 1)));
  const array<float> rows(values);
  const array<index_type> at(index);
  array<float> out(S * columns);
  lrmoe::gather_rows(fixture::space_type{},
                     lrmoe::matrix_view<const float, device>(rows.matrix(N, columns)),
                     fixture::constant(at.vector()), out.matrix(S, columns));
  Kokkos::fence("lrmoe_test::gather_rows");
  const auto got = out.values();
  for (integer i = 0; i < S; ++i)
    for (integer d = 0; d < columns; ++d)
      CHECK(got[static_cast<std::size_t>(i * columns + d)] ==
            values[static_cast<std::size_t>(index[static_cast<std::size_t>(i)] * columns + d)]);
  CHECK(out.guards_intact());
}

TEMPLATE_TEST_CASE("rows are spread to their places in the packed range, and nowhere else",
                   "[compaction]", float, lrmoe::bfloat16) {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  // On a GPU rows of whole chunks of 16 bytes move up to 256 chunks at a time, others a column a lane.
  const integer R = draw.integer(0, 40), C = draw.integer(1, 19);
  const integer columns = GENERATE(3, 8, 64, 2104);
  const integer first = draw.integer(0, 5);
  const auto values = draw.normal(R * columns, 1.0, fixture::format_of<TestType>());
  // Some rows have no place at all; some places lie before the range or behind it.
  std::vector<index_type> places = draw.routes(1, R * C, R * C);
  for (integer p = 0; p < R * C; ++p)
    if ((p / C) % 5 == 0 || draw.integer(0, 3) == 0)
      places[static_cast<std::size_t>(p)] = lrmoe::no_expert;
  const integer S = std::max<integer>(R * C - 2 * first, 0);
  std::vector<double> expected(static_cast<std::size_t>(S * columns), -7.0);
  for (integer p = 0; p < R * C; ++p) {
    const integer place = places[static_cast<std::size_t>(p)] - first;
    if (places[static_cast<std::size_t>(p)] == lrmoe::no_expert || place < 0 || place >= S)
      continue;
    std::copy_n(values.begin() + p / C * columns, columns, expected.begin() + place * columns);
  }
  const array<TestType> rows(values);
  const array<index_type> at(places);
  const array<TestType> out(std::vector<double>(expected.size(), -7.0));
  lrmoe::spread_rows(fixture::space_type{},
                     lrmoe::matrix_view<const TestType, device>(rows.matrix(R, columns)),
                     fixture::constant(at.vector()), first, out.matrix(S, columns));
  Kokkos::fence("lrmoe_test::spread_rows");
  CHECK(out.values() == expected);
  CHECK(out.guards_intact());
}

TEST_CASE("scattered rows go back to where they were gathered, and no others are written",
          "[compaction]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const integer N = 40, columns = draw.integer(1, 9), S = draw.integer(0, N);
  const auto values = draw.normal(S * columns, 1.0, oracle::format::binary32);
  std::vector<index_type> index = draw.routes(1, S, N);  // S distinct rows
  const array<float> rows(values);
  const array<index_type> at(index);
  std::vector<double> expected(static_cast<std::size_t>(N * columns), -7.0);
  const array<float> out(expected);
  for (integer i = 0; i < S; ++i)
    std::copy_n(values.begin() + i * columns, columns,
                expected.begin() + index[static_cast<std::size_t>(i)] * columns);
  lrmoe::scatter_rows(fixture::space_type{},
                      lrmoe::matrix_view<const float, device>(rows.matrix(S, columns)),
                      fixture::constant(at.vector()), out.matrix(N, columns));
  Kokkos::fence("lrmoe_test::scatter_rows");
  CHECK(out.values() == expected);
  CHECK(out.guards_intact());
}

TEMPLATE_TEST_CASE("scaled rows are rounded once, and the others stay as they are", "[compaction]",
                   float, lrmoe::bfloat16) {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const auto format = fixture::format_of<TestType>();
  const integer N = 20, columns = 5;
  const auto values = draw.normal(N * columns, 1.0, format);
  const auto factors = draw.normal(4, 3.0, oracle::format::binary32);
  const std::vector<index_type> index{3, 0, 19, 7};
  const bool indexed = GENERATE(false, true);
  array<TestType> rows(values);
  const array<float> by(factors);
  const array<index_type> at(index);
  lrmoe::scale_rows(
      fixture::space_type{}, rows.matrix(N, columns),
      indexed ? fixture::constant(at.vector()) : lrmoe::vector_view<const index_type, device>{},
      fixture::constant(by.vector()));
  Kokkos::fence("lrmoe_test::scale_rows");
  auto expected = values;
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t d = 0; d < 5; ++d) {
      double& value = expected[5 * (indexed ? static_cast<std::size_t>(index[i]) : i) + d];
      value =
          oracle::round_to(format, oracle::round_to(oracle::format::binary32, value * factors[i]));
    }
  CHECK(rows.values() == expected);
  CHECK(rows.guards_intact());
}

TEST_CASE("dropped pairs are the rows that were not kept, and their values find their places",
          "[compaction]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const integer T = draw.integer(0, 50), K = 3, E = 5, P = T * K;
  std::vector<index_type> experts = draw.routes(T, K, E);
  for (auto& e : experts)
    if (draw.integer(0, 4) == 0) e = lrmoe::no_expert;
  const array<index_type> ids(experts);
  const array<float> weights(draw.normal(P, 1.0, oracle::format::binary32));
  const lrmoe::routing<float, device> routed{ids.matrix(T, K), weights.matrix(T, K)};
  const fixture::space_type space;
  lrmoe::ledger account;
  lrmoe::workspace<device> scratch(space, account);
  lrmoe::expert_sorter<device> sorter(space, account);
  const auto order =
      sorter.sort(space, scratch, lrmoe::matrix_view<const index_type, device>(routed.experts), E);
  space.fence("lrmoe_test::order");
  std::vector<index_type> kept_rows, dropped_rows, kept_offsets{0}, dropped_offsets{0};
  const auto order_offsets = fixture::host_copy(order.offsets);
  for (integer e = 0; e < E; ++e) {
    for (auto r = order_offsets[static_cast<std::size_t>(e)];
         r < order_offsets[static_cast<std::size_t>(e + 1)]; ++r)
      (draw.integer(0, 1) == 0 ? kept_rows : dropped_rows).push_back(r);
    kept_offsets.push_back(static_cast<index_type>(kept_rows.size()));
    dropped_offsets.push_back(static_cast<index_type>(dropped_rows.size()));
  }
  const array<index_type> rows(kept_rows), offsets(kept_offsets);
  const auto kept =
      lrmoe::gather_kept_pairs(space, scratch, order, routed,
                               lrmoe::row_groups<fixture::device>{offsets.vector(), kept_offsets},
                               fixture::constant(rows.vector()));
  const auto N = static_cast<integer>(kept_rows.size() + dropped_rows.size());
  const auto gather = [&] {
    return lrmoe::gather_dropped_pairs(space, scratch, order, kept, N,
                                       static_cast<integer>(kept_rows.size()));
  };
  const auto dropped = gather();
  space.fence("lrmoe_test::dropped");
  CHECK(copy(dropped.rows) == std::vector<integer>(dropped_rows.begin(), dropped_rows.end()));
  CHECK(copy(dropped.offsets) ==
        std::vector<integer>(dropped_offsets.begin(), dropped_offsets.end()));

  std::vector<double> values, expected(static_cast<std::size_t>(P), -7.0);
  const auto pair_of_row = fixture::host_copy(order.pair_of_row);
  const auto tokens = fixture::host_copy(dropped.tokens);
  for (std::size_t j = 0; j < dropped_rows.size(); ++j) {
    values.push_back(static_cast<double>(j + 1));
    const auto pair = pair_of_row[static_cast<std::size_t>(dropped_rows[j])];
    expected[static_cast<std::size_t>(pair)] = values.back();
    CHECK(tokens[j] == pair / K);
  }
  const array<float> of_dropped(values);
  array<float> of_pairs(std::vector<double>(static_cast<std::size_t>(P), -7.0));
  lrmoe::spread_dropped_values(space, order, dropped, of_dropped.vector(), of_pairs.matrix(T, K));
  space.fence("lrmoe_test::spread");
  CHECK(of_pairs.values() == expected);
}
