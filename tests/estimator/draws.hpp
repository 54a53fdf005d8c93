// What the estimator tests share: segments, one draw, and bounds for counts of random events.
#pragma once

#include <cmath>
#include <numeric>
#include <vector>

#include <lrmoe/estimator/estimator.hpp>

#include "catch.hpp"
#include "fixture.hpp"

namespace estimator_test {

using fixture::device;
using oracle::integer;

/// Segments by their counts and quotas.
struct problem {
  std::vector<std::int32_t> offsets{0}, kept_offsets{0};
  std::vector<double> sizes;  // by row

  integer E() const { return static_cast<integer>(offsets.size()) - 1; }
  integer rows() const { return offsets.back(); }
  integer kept() const { return kept_offsets.back(); }

  void add(const std::vector<double>& segment, integer quota) {
    sizes.insert(sizes.end(), segment.begin(), segment.end());
    offsets.push_back(static_cast<std::int32_t>(sizes.size()));
    kept_offsets.push_back(kept_offsets.back() + static_cast<std::int32_t>(quota));
  }
};

/// Sizes that float holds, spread over `decades` powers of ten.
inline std::vector<double> spread(fixture::random& draw, integer count, double decades) {
  std::vector<double> result;
  for (integer i = 0; i < count; ++i)
    result.push_back(oracle::round_to(oracle::format::binary32,
                                      std::pow(10.0, draw.uniform(-0.5, 0.5) * decades)));
  return result;
}

/// The counts at which vector widths and team sizes end, with empty segments around, under quotas
/// of none, one, half and all.
inline problem edge_cases(fixture::random& draw, double decades) {
  problem result;
  for (const integer count : {0, 1, 7, 8, 0, 9, 15, 16, 17, 127, 128, 129, 1000, 0})
    for (const integer quota : {integer{0}, integer{1}, (count + 1) / 2, count})
      if (quota <= count) result.add(spread(draw, count, decades), quota);
  return result;
}

struct drawn {
  std::vector<std::int32_t> rows;
  std::vector<double> weights, inclusion;
};

/// Reusable views of one problem, for many draws.
class drawer {
 public:
  explicit drawer(const problem& in)
      : offsets_(in.offsets),
        kept_offsets_(in.kept_offsets),
        sizes_(in.sizes),
        // Capacities are upper bounds, so more places than kept pairs must be left alone.
        rows_(in.kept() + 5),
        weights_(in.kept() + 5),
        inclusion_(in.rows()),
        kept_(static_cast<std::size_t>(in.kept())) {}

  // One thread by default: thousands of draws of a few rows would mostly wait at barriers.
  template <class Estimator>
  drawn operator()(const Estimator& estimator, const lrmoe::draw_key& key) {
    return (*this)(estimator, key, one_thread_);
  }
  template <class Estimator>
  drawn operator()(const Estimator& estimator, const lrmoe::draw_key& key,
                   const fixture::space_type& space) {
    rows_.poison();
    weights_.poison();
    inclusion_.poison();
    estimator.select(space, segments(), fixture::constant(sizes_.vector()), key, selection());
    space.fence("estimator_test::select");
    drawn result{rows_.elements(), weights_.values(), inclusion_.values()};
    result.rows.resize(kept_);
    result.weights.resize(kept_);
    return result;
  }
  /// Other sizes for the same counts and quotas.
  void set_sizes(const std::vector<double>& sizes) { sizes_ = fixture::array<float>(sizes); }
  lrmoe::segments<device> segments() const { return {offsets_.vector(), kept_offsets_.vector()}; }
  lrmoe::selection<device> selection() const {
    return {rows_.vector(), weights_.vector(), inclusion_.vector()};
  }
  bool nothing_else_written() const {
    const auto rows = rows_.elements();
    const auto weights = weights_.elements();
    for (std::size_t m = kept_; m < rows.size(); ++m)
      if (rows[m] != -1 || !std::isnan(weights[m])) return false;
    return rows_.guards_intact() && weights_.guards_intact() && inclusion_.guards_intact();
  }

