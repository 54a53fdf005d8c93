// Sampling proportional to size and uniform sampling: what is drawn, and how often.
#include <lrmoe/estimator/pps.hpp>
#include <lrmoe/estimator/top.hpp>
#include <lrmoe/estimator/top_plus_sampled.hpp>
#include <lrmoe/estimator/uniform.hpp>

#include "catch.hpp"
#include "draws.hpp"

using namespace estimator_test;

TEST_CASE("pps keeps exactly the quota of every segment, in ascending rows", "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  for (const double decades : {0.0, 1.0, 8.0, 60.0}) {
    const problem in = edge_cases(random, decades);
    drawer draw(in);
    for (std::uint64_t step = 0; step < 50; ++step) {
      const drawn got = draw(lrmoe::pps{seed}, {step, 0, 0});
      REQUIRE(broken_law(in, got).empty());
      for (std::size_t m = 0; m < got.rows.size(); ++m) {
        const double pi = got.inclusion[static_cast<std::size_t>(got.rows[m])];
        REQUIRE(pi > 0.0);
        REQUIRE(std::abs(got.weights[m] * pi - 1.0) <= std::ldexp(1.0, -23));
      }
    }
    CHECK(draw.nothing_else_written());
  }
}

TEST_CASE("pps includes rows with probability min(1, size / tau), tau solved in double",
          "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  // Within two decades no size reaches the floor of 1/1024 of the mean.
  const problem in = edge_cases(random, 2.0);
  drawer draw(in);
  const drawn got = draw(lrmoe::pps{seed}, {});
  const auto expected = probabilities(in);
  for (std::size_t r = 0; r < expected.size(); ++r) {
    INFO("row " << r);
    // Sizes are rounded to 2^-31 of the largest, at most 100 times the row's own; the running sum
    // of probabilities to 2^-32; the result to float.
    REQUIRE(std::abs(got.inclusion[r] - expected[r]) <=
            expected[r] * (200 * std::ldexp(1.0, -31) + std::ldexp(1.0, -24)) +
                std::ldexp(1.0, -31));
  }
  for (integer e = 0; e < in.E(); ++e) {
    const auto at = static_cast<std::size_t>(e);
    const double sum = std::accumulate(got.inclusion.begin() + in.offsets[at],
                                       got.inclusion.begin() + in.offsets[at + 1], 0.0);
    CHECK(sum ==
          Approx(static_cast<double>(in.kept_offsets[at + 1] - in.kept_offsets[at])).epsilon(1e-6));
  }
}

TEST_CASE("over 10,000 draws pps keeps every row as often as its probability says", "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  problem in;
  in.add(spread(random, 40, 1.5), 10);
  in.add(spread(random, 17, 4.0), 5);  // certain rows
  in.add(spread(random, 9, 0.0), 4);   // equal sizes
  in.add(spread(random, 8, 2.0), 8);
  in.add(spread(random, 2, 0.5), 1);
  in.add(spread(random, 129, 2.0), 1);
  in.add(spread(random, 6, 1.0), 0);
  const auto kept = frequencies(in, lrmoe::pps{seed});
  drawer draw(in);
  const auto inclusion = draw(lrmoe::pps{seed}, {}).inclusion;
  CHECK(plausible(kept, inclusion));

  // The test would notice a wrong rule: another exponent, and the largest sizes.
  problem squared = in;
  for (double& size : squared.sizes) size *= size;
  CHECK_FALSE(plausible(kept, probabilities(squared)));
  CHECK_FALSE(plausible(frequencies(in, lrmoe::top{}), inclusion));
}

TEST_CASE("rows of size zero stay reachable under pps, with bounded weights", "[estimator]") {
  problem in;
  std::vector<double> sizes(64, 0.0);
  for (std::size_t i = 0; i < 64; i += 4) sizes[i] = 1.0;
  in.add(sizes, 12);
  in.add(std::vector<double>(10, 0.0), 5);  // nothing to go by: all equally likely
  drawer draw(in);
  const drawn got = draw(lrmoe::pps{}, {});
  for (std::size_t r = 0; r < 64; ++r) {
    CHECK(got.inclusion[r] > 12.0 / 64.0 / 1100.0);
    if (sizes[r] == 0.0)
      CHECK(got.inclusion[r] < 12.0 / 64.0 / 900.0);
    else
      CHECK(got.inclusion[r] > 0.7);
  }
  for (std::size_t r = 64; r < 74; ++r) CHECK(got.inclusion[r] == Approx(0.5));
}

TEST_CASE("more quota than rows of positive size fills up with others", "[estimator]") {
  problem in;
  in.add({0, 5, 0, 0, 7, 0, 0, 0}, 4);
  drawer draw(in);
  for (std::uint64_t step = 0; step < 100; ++step) {
    const drawn got = draw(lrmoe::pps{}, {step, 0, 0});
    REQUIRE(broken_law(in, got).empty());
    CHECK(got.inclusion[1] == 1.0);
    CHECK(got.inclusion[4] == 1.0);
    CHECK(got.inclusion[0] == Approx(2.0 / 6.0));
  }
}

TEST_CASE("a size that is NaN or infinite counts as the largest under pps", "[estimator]") {
  problem in;
  in.add({1, std::nan(""), 1, 1, 1, 1, 1, 1}, 4);
  in.add({1, 1, std::numeric_limits<double>::infinity(), 8}, 2);
  in.add(std::vector<double>(6, std::nan("")), 3);
  drawer draw(in);
  const drawn got = draw(lrmoe::pps{}, {});
  CHECK(broken_law(in, got).empty());
  CHECK(got.inclusion[1] == Approx(got.inclusion[0]));
  CHECK(got.inclusion[10] == Approx(8.0 / 9.0));
  CHECK(got.inclusion[11] == Approx(8.0 / 9.0));
  for (std::size_t r = 12; r < 18; ++r) CHECK(got.inclusion[r] == Approx(0.5));
}

