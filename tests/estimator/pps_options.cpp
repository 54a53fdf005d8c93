// What the options of pps change: probabilities, order of the visits, common starts.
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
using lrmoe::pps;
using lrmoe::pps_order;

namespace {

/// The default and every combination of options.
std::vector<pps> combinations(std::uint64_t seed) {
  std::vector<pps> result;
  for (const double share : {0.0, 0.25, 0.5})
    for (const pps_order order : {pps_order::rows, pps_order::shuffled})
      for (const bool joint : {false, true}) result.push_back({seed, share, order, joint});
  return result;
}

std::string name_of(const pps& estimator) {
  return "uniform_share " + std::to_string(estimator.uniform_share) +
         (estimator.order == pps_order::rows ? ", rows" : ", shuffled") +
         (estimator.joint ? ", joint" : "");
}

/// (1 - lambda) a + lambda mean(a) for every segment.
problem mixed(const problem& in, double lambda) {
  problem result = in;
  for (std::size_t e = 0; e + 1 < in.offsets.size(); ++e) {
    const auto begin = in.sizes.begin() + in.offsets[e], end = in.sizes.begin() + in.offsets[e + 1];
    const double mean = std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin);
    for (std::int32_t r = in.offsets[e]; r < in.offsets[e + 1]; ++r)
      result.sizes[static_cast<std::size_t>(r)] =
          (1.0 - lambda) * in.sizes[static_cast<std::size_t>(r)] + lambda * mean;
  }
  return result;
}

__extension__ using wide = unsigned __int128;

/// The draw that the documentation describes, in plain loops over integers.
drawn by_definition(const problem& in, const pps& estimator, const lrmoe::draw_key& key) {
  drawn result;
  for (std::size_t e = 0; e + 1 < in.offsets.size(); ++e) {
    const auto begin = static_cast<std::size_t>(in.offsets[e]);
    const auto L = static_cast<std::size_t>(in.offsets[e + 1]) - begin;
    const auto q = static_cast<std::uint64_t>(in.kept_offsets[e + 1] - in.kept_offsets[e]);
    result.inclusion.resize(begin + L, 0.0);
    if (q == 0) continue;
    // Multiples of 2^-31 of the largest size, the mixture, the floor.
    const double largest = *std::max_element(in.sizes.begin() + static_cast<long>(begin),
                                             in.sizes.begin() + static_cast<long>(begin + L));
    std::vector<std::uint64_t> own(L), sizes(L);
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < L; ++i)
      sum += own[i] =
          static_cast<std::uint64_t>(in.sizes[begin + i] * (std::ldexp(1.0, 31) / largest));
    const auto lambda = static_cast<wide>(std::ldexp(estimator.uniform_share, 32));
    for (std::size_t i = 0; i < L; ++i) {
      const wide mixture = ((static_cast<wide>(1) << 32) - lambda) * own[i] + lambda * (sum / L);
      sizes[i] =
          std::max({static_cast<std::uint64_t>(mixture >> 32), sum / (1024 * L), std::uint64_t{1}});
    }
    // The largest sizes become certain one after the other.
    std::vector<bool> certain(L, q == L);
    std::uint64_t open_quota = q == L ? 0 : q, open_total = 0;
    if (q < L) open_total = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
    for (bool changed = q < L; changed;) {
      changed = false;
      for (std::size_t i = 0; i < L; ++i)
        if (!certain[i] && static_cast<wide>(sizes[i]) * open_quota >= open_total) {
          certain[i] = changed = true;
          --open_quota;
          open_total -= sizes[i];
          break;
        }
    }
    // Visit the rows; C, the running sum of probabilities, in multiples of 2^-32.
    const auto random =
        key.words(estimator.seed, estimator.joint ? 0 : static_cast<std::uint32_t>(e));
    const lrmoe::detail::permutation shuffle(static_cast<lrmoe::index_type>(L), random);
    std::vector<bool> kept(L, false);
    std::uint64_t certain_so_far = 0, open_so_far = 0;
    const auto C = [&] {
      const wide open =
          open_total == 0 ? 0 : (static_cast<wide>(open_so_far) * open_quota << 32) / open_total;
      return (certain_so_far << 32) + static_cast<std::uint64_t>(open);
    };
    for (std::size_t visit = 0; visit < L; ++visit) {
      const std::size_t i =
          estimator.order == pps_order::rows
              ? visit
              : static_cast<std::size_t>(shuffle(static_cast<lrmoe::index_type>(visit)));
      const std::uint64_t before = C();
      if (certain[i])
        ++certain_so_far;
      else
        open_so_far += sizes[i];
      result.inclusion[begin + i] =
          static_cast<float>(C() - before) * static_cast<float>(std::ldexp(1.0, -32));
      kept[i] = (before + random.word[0]) >> 32 != (C() + random.word[0]) >> 32;
    }
    for (std::size_t i = 0; i < L; ++i)
      if (kept[i]) {
        result.rows.push_back(static_cast<std::int32_t>(begin + i));
        result.weights.push_back(1.0F / static_cast<float>(result.inclusion[begin + i]));
      }
  }
  return result;
}

}  // namespace

