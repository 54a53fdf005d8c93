// The keyed permutation: a bijection for every count, and as good as random.
#include <lrmoe/draw_key.hpp>
#include <lrmoe/estimator/permutation.hpp>

#include "catch.hpp"
#include "draws.hpp"

using namespace estimator_test;
using lrmoe::detail::permutation;

namespace {

permutation permutation_of(integer count, std::uint64_t seed, integer step) {
  const lrmoe::draw_key key{static_cast<std::uint64_t>(step), 0, 0};
  return {static_cast<lrmoe::index_type>(count), key.words(seed, 0)};
}

}  // namespace

TEST_CASE("a keyed permutation takes every value of its range once", "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  const auto is_bijection = [&](integer count, integer step) {
    const permutation shuffle = permutation_of(count, seed, step);
    std::vector<bool> seen(static_cast<std::size_t>(count), false);
    for (integer i = 0; i < count; ++i) {
      const integer value = shuffle(static_cast<lrmoe::index_type>(i));
      if (value < 0 || value >= count || seen[static_cast<std::size_t>(value)]) return false;
      seen[static_cast<std::size_t>(value)] = true;
    }
    return true;
  };
  for (integer count = 1; count <= 300; ++count)
    for (integer step = 0; step < 5; ++step) {
      INFO("count " << count);
      REQUIRE(is_bijection(count, step));
    }
  for (const integer count : {1023, 1024, 1025, 65535, 65536, 65537, 1000003})
    CHECK(is_bijection(count, 0));
  // The largest count that rows can have: inside the range, and without collisions where tried.
  constexpr lrmoe::index_type most = std::numeric_limits<lrmoe::index_type>::max();
  const permutation shuffle = permutation_of(most, seed, 0);
  std::vector<lrmoe::index_type> values;
  for (lrmoe::index_type i = 0; i < 1000; ++i) values.push_back(shuffle(most - 1 - i * 1000));
  std::sort(values.begin(), values.end());
  CHECK(values.front() >= 0);
  CHECK(values.back() < most);
  CHECK(std::adjacent_find(values.begin(), values.end()) == values.end());
}

TEST_CASE("over many keys every permutation of a few elements is equally likely", "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  constexpr integer keys = 100000;
  for (const integer count : {2, 3, 4, 5}) {
    std::vector<integer> order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::vector<std::vector<integer>> all;
    do all.push_back(order);
    while (std::next_permutation(order.begin(), order.end()));
    std::vector<integer> found(all.size(), 0);
    for (integer step = 0; step < keys; ++step) {
      const permutation shuffle = permutation_of(count, seed, step);
      for (integer i = 0; i < count; ++i)
        order[static_cast<std::size_t>(i)] = shuffle(static_cast<lrmoe::index_type>(i));
      ++found[static_cast<std::size_t>(std::lower_bound(all.begin(), all.end(), order) -
                                       all.begin())];
    }
    const double p = 1.0 / static_cast<double>(all.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      INFO("permutation " << i << " of " << count << " elements: " << found[i]);
      CHECK(std::abs(static_cast<double>(found[i]) - keys * p) <= count_bound(keys, p, chance * p));
    }
  }
}

TEST_CASE("over many keys two elements of a permutation take every pair of places equally often",
          "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  constexpr integer keys = 100000;
  for (const integer count : {9, 16, 23}) {
    const auto n = static_cast<std::size_t>(count);
    // Neighbours, and elements that differ in the highest bit only.
    for (const integer other : {integer{1}, integer{8}}) {
      std::vector<integer> found(n * n, 0);
      for (integer step = 0; step < keys; ++step) {
        const permutation shuffle = permutation_of(count, seed, step);
        ++found[static_cast<std::size_t>(shuffle(0)) * n +
                static_cast<std::size_t>(shuffle(static_cast<lrmoe::index_type>(other)))];
      }
      const double p = 1.0 / static_cast<double>(count * (count - 1));
      for (std::size_t a = 0; a < n; ++a)
        for (std::size_t b = 0; b < n; ++b) {
          if (a == b) {
            REQUIRE(found[n * a + b] == 0);
            continue;
          }
          INFO("places " << a << " and " << b << " of " << count << ": " << found[n * a + b]);
          REQUIRE(std::abs(static_cast<double>(found[n * a + b]) - keys * p) <=
                  count_bound(keys, p, chance * p));
        }
    }
  }
}
