#include <lrmoe/estimator/variance_estimate.hpp>

#include "catch.hpp"
#include "fixture.hpp"

namespace {

using fixture::array;
using fixture::device;
using lrmoe::index_type;
using oracle::integer;

double total_of(const array<double>& terms) {
  const array<double> total(1);
  lrmoe::sum_terms(fixture::space_type{}, terms.vector(), total.vector().data());
  Kokkos::fence("lrmoe_test::sum_terms");
  return total.values()[0];
}

}  // namespace

TEST_CASE("variance terms are their formula", "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const integer N = 30, columns = 7, S = 12, T = 9;
  const auto rows = draw.normal(N * columns, 1.0, oracle::format::binary32);
  const auto norms = draw.normal(T, 2.0, oracle::format::binary32);
  std::vector<double> c;
  std::vector<index_type> index, tokens;
  for (integer i = 0; i < S; ++i) {
    c.push_back(oracle::round_to(oracle::format::binary32, draw.uniform(0.5, 20.0)));
    index.push_back(static_cast<index_type>(draw.integer(0, N - 1)));
    tokens.push_back(static_cast<index_type>(draw.integer(0, T - 1)));
  }
  const bool indexed = GENERATE(false, true), outer = GENERATE(false, true);
  const array<float> matrix(rows), factors(c), of_tokens(norms);
  const array<index_type> at(index), token(tokens);
  array<double> terms(S);
  const lrmoe::vector_view<const index_type, device> none{};
  lrmoe::variance_terms(
      fixture::space_type{}, lrmoe::matrix_view<const float, device>(matrix.matrix(N, columns)),
      indexed ? fixture::constant(at.vector()) : none, fixture::constant(factors.vector()),
      outer ? fixture::constant(of_tokens.vector()) : lrmoe::vector_view<const float, device>{},
      outer ? fixture::constant(token.vector()) : none, terms.vector());
  Kokkos::fence("lrmoe_test::variance_terms");
  const auto got = terms.values();
  double sum = 0.0;
  for (std::size_t i = 0; i < 12; ++i) {
    const std::size_t row = indexed ? static_cast<std::size_t>(index[i]) : i;
    double squares = 0.0;
    for (std::size_t d = 0; d < 7; ++d) squares += rows[7 * row + d] * rows[7 * row + d];
    const double other = outer ? norms[static_cast<std::size_t>(tokens[i])] : 1.0;
    const double expected = c[i] > 1.0 ? (1.0 - 1.0 / c[i]) * squares * other * other : 0.0;
    CHECK(got[i] == Approx(expected).epsilon(1e-5).margin(1e-30));
    sum += got[i];
  }
  CHECK(total_of(terms) == Approx(sum).epsilon(1e-12));
  CHECK(terms.guards_intact());
}

TEST_CASE("terms are summed in chunks without losing any", "[estimator]") {
  for (const integer count : {0, 1, 1023, 1024, 1025, 5000}) {
    INFO(count);
    std::vector<double> values;
    for (integer i = 0; i < count; ++i) values.push_back(static_cast<double>(i % 37));
    double sum = 0.0;
    for (const double v : values) sum += v;
    CHECK(total_of(array<double>(values)) == sum);
  }
}

TEST_CASE("over independent draws the estimate has the expected squared error as its mean",
          "[estimator]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  constexpr std::size_t N = 40;
  std::vector<double> probability, square;
  double expected = 0.0;
  for (std::size_t p = 0; p < N; ++p) {
    probability.push_back(draw.uniform(0.1, 1.0));
    square.push_back(std::pow(draw.uniform(0.1, 2.0), 2));
    expected += (1.0 / probability[p] - 1.0) * square[p];
  }
  constexpr int draws = 10000;
  double sum = 0.0, squares = 0.0;
  for (int i = 0; i < draws; ++i) {
    std::vector<double> rows, factors;
    for (std::size_t p = 0; p < N; ++p)
      if (draw.uniform(0.0, 1.0) < probability[p]) {
        factors.push_back(1.0 / probability[p]);
        rows.push_back(std::sqrt(square[p]) / probability[p]);
      }
    const auto S = static_cast<integer>(rows.size());
    const array<float> matrix(rows), c(factors);
    const array<double> terms(S);
    lrmoe::variance_terms(fixture::space_of_threads(1),
                          lrmoe::matrix_view<const float, device>(matrix.matrix(S, 1)), {},
                          fixture::constant(c.vector()), {}, {}, terms.vector());
    Kokkos::fence("lrmoe_test::variance_terms");
    const double total = total_of(terms);
    sum += total;
    squares += total * total;
  }
  const double mean = sum / draws, error = std::sqrt((squares / draws - mean * mean) / draws);
  INFO("expected " << expected << ", mean " << mean << " +- " << error);
  CHECK(std::abs(mean - expected) <= 7.0 * error);
  CHECK(7.0 * error < 0.1 * expected);
}