TEST_CASE("tiny and huge sizes give the probabilities of moderate ones", "[estimator]") {
  problem moderate, tiny, huge;
  const std::vector<double> sizes{1, 2, 3, 4, 5, 6};
  moderate.add(sizes, 3);
  std::vector<double> small, large;
  for (const double s : sizes) {
    small.push_back(std::ldexp(s, -140));  // subnormal
    large.push_back(std::ldexp(s, 124));
  }
  tiny.add(small, 3);
  huge.add(large, 3);
  const auto inclusion = drawer(moderate)(lrmoe::pps{}, {}).inclusion;
  CHECK(drawer(tiny)(lrmoe::pps{}, {}).inclusion == inclusion);
  CHECK(drawer(huge)(lrmoe::pps{}, {}).inclusion == inclusion);
}

TEST_CASE("uniform sampling keeps every row with probability quota / count", "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  problem in;
  in.add(spread(random, 40, 2.0), 10);
  in.add(spread(random, 7, 2.0), 7);
  in.add(spread(random, 3, 2.0), 1);
  in.add(spread(random, 5, 2.0), 0);
  std::vector<double> expected(40, 0.25);
  expected.insert(expected.end(), 7, 1.0);
  expected.insert(expected.end(), 3, 1.0 / 3.0);
  expected.insert(expected.end(), 5, 0.0);
  CHECK(plausible(frequencies(in, lrmoe::uniform{seed, true}), expected));
  drawer draw(in);
  const drawn scaled = draw(lrmoe::uniform{seed, true}, {});
  for (std::size_t m = 0; m < scaled.rows.size(); ++m) {
    const auto r = static_cast<std::size_t>(scaled.rows[m]);
    CHECK(scaled.weights[m] == Approx(1.0 / expected[r]));
  }
  for (std::size_t r = 0; r < expected.size(); ++r)
    CHECK(scaled.inclusion[r] == Approx(expected[r]));
  const drawn unscaled = draw(lrmoe::uniform{seed, false}, {});
  CHECK(unscaled.rows == scaled.rows);
  CHECK(unscaled.weights == std::vector<double>(18, 1.0));
}

TEST_CASE("uniform sampling draws pairs of rows as often as simple random sampling does",
          "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  problem in;
  in.add(std::vector<double>(6, 1.0), 2);
  const auto together = pair_frequencies(in, lrmoe::uniform{seed, true});
  for (std::size_t a = 0; a < 6; ++a)
    for (std::size_t b = a + 1; b < 6; ++b) {
      INFO("rows " << a << " and " << b << ": " << together[6 * a + b]);
      CHECK(std::abs(static_cast<double>(together[6 * a + b]) - draws / 15.0) <=
            count_bound(draws, 1.0 / 15.0, chance / 15));
    }
}

TEST_CASE("draws repeat with their key and change with seed, step, layer, source and expert",
          "[estimator]") {
  problem in;
  in.add(std::vector<double>(60, 1.0), 30);
  in.add(std::vector<double>(60, 1.0), 30);
  fixture::random random(7);
  problem unequal;
  unequal.add(spread(random, 400, 1.0), 100);
  drawer equal(in), draw(unequal);
  const auto check = [&](auto estimator) {
    const lrmoe::draw_key key{11, 5, 2};
    const drawn first = draw(estimator, key);
    CHECK(draw(estimator, key).rows == first.rows);
    auto other = estimator;
    other.seed ^= 1;
    CHECK(draw(other, key).rows != first.rows);
    CHECK(draw(estimator, {12, 5, 2}).rows != first.rows);
    CHECK(draw(estimator, {std::uint64_t{11} + (std::uint64_t{1} << 40), 5, 2}).rows != first.rows);
    CHECK(draw(estimator, {11, 6, 2}).rows != first.rows);
    CHECK(draw(estimator, {11, 5, 3}).rows != first.rows);
    // Equal segments draw apart in most steps: under pps the two starts agree in one of two.
    int apart = 0;
    for (std::uint64_t step = 0; step < 200; ++step) {
      const drawn got = equal(estimator, {step, 0, 0});
      for (std::size_t m = 0; m < 30; ++m)
        if (got.rows[m] + 60 != got.rows[m + 30]) {
          ++apart;
          break;
        }
    }
    CHECK(apart > 50);
  };
  check(lrmoe::pps{42});
  check(lrmoe::pps{42, 0.25, lrmoe::pps_order::shuffled});
  check(lrmoe::uniform{42, true});
  check(lrmoe::top_plus_sampled{42});
}

TEST_CASE("selections are the same bit by bit for one and for two threads", "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  const problem in = edge_cases(random, 3.0);
  drawer draw(in);
  const auto one = fixture::space_of_threads(1), two = fixture::space_of_threads(2);
  const auto check = [&](const auto& estimator) {
    const drawn a = draw(estimator, {1, 2, 0}, one), b = draw(estimator, {1, 2, 0}, two);
    CHECK(a.rows == b.rows);
    CHECK(a.weights == b.weights);
    CHECK(a.inclusion == b.inclusion);
  };
  check(lrmoe::pps{seed});
  check(lrmoe::pps{seed, 0.25, lrmoe::pps_order::rows, true});
  check(lrmoe::pps{seed, 0.0, lrmoe::pps_order::shuffled});
  check(lrmoe::top{});
  check(lrmoe::uniform{seed, true});
  check(lrmoe::top_plus_sampled{seed});
}
