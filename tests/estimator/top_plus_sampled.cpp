// The largest sizes with a sample of the rest.
#include <limits>
#include <set>

#include <lrmoe/estimator/top.hpp>
#include <lrmoe/estimator/top_plus_sampled.hpp>
#include <lrmoe/estimator/uniform.hpp>

#include "catch.hpp"
#include "draws.hpp"

using namespace estimator_test;

namespace {

/// Number of certain rows, from the definition in exact tenths.
integer certain_rows(integer L, integer q, integer tenths) {
  if (q == 0 || q == L) return q;
  return std::min((tenths * q + 9) / 10, q - 1);
}

/// What must be drawn, by sorting: sizes first, then the random word of each row that is left.
drawn brute_force(const problem& in, std::uint64_t seed, integer tenths,
                  const lrmoe::draw_key& key) {
  drawn result;
  for (integer e = 0; e < in.E(); ++e) {
    const auto at = static_cast<std::size_t>(e);
    const integer L = in.offsets[at + 1] - in.offsets[at];
    const integer q = in.kept_offsets[at + 1] - in.kept_offsets[at];
    const integer t = certain_rows(L, q, tenths);
    std::vector<integer> members(static_cast<std::size_t>(L));
    std::iota(members.begin(), members.end(), in.offsets[at]);
    const auto certain = oracle::top(members, in.sizes, t);
    std::vector<integer> rest;
    std::vector<double> words(in.sizes.size());
    for (const integer r : members) {
      if (std::binary_search(certain.begin(), certain.end(), r)) continue;
      rest.push_back(r);
      words[static_cast<std::size_t>(r)] = key.words(seed, static_cast<std::uint32_t>(r)).word[0];
    }
    const auto sampled = oracle::top(rest, words, q - t);
    const float weight = static_cast<float>(L - t) / static_cast<float>(q - t);
    const float probability = static_cast<float>(q - t) / static_cast<float>(L - t);
    for (const integer r : members) {
      const bool is_certain = std::binary_search(certain.begin(), certain.end(), r);
      result.inclusion.push_back(is_certain ? 1.0 : static_cast<double>(probability));
      if (!is_certain && !std::binary_search(sampled.begin(), sampled.end(), r)) continue;
      result.rows.push_back(static_cast<std::int32_t>(r));
      result.weights.push_back(is_certain ? 1.0 : static_cast<double>(weight));
    }
  }
  return result;
}

void check_against_brute_force(const problem& in, std::uint64_t seed) {
  drawer draw(in);
  for (const integer tenths : {0, 1, 5, 7, 9})
    for (std::uint64_t step = 0; step < 5; ++step) {
      const lrmoe::draw_key key{step, 1, 0};
      const lrmoe::top_plus_sampled estimator{seed, static_cast<double>(tenths) / 10.0};
      const drawn got = draw(estimator, key);
      const drawn expected = brute_force(in, seed, tenths, key);
      INFO("share " << estimator.share << ", step " << step);
      REQUIRE(broken_law(in, got).empty());
      REQUIRE(draw.nothing_else_written());
      REQUIRE(got.rows == expected.rows);
      REQUIRE(got.weights == expected.weights);
      REQUIRE(got.inclusion == expected.inclusion);
    }
}

}  // namespace

TEST_CASE("top_plus_sampled keeps what sorting sizes and random words keeps", "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  check_against_brute_force(edge_cases(random, 6.0), seed);
  // Ties: all sizes equal, zeros, and a few different sizes.
  problem ties;
  ties.add(std::vector<double>(9, 0.0), 4);
  ties.add(std::vector<double>(300, 2.5), 128);
  for (int round = 0; round < 40; ++round) {
    std::vector<double> sizes;
    for (integer i = random.integer(1, 200); i > 0; --i)
      sizes.push_back(static_cast<double>(random.integer(0, 4)));
    ties.add(sizes, random.integer(0, static_cast<integer>(sizes.size())));
  }
  check_against_brute_force(ties, seed);
}

TEST_CASE("top_plus_sampled leaves at least one place to chance unless all rows are kept",
          "[estimator]") {
  const lrmoe::top_plus_sampled nearly_top{0, 0.999};
  CHECK(nearly_top.certain(10, 1) == 0);
  CHECK(nearly_top.certain(10, 9) == 8);
  CHECK(nearly_top.certain(10, 10) == 10);
  CHECK(nearly_top.certain(10, 0) == 0);
  CHECK(nearly_top.certain(100000, 10000) == 9990);
  const lrmoe::top_plus_sampled half{};
  CHECK(half.certain(10, 1) == 0);
  CHECK(half.certain(10, 2) == 1);
  CHECK(half.certain(10, 5) == 3);
  // A product that rounds to just above an integer is that integer.
  CHECK(lrmoe::top_plus_sampled{0, 0.07}.certain(1000, 100) == 7);
}