 private:
  fixture::space_type one_thread_ = fixture::space_of_threads(1);
  fixture::array<lrmoe::index_type> offsets_, kept_offsets_;
  fixture::array<float> sizes_;
  fixture::array<lrmoe::index_type> rows_;
  fixture::array<float> weights_, inclusion_;
  std::size_t kept_;
};

/// The laws of every estimator. Returns the first that is broken, empty if none is.
inline std::string broken_law(const problem& in, const drawn& got) {
  for (integer e = 0; e < in.E(); ++e) {
    const auto at = static_cast<std::size_t>(e);
    std::int32_t previous = in.offsets[at] - 1;
    for (std::int32_t m = in.kept_offsets[at]; m < in.kept_offsets[at + 1]; ++m) {
      const auto i = static_cast<std::size_t>(m);
      const std::string where =
          " at place " + std::to_string(m) + " of segment " + std::to_string(e);
      if (got.rows[i] < in.offsets[at] || got.rows[i] >= in.offsets[at + 1])
        return "row outside its segment" + where;
      if (got.rows[i] <= previous) return "rows do not ascend" + where;
      if (!(got.weights[i] > 0.0) || !std::isfinite(got.weights[i])) return "weight" + where;
      previous = got.rows[i];
    }
  }
  for (std::size_t r = 0; r < got.inclusion.size(); ++r)
    if (!(got.inclusion[r] >= 0.0 && got.inclusion[r] <= 1.0))
      return "inclusion of row " + std::to_string(r);
  return {};
}

/// Largest deviation from n p of a count of n independent events of probability p, exceeded with
/// probability at most `significance` (Bernstein's inequality, valid for every n and p).
inline double count_bound(double n, double p, double significance) {
  const double log_term = std::log(2.0 / significance);
  const double third = log_term / 3.0;
  return third + std::sqrt(third * third + 2.0 * log_term * n * p * (1.0 - p));
}

/// Tests of a whole file fail by chance at most about once in a billion runs.
constexpr double chance = 1e-10;

/// Draws of every statistical test.
constexpr integer draws = 10000;

/// How often each row is kept, checking the laws of every draw.
template <class Estimator>
std::vector<integer> frequencies(const problem& in, const Estimator& estimator) {
  drawer draw(in);
  std::vector<integer> kept(in.sizes.size(), 0);
  for (integer step = 0; step < draws; ++step) {
    const drawn got = draw(estimator, {static_cast<std::uint64_t>(step), 3, 0});
    REQUIRE(broken_law(in, got).empty());
    for (const auto r : got.rows) ++kept[static_cast<std::size_t>(r)];
  }
  CHECK(draw.nothing_else_written());
  return kept;
}

/// Draws of different steps are independent, so the count of every row is binomial.
inline bool plausible(const std::vector<integer>& kept, const std::vector<double>& inclusion) {
  const double n = static_cast<double>(draws);
  for (std::size_t r = 0; r < kept.size(); ++r) {
    const double bound = count_bound(n, inclusion[r], chance / static_cast<double>(kept.size()));
    if (std::abs(static_cast<double>(kept[r]) - n * inclusion[r]) > bound) return false;
  }
  return true;
}

/// How often each pair of rows is kept together, (rows, rows), the lower row first.
template <class Estimator>
std::vector<integer> pair_frequencies(const problem& in, const Estimator& estimator) {
  drawer draw(in);
  const auto n = static_cast<std::size_t>(in.rows());
  std::vector<integer> together(n * n, 0);
  for (integer step = 0; step < draws; ++step) {
    const drawn got = draw(estimator, {static_cast<std::uint64_t>(step), 0, 0});
    for (std::size_t a = 0; a < got.rows.size(); ++a)
      for (std::size_t b = a + 1; b < got.rows.size(); ++b)
        ++together[static_cast<std::size_t>(got.rows[a]) * n +
                   static_cast<std::size_t>(got.rows[b])];
  }
  return together;
}

/// Inclusion probabilities of every row by the oracle, zero where the quota is.
inline std::vector<double> probabilities(const problem& in) {
  std::vector<double> result;
  for (std::size_t e = 0; e + 1 < in.offsets.size(); ++e) {
    const integer q = in.kept_offsets[e + 1] - in.kept_offsets[e];
    std::vector<double> scores;
    for (std::int32_t r = in.offsets[e]; r < in.offsets[e + 1]; ++r)
      scores.push_back(in.sizes[static_cast<std::size_t>(r)] *
                       in.sizes[static_cast<std::size_t>(r)]);
    if (q == 0)
      result.resize(result.size() + scores.size(), 0.0);
    else
      for (const double pi : oracle::inclusion_probabilities(scores, q)) result.push_back(pi);
  }
  return result;
}

}  // namespace estimator_test
