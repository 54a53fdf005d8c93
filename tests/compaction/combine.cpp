#include <lrmoe/compaction/combine.hpp>

#include "catch.hpp"
#include "fixture.hpp"

namespace {

using fixture::array;
using fixture::device;
using oracle::integer;

}  // namespace

TEMPLATE_TEST_CASE("a token's row is the weighted sum of its pairs' rows and a base",
                   "[compaction]", float, double, lrmoe::bfloat16) {
  using real = lrmoe::accumulate_t<TestType>;
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  // Columns are summed in blocks of 64.
  const integer D = GENERATE(1, 63, 64, 65, 130), T = GENERATE(0, 1, 9), K = GENERATE(1, 3);
  const bool weighted = GENERATE(false, true), based = GENERATE(false, true);
  INFO("D = " << D << ", T = " << T << ", K = " << K << ", weighted = " << weighted
              << ", based = " << based);
  constexpr auto format = fixture::format_of<TestType>();
  oracle::arithmetic rules;
  rules.storage = format;
  const integer R = T * K + 2;
  auto values = draw.normal(R * D, 1.0, format);
  std::vector<std::int32_t> row_of_pair;
  std::vector<double> weights;
  for (integer p = 0; p < T * K; ++p) {
    const bool absent = draw.integer(0, 3) == 0;
    row_of_pair.push_back(absent ? -1 : static_cast<std::int32_t>(draw.integer(0, R - 2)));
    // An absent pair's weight is never looked at.
    weights.push_back(absent ? std::nan("")
                             : oracle::round_to(rules.accumulation(), draw.uniform(-1.0, 1.0)));
  }
  const auto base_values = draw.normal(T * D, 1.0, format);
  std::fill_n(values.end() - D, D, std::nan(""));  // a row that nobody names

  const array<TestType> rows(values, 1), base(base_values, 1), out(T * D, 1);
  const array<lrmoe::index_type> index(row_of_pair);
  const array<real> w(weights, 1);
  const fixture::space_type space;
  lrmoe::combine(
      space, fixture::constant(rows.matrix(R, D)), fixture::constant(index.vector()),
      weighted ? fixture::constant(w.matrix(T, K)) : lrmoe::matrix_view<const real, device>{},
      based ? fixture::constant(base.matrix(T, D)) : lrmoe::matrix_view<const TestType, device>{},
      out.matrix(T, D));
  space.fence("lrmoe_test::combine");

  oracle::tensor expected(T, D);
  for (integer t = 0; t < T; ++t)
    for (integer d = 0; d < D; ++d) {
      oracle::sum_of_products sum(rules);
      if (based) sum.add(1.0, base_values[static_cast<std::size_t>(t * D + d)]);
      for (integer k = 0; k < K; ++k) {
        const auto p = static_cast<std::size_t>(t * K + k);
        if (row_of_pair[p] >= 0)
          sum.add(weighted ? weights[p] : 1.0,
                  values[static_cast<std::size_t>(row_of_pair[p] * D + d)]);
      }
      expected(t, d) = rules.store(sum.result());
    }
  check::check_close("out", out.values(), expected);
  CHECK(out.guards_intact());
}
