// The judgement of kept sets: the plain draw is the library's, what rounding explains passes, what it
// does not explain fails.
#include "compare/kept_sets.hpp"

#include <cmath>
#include <string>
#include <vector>

#include "catch.hpp"
#include "compare/injection.hpp"
#include "fixture.hpp"

using namespace bench::compare;
using fixture::device;

namespace {

drawn library_draw(const any_estimator& estimator, const rank_selection& rank,
                   const std::vector<float>& sizes, const lrmoe::draw_key& key) {
  const fixture::space_type space{};
  fixture::array<index_type> offsets(rank.offsets), kept_offsets(rank.kept_offsets);
  fixture::array<index_type> rows(rank.kept_offsets.back());
  fixture::array<float> factors(rank.kept_offsets.back()), inclusion(rank.offsets.back());
  const fixture::array<float> from(std::vector<double>(sizes.begin(), sizes.end()));
  estimator.select(space, lrmoe::segments<device>{offsets.vector(), kept_offsets.vector()},
                   fixture::constant(from.vector()), key,
                   lrmoe::selection<device>{rows.vector(), factors.vector(), inclusion.vector()});
  space.fence("kept_sets_test");
  return {rows.elements(), factors.elements(), inclusion.elements()};
}

/// One rank whose pairs are its rows, in segments of awkward counts, and the sizes of a reference.
struct selection_problem {
  compare_case of;
  layer_inputs<float> in;
  layer_results<float> results;
  layer_comparison reference;

  selection_problem(fixture::random& draw, estimator_kind rule, double error) {
    of.estimator = rule;
    of.keep = 0.4;
    in.seed = draw.bits();
    rank_selection rank;
    rank.offsets = rank.kept_offsets = {0};
    for (const int count : {0, 1, 7, 8, 0, 33, 128, 300})
      for (const int kept : {0, 1, (2 * count + 4) / 5, count}) {
        if (kept > count) continue;
        rank.offsets.push_back(rank.offsets.back() + count);
        rank.kept_offsets.push_back(rank.kept_offsets.back() + kept);
      }
    for (index_type row = 0; row < rank.offsets.back(); ++row) {
      rank.pair_of_row.push_back(row);
      const double size = std::pow(10.0, draw.uniform(-2.0, 2.0));
      reference.sizes.push_back({size, error * size});
      // What a candidate sees: anywhere within the bound.
      rank.sizes.push_back(
          static_cast<float>(size * (1.0 + 0.9 * error * draw.uniform(-1.0, 1.0))));
    }
    of.shape.E = static_cast<std::int64_t>(rank.offsets.size()) - 1;
    in.of = of;
    rank.kept = library_draw(estimator_for(of, in.seed), rank, rank.sizes, key_of(0));
    results.factors.assign(rank.pair_of_row.size(), 0.0F);
    for (std::size_t m = 0; m < rank.kept.rows.size(); ++m)
      results.factors[static_cast<std::size_t>(rank.kept.rows[m])] = rank.kept.factors[m];
    results.selections = {rank};
  }
  kept_sets<float> judged() const { return {in, results, reference}; }
};

}  // namespace

TEST_CASE("the plain draw is the library's bit by bit, with ties, zeros and infinities",
          "[compare]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (const auto rule :
       {estimator_kind::exact, estimator_kind::pps, estimator_kind::top, estimator_kind::uniform}) {
    selection_problem p(draw, rule, 1e-6);
    auto& rank = p.results.selections[0];
    if (rule == estimator_kind::exact) rank.kept_offsets = rank.offsets;
    std::vector<float> sizes = rank.sizes;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (i % 3 == 0) sizes[i] = 1.0F;
      if (i % 7 == 0) sizes[i] = 0.0F;
      if (i % 61 == 60) sizes[i] = INFINITY;
    }
    for (const auto& one : {rank.sizes, sizes, std::vector<float>(sizes.size(), 0.0F)}) {
      const auto plain =
          plain_selection(p.of, p.in.seed).select(rank.offsets, rank.kept_offsets, one, key_of(0));
      INFO("rule " << name_of(rule));
      CHECK(plain == library_draw(estimator_for(p.of, p.in.seed), rank, one, key_of(0)));
    }
  }
}

TEST_CASE("sets that differ because sizes are rounded are explained", "[compare]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  double different = 0;
  for (const auto rule : {estimator_kind::pps, estimator_kind::top}) {
    const selection_problem p(draw, rule, 0.05);
    const auto kept = p.judged();
    CHECK(kept.compare_sizes(tensor_comparison("sizes")).passed());
    CHECK(kept.redraw().passed);
    const finding found = kept.differences();
    INFO(found.text);
    CHECK(found.passed);
    different += found.value;
  }
  CHECK(different > 0);
}

TEST_CASE("a kept pair that gives its place to another is found", "[compare]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (const auto rule : {estimator_kind::pps, estimator_kind::top, estimator_kind::uniform}) {
    selection_problem p(draw, rule, 1e-9);
    CHECK(p.judged().redraw().passed);
    CHECK(p.judged().differences().passed);
    REQUIRE(inject("kept", p.of, p.results));
    CHECK_FALSE(p.judged().redraw().passed);
    CHECK_FALSE(p.judged().differences().passed);
  }
}

TEST_CASE("a factor off by one in the last place is found", "[compare]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  selection_problem p(draw, estimator_kind::pps, 1e-9);
  REQUIRE(inject("factor", p.of, p.results));
  CHECK_FALSE(p.judged().redraw().passed);
}

TEST_CASE("a size outside its bound is found", "[compare]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  selection_problem p(draw, estimator_kind::pps, 1e-6);
  CHECK(p.judged().compare_sizes(tensor_comparison("sizes")).passed());
  p.results.selections[0].sizes[5] *= 1.0F + 1e-5F;
  const auto sizes = p.judged().compare_sizes(tensor_comparison("sizes"));
  CHECK(sizes.wrong() == 1);
  CHECK(sizes.worst().row == 5);
}
