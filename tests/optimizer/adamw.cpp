#include <limits>

#include <lrmoe/optimizer/adamw.hpp>

#include "catch.hpp"
#include "fixture.hpp"

namespace {

using fixture::array;
using fixture::device;
using fixture::space_type;
using oracle::integer;

template <class T>
struct state {
  array<T> master, first, second, gradient;

  state(fixture::random& draw, integer n)
      : master(draw.normal(n, 1.0, fixture::format_of<T>())),
        first(draw.normal(n, 0.1, fixture::format_of<T>())),
        second(draw.normal(n, 0.1, fixture::format_of<T>())),
        gradient(draw.normal(n, 1.0, fixture::format_of<T>())) {
    for (integer i = 0; i < n; ++i) second.data()[i] = std::abs(second.data()[i]);
  }
};

template <class T>
auto part(const array<T>& of, integer begin, integer end) {
  return Kokkos::subview(of.vector(), std::pair<integer, integer>(begin, end));
}

/// Steps on [begin, end) of a state; weights may be empty.
template <class T, class Element>
void step(const state<T>& s, integer begin, integer end, const lrmoe::adamw_settings& settings,
          const lrmoe::adamw_step& now, lrmoe::vector_view<Element, device> weights) {
  lrmoe::adamw(space_type(), settings, now,
               lrmoe::vector_view<T, device>(part(s.master, begin, end)),
               lrmoe::vector_view<T, device>(part(s.first, begin, end)),
               lrmoe::vector_view<T, device>(part(s.second, begin, end)),
               lrmoe::vector_view<const T, device>(part(s.gradient, begin, end)), weights);
  Kokkos::fence();
}

/// Errors are relative to the sum of magnitudes that a result is made of, of which each takes part in at most
/// sixteen roundings: of coefficients, the scaled gradient, both moments, their correction, root and quotient.
template <class T>
void check_against_plain_adamw() {
  constexpr double tolerance = 16 * 0.5 * std::numeric_limits<T>::epsilon();
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  fixture::random draw(seed);
  for (const integer n : {0, 1, 17, 4096, 9001}) {
    const state<T> s(draw, n);
    const lrmoe::adamw_settings settings{draw.uniform(0.0, 0.3), draw.uniform(0.5, 0.95),
                                         draw.uniform(0.8, 0.999), 1e-8};
    const lrmoe::adamw_step now{draw.integer(1, 50), draw.uniform(1e-4, 1e-1),
                                draw.uniform(0.1, 1.0)};
    std::vector<double> w = s.master.values(), m = s.first.values(), v = s.second.values();
    const std::vector<double> g = s.gradient.values();
    step<T, T>(s, 0, n, settings, now, {});
    double worst = 0.0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double scaled = g[i] * now.gradient_scale;
      const double sizes_m =
          settings.beta1 * std::abs(m[i]) + (1.0 - settings.beta1) * std::abs(scaled);
      m[i] = settings.beta1 * m[i] + (1.0 - settings.beta1) * scaled;
      v[i] = settings.beta2 * v[i] + (1.0 - settings.beta2) * scaled * scaled;
      const double corrected_v = v[i] / (1.0 - std::pow(settings.beta2, now.step));
      const double divisor =
          (1.0 - std::pow(settings.beta1, now.step)) * (std::sqrt(corrected_v) + settings.epsilon);
      const double direction = m[i] / divisor;
      // m is a difference where gradients turn: its error does not shrink with it.
      const double sizes = sizes_m / divisor;
      const double expected = w[i] - now.rate * direction - now.rate * settings.weight_decay * w[i];
      const auto off = [](double got, double want, double scale) {
        return std::abs(got - want) / scale;
      };
      worst = std::max(
          {worst, off(s.first.values()[i], m[i], sizes_m), off(s.second.values()[i], v[i], v[i]),
           off(s.master.values()[i], expected,
               std::abs(w[i]) + now.rate * (sizes + settings.weight_decay * std::abs(w[i])))});
      if (n > 100) i += static_cast<std::size_t>(draw.integer(0, 200));
    }
    CHECK(worst < tolerance);
  }
}

}  // namespace

TEST_CASE("AdamW agrees with the plain formula", "[optimizer]") {
  check_against_plain_adamw<float>();
  check_against_plain_adamw<double>();
}

TEST_CASE("AdamW gives the same bits however the parameters are cut", "[optimizer]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  constexpr integer n = 10'007;
  fixture::random draw(seed);
  const integer cut = draw.integer(1, n - 1);
  fixture::random one(seed + 1), two(seed + 1);
  const state<float> whole(one, n), parts(two, n);
  for (int t = 1; t <= 3; ++t) {
    const lrmoe::adamw_step now{t, 0.01, 0.7};
    step<float, float>(whole, 0, n, {}, now, {});
    step<float, float>(parts, 0, cut, {}, now, {});
    step<float, float>(parts, cut, n, {}, now, {});
  }
  const auto bits = [](const array<float>& of) {
    return fixture::byte_string(of.data(), of.size());
  };
  CHECK(bits(whole.master) == bits(parts.master));
  CHECK(bits(whole.first) == bits(parts.first));
  CHECK(bits(whole.second) == bits(parts.second));
}

TEST_CASE("AdamW rounds fresh weights to the nearest element", "[optimizer]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  fixture::random draw(seed);
  constexpr integer n = 5000;
  const state<float> s(draw, n);
  const array<lrmoe::bfloat16> weights(n);
  step<float, lrmoe::bfloat16>(s, 0, n, {}, {1, 0.1, 1.0}, weights.vector());
  integer wrong = 0;
  for (integer i = 0; i < n; ++i) {
    const double master = static_cast<double>(s.master.data()[i]);
    wrong +=
        fixture::value_of(weights.data()[i]) != oracle::round_to(oracle::format::bfloat16, master);
  }
  CHECK(wrong == 0);
}

TEST_CASE("AdamW refuses impossible settings and sizes by name", "[optimizer]") {
  const auto refused = [](lrmoe::adamw_settings settings) {
    CHECK_THROWS_AS(settings.validate(), lrmoe::argument_error);
  };
  lrmoe::adamw_settings().validate();
  refused({.weight_decay = -0.1});
  refused({.beta1 = 1.0});
  refused({.beta2 = -0.5});
  refused({.epsilon = 0.0});
  fixture::random draw(1);
  const state<float> s(draw, 8);
  CHECK_THROWS_AS((step<float, float>(s, 0, 8, {}, {0, 0.1, 1.0}, {})), lrmoe::argument_error);
  const array<float> weights(7);
  CHECK_THROWS_AS((step<float, float>(s, 0, 8, {}, {1, 0.1, 1.0}, weights.vector())),
                  lrmoe::argument_error);
}

TEST_CASE("clipping scales down to the largest norm allowed and never up", "[optimizer]") {
  CHECK(lrmoe::clip_scale(4.0, 1.0) == 0.25);
  CHECK(lrmoe::clip_scale(0.5, 1.0) == 1.0);
  CHECK(lrmoe::clip_scale(0.0, 1.0) == 1.0);
  CHECK(lrmoe::clip_scale(1e30, 0.0) == 1.0);
}