TEST_CASE("pps draws bit by bit what its definition in plain loops draws", "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  for (const double decades : {0.0, 1.0, 3.0, 8.0, 60.0}) {
    const problem in = edge_cases(random, decades);
    drawer draw(in);
    for (const pps& estimator : combinations(seed))
      for (std::uint64_t step = 0; step < 5; ++step) {
        INFO(name_of(estimator) << ", decades " << decades << ", step " << step);
        const drawn got = draw(estimator, {step, 2, 0});
        const drawn expected = by_definition(in, estimator, {step, 2, 0});
        REQUIRE(broken_law(in, got).empty());
        REQUIRE(got.rows.size() == static_cast<std::size_t>(in.kept()));
        REQUIRE(got.rows == expected.rows);
        REQUIRE(got.weights == expected.weights);
        REQUIRE(got.inclusion == expected.inclusion);
      }
    CHECK(draw.nothing_else_written());
  }
}

TEST_CASE("with a uniform share, pps includes in proportion to the mixture of size and mean",
          "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  const problem in = edge_cases(random, 2.0);
  drawer draw(in);
  for (const pps& estimator : combinations(seed)) {
    INFO(name_of(estimator));
    const drawn got = draw(estimator, {});
    const auto expected = probabilities(mixed(in, estimator.uniform_share));
    for (std::size_t r = 0; r < expected.size(); ++r) {
      INFO("row " << r);
      // As for pps without options; the mixture and the mean are rounded down once more.
      REQUIRE(std::abs(got.inclusion[r] - expected[r]) <=
              expected[r] * (400 * std::ldexp(1.0, -31) + std::ldexp(1.0, -24)) +
                  std::ldexp(1.0, -31));
    }
  }
}

TEST_CASE("a uniform share bounds every factor by count / (share quota)", "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  problem in = edge_cases(random, 60.0);
  std::vector<double> mostly_zero(64, 0.0);
  mostly_zero[10] = mostly_zero[30] = 1.0;
  in.add(mostly_zero, 7);
  drawer draw(in);
  const auto least_times_bound = [&](const pps& estimator, double share) {
    const drawn got = draw(estimator, {});
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t e = 0; e + 1 < in.offsets.size(); ++e) {
      const double L = in.offsets[e + 1] - in.offsets[e];
      const double q = in.kept_offsets[e + 1] - in.kept_offsets[e];
      if (q == 0) continue;
      for (std::int32_t r = in.offsets[e]; r < in.offsets[e + 1]; ++r)
        least = std::min(least, got.inclusion[static_cast<std::size_t>(r)] * L / (share * q));
    }
    return least;
  };
  for (const double share : {0.01, 0.25, 0.5})
    for (const pps_order order : {pps_order::rows, pps_order::shuffled}) {
      // One, less the rounding of sizes, the smallest of which are share 2^31 / 1000.
      CHECK(least_times_bound({seed, share, order}, share) >= 1.0 - 1e-4);
      CHECK(least_times_bound({seed, 0.0, order}, share) < 0.5);
    }
}

TEST_CASE("over 10,000 draws pps with any options keeps every row as often as it says",
          "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  problem in;
  in.add(spread(random, 40, 1.5), 10);
  in.add(spread(random, 17, 4.0), 5);  // certain rows
  in.add(spread(random, 9, 0.0), 4);   // equal sizes
  in.add(spread(random, 2, 0.5), 1);
  in.add(spread(random, 6, 1.0), 0);
  drawer draw(in);
  const auto without_share = draw(pps{seed}, {}).inclusion;
  for (const pps& estimator : combinations(seed)) {
    INFO(name_of(estimator));
    const auto kept = frequencies(in, estimator);
    CHECK(plausible(kept, draw(estimator, {}).inclusion));
    // The test sees the difference that a share makes.
    CHECK(plausible(kept, without_share) == (estimator.uniform_share == 0.0));
  }
}

TEST_CASE("of equal sizes, shuffled pps draws a simple random sample, and rows keeps no neighbours",
          "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  problem in;
  in.add(std::vector<double>(6, 1.0), 2);
  const auto shuffled = pair_frequencies(in, pps{seed, 0.0, pps_order::shuffled});
  const auto in_rows = pair_frequencies(in, pps{seed});
  for (std::size_t a = 0; a < 6; ++a)
    for (std::size_t b = a + 1; b < 6; ++b) {
      INFO("rows " << a << " and " << b << ": " << shuffled[6 * a + b]);
      CHECK(std::abs(static_cast<double>(shuffled[6 * a + b]) - draws / 15.0) <=
            count_bound(draws, 1.0 / 15.0, chance / 15));
      // A step of q / L = 1/3 keeps rows that are three apart, always.
      const double p = b == a + 3 ? 1.0 / 3.0 : 0.0;
      CHECK(std::abs(static_cast<double>(in_rows[6 * a + b]) - draws * p) <=
            count_bound(draws, p, chance / 15));
    }
}

