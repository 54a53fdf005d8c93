// The four scorers, the norms they start from, and the run-time choice.
#include <functional>
#include <set>

#include <lrmoe/scoring/any_scorer.hpp>
#include <lrmoe/scoring/score_pairs.hpp>

#include "catch.hpp"
#include "fixture.hpp"

namespace {

using fixture::device;
using oracle::integer;

struct scored {
  std::vector<double> sizes, contributions;
};

struct problem {
  integer T = 6, K = 2, E = 4;
  // Expert 1 is empty, token 2 is padding, token 3 has one padded pair.
  std::vector<std::int32_t> experts{0, 2, 3, 0, -1, -1, 2, -1, 3, 2, 0, 3};
  std::vector<double> weights{0.5, -0.25, 0, 1, 9, 9, 0.75, 9, 0.5, 0.5, 2, 1e-3};
  std::vector<double> gradient_norms{1, 2, 9, 0, 4, 0.5};
  std::vector<double> activation_norms{1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9};  // by row; 9 unused
};

template <class Scorer>
scored score(const Scorer& scorer, const problem& in, const lrmoe::draw_key& key) {
  const fixture::space_type space;
  lrmoe::ledger account;
  lrmoe::workspace<device> scratch(space, account);
  lrmoe::expert_sorter<device> sorter(space, account);
  const fixture::array<lrmoe::index_type> experts(in.experts);
  const fixture::array<float> weights(in.weights), gradient_norms(in.gradient_norms),
      activation_norms(in.activation_norms);
  const fixture::array<float> sizes(in.T * in.K), contributions(in.T * in.K);
  const auto order =
      sorter.sort(space, scratch, fixture::constant(experts.matrix(in.T, in.K)), in.E);
  space.fence("lrmoe_test::order");
  const std::pair<integer, integer> rows{
      0, fixture::host_copy(order.offsets)[static_cast<std::size_t>(in.E)]};
  lrmoe::score_pairs(
      space, scorer, key, order, fixture::constant(weights.matrix(in.T, in.K)),
      lrmoe::vector_view<const float, device>(gradient_norms.vector()),
      lrmoe::vector_view<const float, device>(activation_norms.vector()),
      lrmoe::vector_view<float, device>(Kokkos::subview(sizes.vector(), rows)),
      lrmoe::vector_view<float, device>(Kokkos::subview(contributions.vector(), rows)));
  space.fence("lrmoe_test::score");
  CHECK(sizes.guards_intact());
  CHECK(contributions.guards_intact());
  return {sizes.values(), contributions.values()};
}

/// Pair of every row, by plain loops.
std::vector<std::size_t> pair_of_row(const problem& in) {
  std::vector<std::size_t> result;
  for (const auto& pairs : oracle::pairs_by_expert(in.experts, in.E))
    for (const integer p : pairs) result.push_back(static_cast<std::size_t>(p));
  return result;
}

void check_sizes(const scored& got, const problem& in,
                 const std::function<double(double w, double gradient, double activation)>& size) {
  const auto pairs = pair_of_row(in);
  REQUIRE(pairs.size() == 9);
  for (std::size_t r = 0; r < pairs.size(); ++r) {
    const double w = in.weights[pairs[r]], g = in.gradient_norms[pairs[r] / 2],
                 a = in.activation_norms[r];
    INFO("row " << r);
    // Three factors, two float roundings and those of the inputs.
    CHECK(std::abs(got.sizes[r] - size(w, g, a)) <= 4 * std::ldexp(size(w, g, a), -24));
    const double contribution = std::abs(w) * g * a;
    CHECK(std::abs(got.contributions[r] - contribution) <= 4 * std::ldexp(contribution, -24));
  }
  for (std::size_t r = pairs.size(); r < got.sizes.size(); ++r) {
    CHECK(std::isnan(got.sizes[r]));  // rows of padding do not exist and are not written
    CHECK(std::isnan(got.contributions[r]));
  }
}

}  // namespace