TEST_CASE("without certain rows top_plus_sampled is uniform sampling", "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  const problem in = edge_cases(random, 2.0);
  drawer draw(in);
  const drawn got = draw(lrmoe::top_plus_sampled{seed, 0.0}, {4, 2, 0});
  const drawn expected = draw(lrmoe::uniform{seed, true}, {4, 2, 0});
  CHECK(got.rows == expected.rows);
  CHECK(got.weights == expected.weights);
  CHECK(got.inclusion == expected.inclusion);
}

TEST_CASE("over 10,000 draws top_plus_sampled keeps every row as often as it says", "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  problem in;
  in.add(spread(random, 40, 1.5), 10);
  in.add(spread(random, 9, 0.0), 4);  // ties
  in.add(spread(random, 8, 2.0), 8);
  in.add(spread(random, 2, 0.5), 1);
  in.add(spread(random, 129, 2.0), 1);
  in.add(spread(random, 6, 1.0), 0);
  const lrmoe::top_plus_sampled estimator{seed};
  const auto kept = frequencies(in, estimator);
  drawer draw(in);
  const auto inclusion = draw(estimator, {}).inclusion;
  CHECK(plausible(kept, inclusion));
  CHECK_FALSE(plausible(frequencies(in, lrmoe::top{}), inclusion));
  CHECK_FALSE(plausible(frequencies(in, lrmoe::uniform{seed, true}), inclusion));
}

TEST_CASE("the open rows of top_plus_sampled are a simple random sample", "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  problem in;
  in.add({1, 2, 9, 1, 3, 8, 2, 1}, 4);  // rows 2 and 5 are certain, 2 of the other 6 are sampled
  const auto together = pair_frequencies(in, lrmoe::top_plus_sampled{seed});
  CHECK(together[8 * 2 + 5] == draws);
  const std::vector<std::size_t> open{0, 1, 3, 4, 6, 7};
  for (std::size_t a = 0; a < open.size(); ++a)
    for (std::size_t b = a + 1; b < open.size(); ++b) {
      const integer count = together[8 * open[a] + open[b]];
      INFO("rows " << open[a] << " and " << open[b] << ": " << count);
      CHECK(std::abs(static_cast<double>(count) - draws / 15.0) <=
            count_bound(draws, 1.0 / 15.0, chance / 15));
    }
}

TEST_CASE("sizes that are NaN or infinite are certain first under top_plus_sampled",
          "[estimator]") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  problem in;
  in.add({3, std::nan(""), 5, infinity, 3e38, 1, 1, 1}, 4);
  in.add(std::vector<double>(6, std::nan("")), 4);
  drawer draw(in);
  std::set<std::int32_t> sampled;
  for (std::uint64_t step = 0; step < 200; ++step) {
    const drawn got = draw(lrmoe::top_plus_sampled{}, {step, 0, 0});
    REQUIRE(broken_law(in, got).empty());
    REQUIRE(got.inclusion[1] == 1.0);
    REQUIRE(got.inclusion[3] == 1.0);
    REQUIRE(got.inclusion[4] == Approx(2.0 / 6.0));
    REQUIRE(got.inclusion[8] == 1.0);
    REQUIRE(got.inclusion[9] == 1.0);
    REQUIRE(got.inclusion[10] == 0.5);
    sampled.insert(got.rows.begin(), got.rows.end());
  }
  CHECK(sampled.size() == 14);  // every row is reachable
}

TEST_CASE("top_plus_sampled refuses a share outside [0, 1)", "[estimator]") {
  for (const double share : {-0.01, 1.0, 1.5, std::nan("")}) {
    const lrmoe::top_plus_sampled wrong{0, share};
    CHECK(fixture::names(fixture::refusal([&] { wrong.validate(); }),
                         {"top_plus_sampled: share = ", "[0, 1)", "leave places"}));
  }
  for (const double share : {0.0, 0.5, 0.999})
    CHECK_NOTHROW((lrmoe::top_plus_sampled{0, share}.validate()));
}