TEST_CASE("kept sizes times their factors sum to the total size of the rows that are not certain",
          "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  problem in;
  in.add(spread(random, 300, 2.0), 100);
  in.add(spread(random, 17, 2.0), 9);
  in.add(spread(random, 1000, 1.0), 1);
  drawer draw(in);
  for (const pps& estimator : combinations(seed)) {
    INFO(name_of(estimator));
    const problem sized = mixed(in, estimator.uniform_share);
    for (std::uint64_t step = 0; step < 100; ++step) {
      const drawn got = draw(estimator, {step, 0, 0});
      for (std::size_t e = 0; e + 1 < in.offsets.size(); ++e) {
        double total = 0.0, kept = 0.0;
        for (std::int32_t r = in.offsets[e]; r < in.offsets[e + 1]; ++r)
          if (got.inclusion[static_cast<std::size_t>(r)] < 1.0)
            total += sized.sizes[static_cast<std::size_t>(r)];
        for (std::int32_t m = in.kept_offsets[e]; m < in.kept_offsets[e + 1]; ++m) {
          const auto r = static_cast<std::size_t>(got.rows[static_cast<std::size_t>(m)]);
          if (got.inclusion[r] < 1.0)
            kept += got.weights[static_cast<std::size_t>(m)] * sized.sizes[r];
        }
        REQUIRE(kept == Approx(total).epsilon(2e-6));
      }
    }
  }
  // A draw of fixed size from other probabilities has no such property.
  const drawn other = draw(lrmoe::uniform{seed, true}, {});
  const double total = std::accumulate(in.sizes.begin(), in.sizes.begin() + 300, 0.0);
  double kept = 0.0;
  for (std::size_t m = 0; m < 100; ++m)
    kept += other.weights[m] * in.sizes[static_cast<std::size_t>(other.rows[m])];
  CHECK(kept != Approx(total).epsilon(2e-6));
}

TEST_CASE("joint draws of experts that see the same tokens keep all pairs of a token or none",
          "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  const auto sizes = spread(random, 60, 1.0);
  problem in;
  for (int e = 0; e < 3; ++e) in.add(sizes, 20);
  drawer draw(in);
  for (const pps_order order : {pps_order::rows, pps_order::shuffled}) {
    integer together = 0, apart = 0;
    for (std::uint64_t step = 0; step < 100; ++step) {
      const auto same = [&](bool joint) {
        const drawn got = draw(pps{seed, 0.0, order, joint}, {step, 0, 0});
        for (std::size_t m = 0; m < 20; ++m)
          if (got.rows[m] + 60 != got.rows[m + 20] || got.rows[m] + 120 != got.rows[m + 40])
            return false;
        return true;
      };
      together += same(true) ? 1 : 0;
      apart += same(false) ? 0 : 1;
    }
    CHECK(together == 100);
    CHECK(apart > 90);
  }
}

TEST_CASE("a size that is NaN or infinite counts as the largest under every option of pps",
          "[estimator]") {
  problem in;
  in.add({1, std::nan(""), 1, 1, 1, 1, 1, 1}, 4);
  in.add({1, 1, std::numeric_limits<double>::infinity(), 8}, 2);
  in.add(std::vector<double>(6, std::nan("")), 3);
  drawer draw(in);
  for (const pps& estimator : combinations(1)) {
    INFO(name_of(estimator));
    const double lambda = estimator.uniform_share;
    const double large = (1.0 - lambda) * 8.0 + lambda * 4.5;
    const double share = 2.0 * large / 18.0;  // of each of the two large rows in the quota of 2
    const drawn got = draw(estimator, {});
    CHECK(broken_law(in, got).empty());
    for (std::size_t r = 0; r < 8; ++r) CHECK(got.inclusion[r] == Approx(0.5));
    CHECK(got.inclusion[10] == Approx(share));
    CHECK(got.inclusion[11] == Approx(share));
    for (std::size_t r = 12; r < 18; ++r) CHECK(got.inclusion[r] == Approx(0.5));
  }
}

TEST_CASE("pps refuses settings out of range", "[estimator]") {
  for (const double share : {-0.01, 0.51, 1.0, std::nan("")}) {
    const pps wrong{0, share};
    const auto refused = fixture::refusal([&] { wrong.validate(); });
    CHECK(fixture::names(refused, {"pps: uniform_share = ", "[0, 0.5]", "choose"}));
    // The run-time choice passes it on.
    const lrmoe::any_estimator<lrmoe::top, pps> chosen(wrong);
    CHECK(fixture::refusal([&] { chosen.validate(); }) == refused);
  }
  const pps wrong_order{0, 0.0, static_cast<pps_order>(2)};
  CHECK(fixture::names(fixture::refusal([&] { wrong_order.validate(); }),
                       {"pps: order = 2", "pps_order::shuffled", "choose"}));
  for (const pps& estimator : combinations(0)) CHECK_NOTHROW(estimator.validate());
  CHECK_NOTHROW(lrmoe::top{}.validate());
  CHECK_NOTHROW(lrmoe::exact{}.validate());
  CHECK_NOTHROW(lrmoe::uniform{}.validate());
}
