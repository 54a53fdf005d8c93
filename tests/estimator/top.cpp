// The published rule, and the rules that keep all.
#include <limits>

#include <lrmoe/estimator/any_estimator.hpp>
#include <lrmoe/estimator/exact.hpp>
#include <lrmoe/estimator/pps.hpp>
#include <lrmoe/estimator/top.hpp>
#include <lrmoe/estimator/top_plus_sampled.hpp>
#include <lrmoe/estimator/uniform.hpp>

#include "catch.hpp"
#include "draws.hpp"

using namespace estimator_test;

namespace {

std::vector<std::int32_t> brute_force(const problem& in) {
  std::vector<std::int32_t> rows;
  for (integer e = 0; e < in.E(); ++e) {
    const auto at = static_cast<std::size_t>(e);
    std::vector<integer> members(static_cast<std::size_t>(in.offsets[at + 1] - in.offsets[at]));
    std::iota(members.begin(), members.end(), in.offsets[at]);
    for (const integer r :
         oracle::top(members, in.sizes, in.kept_offsets[at + 1] - in.kept_offsets[at]))
      rows.push_back(static_cast<std::int32_t>(r));
  }
  return rows;
}

void check_top(const problem& in) {
  drawer draw(in);
  const drawn got = draw(lrmoe::top{}, {});
  CHECK(broken_law(in, got).empty());
  CHECK(draw.nothing_else_written());
  const auto expected = brute_force(in);
  CHECK(got.rows == expected);
  std::vector<double> inclusion(in.sizes.size(), 0.0);
  for (const auto r : expected) inclusion[static_cast<std::size_t>(r)] = 1.0;
  CHECK(got.inclusion == inclusion);
  CHECK(got.weights == std::vector<double>(expected.size(), 1.0));
}

}  // namespace

TEST_CASE("top keeps what a brute-force sort keeps", "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  check_top(edge_cases(draw, 6.0));
  // Sizes that differ in the last bit only.
  problem close;
  std::vector<double> sizes;
  float size = 1.0f;
  for (int i = 0; i < 300; ++i) sizes.push_back(size = std::nextafter(size, 2.0f));
  std::reverse(sizes.begin() + 100, sizes.end());
  for (const integer q : {1, 2, 150, 299, 300}) close.add(sizes, q);
  check_top(close);
}

TEST_CASE("top keeps the lowest rows among equal sizes", "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  problem in;
  in.add(std::vector<double>(9, 0.0), 4);
  in.add(std::vector<double>(300, 2.5), 128);
  for (int round = 0; round < 20; ++round) {
    std::vector<double> sizes;
    for (integer i = draw.integer(1, 200); i > 0; --i)
      sizes.push_back(static_cast<double>(draw.integer(0, 4)));
    in.add(sizes, draw.integer(0, static_cast<integer>(sizes.size())));
  }
  check_top(in);
}

TEST_CASE("top keeps NaN and infinite sizes before all finite ones", "[estimator]") {
  problem in;
  in.add({3, std::nan(""), 5, std::numeric_limits<double>::infinity(), 3e38}, 2);
  drawer draw(in);
  CHECK(draw(lrmoe::top{}, {}).rows == std::vector<std::int32_t>{1, 3});
}

TEST_CASE("exact keeps every row with weight one", "[estimator]") {
  problem in;
  in.add({1, 2, 3}, 3);
  in.add({}, 0);
  in.add({0, 0}, 2);
  drawer draw(in);
  const drawn got = draw(lrmoe::exact{}, {});
  CHECK(got.rows == std::vector<std::int32_t>{0, 1, 2, 3, 4});
  CHECK(got.weights == std::vector<double>(5, 1.0));
  CHECK(got.inclusion == std::vector<double>(5, 1.0));
  CHECK(draw.nothing_else_written());
}

TEST_CASE("no segment, and no row in any segment, select nothing", "[estimator]") {
  problem none, empty;
  for (int e = 0; e < 4; ++e) empty.add({}, 0);
  for (const problem& in : {none, empty}) {
    drawer draw(in);
    CHECK(draw(lrmoe::top{}, {}).rows.empty());
    CHECK(draw(lrmoe::top_plus_sampled{}, {}).rows.empty());
    CHECK(draw(lrmoe::pps{}, {}).rows.empty());
    CHECK(draw(lrmoe::pps{0, 0.5, lrmoe::pps_order::shuffled, true}, {}).rows.empty());
    CHECK(draw(lrmoe::uniform{}, {}).rows.empty());
    CHECK(draw(lrmoe::exact{}, {}).rows.empty());
    CHECK(draw.nothing_else_written());
  }
}

TEST_CASE("the run-time estimator does what the chosen one does", "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  const problem in = edge_cases(random, 2.0);
  drawer draw(in);
  const lrmoe::draw_key key{5, 2, 0};
  using any = lrmoe::any_estimator<lrmoe::pps, lrmoe::top, lrmoe::top_plus_sampled, lrmoe::uniform,
                                   lrmoe::exact>;
  const auto same = [&](const auto& chosen) {
    const any wrapped(chosen);
    CHECK(wrapped.keeps_all() == chosen.keeps_all());
    CHECK(wrapped.unbiased() == chosen.unbiased());
    if (chosen.keeps_all()) return;
    const drawn a = draw(chosen, key), b = draw(wrapped, key);
    CHECK(a.rows == b.rows);
    CHECK(a.weights == b.weights);
    CHECK(a.inclusion == b.inclusion);
  };
  same(lrmoe::pps{seed});
  same(lrmoe::pps{seed, 0.25, lrmoe::pps_order::shuffled, true});
  same(lrmoe::top{});
  same(lrmoe::top_plus_sampled{seed, 0.25});
  same(lrmoe::uniform{seed, true});
  same(lrmoe::uniform{seed, false});
  same(lrmoe::exact{});
  CHECK(lrmoe::pps{}.unbiased());
  CHECK_FALSE(lrmoe::top{}.unbiased());
  CHECK(lrmoe::uniform{0, true}.unbiased());
  CHECK_FALSE(lrmoe::uniform{0, false}.unbiased());
}