TEST_CASE(
    "the size under each scorer is its formula, the contribution always that of the LRM score",
    "[scoring]") {
  const problem in;
  const lrmoe::draw_key key{3, 1, 0};
  check_sizes(score(lrmoe::lrm_score{}, in, key), in,
              [](double w, double g, double a) { return std::abs(w) * g * a; });
  check_sizes(score(lrmoe::routing_weight_score{}, in, key), in,
              [](double w, double, double) { return std::abs(w); });
  check_sizes(score(lrmoe::gradient_norm_score{}, in, key), in,
              [](double, double g, double) { return g; });
}

TEST_CASE("the run-time scorer equals the scorer that it names", "[scoring]") {
  const problem in;
  const lrmoe::draw_key key{3, 1, 0};
  const auto same = [&](const auto& scorer, lrmoe::scorer_kind kind) {
    const scored expected = score(scorer, in, key);
    const scored got = score(lrmoe::any_scorer{kind}, in, key);
    for (std::size_t r = 0; r < 9; ++r) CHECK(got.sizes[r] == expected.sizes[r]);
  };
  same(lrmoe::lrm_score{}, lrmoe::scorer_kind::lrm);
  same(lrmoe::routing_weight_score{}, lrmoe::scorer_kind::routing_weight);
  same(lrmoe::gradient_norm_score{}, lrmoe::scorer_kind::gradient_norm);
  same(lrmoe::random_score{}, lrmoe::scorer_kind::random);
}

TEST_CASE("random sizes are positive, differ by pair, step and layer, and repeat with the key",
          "[scoring]") {
  const problem in;
  std::set<double> seen;
  for (const lrmoe::draw_key& key : {lrmoe::draw_key{0, 0, 0}, lrmoe::draw_key{1, 0, 0},
                                     lrmoe::draw_key{0, 1, 0}, lrmoe::draw_key{0, 0, 1}}) {
    const scored got = score(lrmoe::random_score{}, in, key);
    const scored again = score(lrmoe::random_score{}, in, key);
    for (std::size_t r = 0; r < 9; ++r) {
      CHECK(got.sizes[r] > 0.0);
      CHECK(got.sizes[r] <= 1.0);
      CHECK(got.sizes[r] == again.sizes[r]);
      seen.insert(got.sizes[r]);
    }
  }
  // 36 numbers of 24 bits: two equal ones would have a probability of 4e-5, and the keys are fixed.
  CHECK(seen.size() == 36);
}

TEST_CASE("the contribution is the norm of the pair's outer product", "[scoring]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  oracle::layer in = fixture::random_layer(draw, {7, 5, 6, 3, 2, 0}, oracle::format::binary64);
  const auto at = oracle::forward(in);
  const auto d_out = draw.normal(35, 1.0, oracle::format::binary64);
  const auto scores = oracle::lrm_scores(in, at, d_out);
  for (integer p = 0; p < 14; ++p) {
    std::vector<double> only(14, 0.0);
    only[static_cast<std::size_t>(p)] = 1.0;
    double norm = 0.0;
    for (const double value : oracle::backward(in, at, d_out, only).down.values())
      norm += value * value;
    CHECK(scores[static_cast<std::size_t>(p)].value == Approx(norm).epsilon(1e-12));
  }
}

TEMPLATE_TEST_CASE("row norms are Euclidean norms within the arithmetic's bound", "[scoring]",
                   float, double, lrmoe::bfloat16) {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const integer T = GENERATE(0, 1, 13), D = GENERATE(1, 7, 130);
  const auto values = draw.normal(T * D, 1.0, fixture::format_of<TestType>());
  const fixture::array<TestType> rows(values, 1);
  const fixture::array<float> norms(T, 1);
  const fixture::space_type space;
  lrmoe::row_norms(space, fixture::constant(rows.matrix(T, D)), norms.vector());
  space.fence("lrmoe_test::norms");
  CHECK(norms.guards_intact());
  for (integer t = 0; t < T; ++t) {
    double sum = 0.0;
    for (integer d = 0; d < D; ++d) {
      const double value = values[static_cast<std::size_t>(t * D + d)];
      sum += value * value;
    }
    const double norm = std::sqrt(sum);
    CHECK(std::abs(norms.values()[static_cast<std::size_t>(t)] - norm) <=
          std::ldexp(static_cast<double>(D + 4), -24) * norm);
  }
}
