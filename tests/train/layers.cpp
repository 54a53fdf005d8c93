// The parts of the trainer's model around the MoE layer: values against plain formulas in double,
// gradients against finite differences.
#include <cmath>
#include <vector>

#include "attention.hpp"
#include "catch.hpp"
#include "cross_entropy.hpp"
#include "embedding.hpp"
#include "finite_difference.hpp"
#include "linear.hpp"
#include "rms_norm.hpp"

using namespace train;
using namespace train_test;

namespace {

/// |got - exact| for a sum of `terms` products of magnitude `size`.
double sum_tolerance(double terms, double size) {
  return (terms + 8.0) * 0x1p-24 * size;
}

}  // namespace

TEST_CASE("products in blocks equal the plain sum for all transpositions and odd sizes",
          "[train]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  for (const auto& [rows, columns, inner] : {std::array{3, 5, 7}, std::array{513, 17, 9},
                                             std::array{64, 193, 600}, std::array{1, 1, 1}}) {
    for (const bool a_turned : {false, true}) {
      for (const bool b_turned : {false, true}) {
        matrix a("a", a_turned ? inner : rows, a_turned ? rows : inner);
        matrix b("b", b_turned ? columns : inner, b_turned ? inner : columns);
        matrix c("c", rows, columns);
        fill_normal(a, 1.0, random);
        fill_normal(b, 1.0, random);
        Kokkos::deep_copy(c, std::numeric_limits<float>::quiet_NaN());
        multiply("test", transpose{a_turned}, a, transpose{b_turned}, b, 0.0f, c);
        multiply("test", transpose{a_turned}, a, transpose{b_turned}, b, 1.0f, c);
        int wrong = 0;
        for (int i = 0; i < rows; ++i) {
          for (int j = 0; j < columns; ++j) {
            double exact = 0.0, size = 0.0;
            for (int l = 0; l < inner; ++l) {
              const double term =
                  2.0 * (a_turned ? a(l, i) : a(i, l)) * double(b_turned ? b(j, l) : b(l, j));
              exact += term;
              size += std::abs(term);
            }
            if (!(std::abs(c(i, j) - exact) <= sum_tolerance(inner, size))) ++wrong;
          }
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("linear layer differentiates to its input and its weight", "[train]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  const int rows = 37, inputs = 10, outputs = 6;
  parameter_list parameters(seed);
  const linear layer(parameters, "w", inputs, outputs, 0.5);
  matrix x("x", rows, inputs), dx("dx", rows, inputs), y("y", rows, outputs),
      dy("dy", rows, outputs);
  fill_normal(x, 1.0, random);
  fill_normal(dy, 1.0, random);
  layer.backward(x, dy, dx);
  const auto loss = [&] {
    layer.forward(x, y);
    return inner_product(y, dy);
  };
  check_gradient("x", x, dx, loss);
  check_gradient("W", named(parameters, "w").value, named(parameters, "w").gradient, loss);
}

TEST_CASE("rms_norm differentiates to its input and its gain, and adds to what is there",
          "[train]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  const int rows = 131, width = 9;  // several chunks of rows, the last one short
  parameter_list parameters(seed);
  const rms_norm norm(parameters, "gain", width, rows + 5);
  const parameter& gain = named(parameters, "gain");
  fill_normal(gain.value, 1.0, random);
  matrix x("x", rows, width), dx("dx", rows, width), y("y", rows, width), dy("dy", rows, width);
  fill_normal(x, 2.0, random);
  fill_normal(dy, 1.0, random);
  const auto loss = [&] {
    norm.forward(x, y);
    return inner_product(y, dy);
  };
  loss();
  for (int t = 0; t < rows; ++t) {
    double squares = 0.0;
    for (int d = 0; d < width; ++d) squares += double(x(t, d)) * x(t, d);
    for (int d = 0; d < width; ++d) {
      const double exact =
          x(t, d) / std::sqrt(squares / width + double(rms_norm::epsilon)) * gain.value(d);
      REQUIRE(std::abs(y(t, d) - exact) <= sum_tolerance(width, std::abs(exact)));
    }
  }
  norm.backward(x, dy, dx);
  check_gradient("x", x, dx, loss);
  check_gradient("gain", gain.value, gain.gradient, loss);

  matrix shifted("shifted", rows, width);
  Kokkos::deep_copy(shifted, 3.0f);
  norm.forward(x, y);
  norm.backward(x, dy, shifted);
  for (int t = 0; t < rows; ++t)
    for (int d = 0; d < width; ++d)
      REQUIRE(std::abs(shifted(t, d) - (3.0f + dx(t, d))) <= 0x1p-22 * (3.0 + std::abs(dx(t, d))));
}

TEST_CASE("attention equals the plain formula", "[train]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  const int sequences = 2, context = 70, width = 12, heads = 3, N = width / heads;
  parameter_list parameters(seed);
  const attention mixer(parameters, "a", width, heads, context, sequences + 1, 0.4, 0.4);
  const vector w_in = named(parameters, "a.qkv").value, w_out = named(parameters, "a.out").value;
  const int rows = sequences * context;
  matrix x("x", rows, width), y("y", rows, width);
  fill_normal(x, 1.0, random);
  mixer.forward(x, y);

  std::vector<double> qkv(static_cast<std::size_t>(rows * 3 * width));
  for (int t = 0; t < rows; ++t)
    for (int j = 0; j < 3 * width; ++j)
      for (int d = 0; d < width; ++d)
        qkv[t * 3 * width + j] += double(x(t, d)) * w_in(d * 3 * width + j);
  for (int t = 0; t < rows; ++t) {
    for (int head = 0; head < 2 * heads; ++head) {
      for (int i = 0; i < N / 2; ++i) {
        const double angle = (t % context) * std::pow(10000.0, -2.0 * i / N);
        double& a = qkv[t * 3 * width + head * N + i];
        double& b = qkv[t * 3 * width + head * N + i + N / 2];
        const double turned = a * std::cos(angle) - b * std::sin(angle);
        b = a * std::sin(angle) + b * std::cos(angle);
        a = turned;
      }
    }
  }
  double worst = 0.0;
  for (int t = 0; t < rows; ++t) {
    std::vector<double> mixed(width);
    const int first = t / context * context;
    for (int head = 0; head < heads; ++head) {
      std::vector<double> p;
      double total = 0.0;
      for (int s = first; s <= t; ++s) {
        double score = 0.0;
        for (int i = 0; i < N; ++i)
          score += qkv[t * 3 * width + head * N + i] * qkv[s * 3 * width + width + head * N + i];
        p.push_back(std::exp(score / std::sqrt(double(N))));
        total += p.back();
      }
      for (int s = first; s <= t; ++s)
        for (int i = 0; i < N; ++i)
          mixed[head * N + i] +=
              p[s - first] / total * qkv[s * 3 * width + 2 * width + head * N + i];
    }
    for (int d = 0; d < width; ++d) {
      double exact = 0.0;
      for (int i = 0; i < width; ++i) exact += mixed[i] * w_out(i * width + d);
      worst = std::max(worst, std::abs(y(t, d) - exact));
    }
  }
  // Rounding of the scores, of magnitude up to about 10, passes through exp as a relative error.
  CHECK(worst <= 64.0 * 10.0 * 0x1p-24 * 4.0);
}

TEST_CASE("attention does not see the future nor other sequences", "[train]") {
  fixture::random random(fixture::fresh_seed());
  const int context = 70, width = 8;
  parameter_list parameters(1);
  const attention mixer(parameters, "a", width, 2, context, 2, 0.4, 0.4);
  matrix x("x", 2 * context, width), y("y", 2 * context, width), z("z", 2 * context, width);
  fill_normal(x, 1.0, random);
  mixer.forward(x, y);
  const int changed = 66;
  for (int t = changed; t < context; ++t)
    for (int d = 0; d < width; ++d) x(t, d) += 1.0f;
  mixer.forward(x, z);
  for (int t = 0; t < 2 * context; ++t) {
    bool equal = true;
    for (int d = 0; d < width; ++d) equal = equal && y(t, d) == z(t, d);
    CHECK(equal == (t < changed || t >= context));
  }
}

TEST_CASE("attention differentiates to its input and both weights", "[train]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  // The context is not a multiple of the block of queries; fewer sequences than there is room for.
  const int context = GENERATE(5, 70), sequences = 2, width = 8;
  parameter_list parameters(seed);
  const attention mixer(parameters, "a", width, 2, context, sequences + 1, 0.4, 0.4);
  const int rows = sequences * context;
  matrix x("x", rows, width), dx("dx", rows, width), y("y", rows, width), dy("dy", rows, width);
  fill_normal(x, 1.0, random);
  fill_normal(dy, 1.0, random);
  const auto loss = [&] {
    Kokkos::deep_copy(y, 0.0f);
    mixer.forward(x, y);
    return inner_product(y, dy);
  };
  loss();
  mixer.backward(x, dy, dx);
  check_gradient("x", x, dx, loss);
  for (const char* name : {"a.qkv", "a.out"})
    check_gradient(name, named(parameters, name).value, named(parameters, name).gradient, loss);
}

TEST_CASE("embedding and its tied head differentiate to the table", "[train]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  const int rows = 90, vocabulary = 11, width = 6;
  parameter_list parameters(seed);
  const embedding layer(parameters, "table", vocabulary, width, 0.5);
  tokens input("input", rows);
  for (int t = 0; t < rows; ++t)
    input(t) = static_cast<std::int32_t>(random.integer(0, vocabulary - 1));
  matrix x("x", rows, width), dx("dx", rows, width), logits("logits", rows, vocabulary),
      dlogits("dlogits", rows, vocabulary);
  fill_normal(dlogits, 0.3, random);
  const auto loss = [&] {
    layer.forward(input, x);
    layer.head_forward(x, logits);
    return inner_product(logits, dlogits);
  };
  loss();
  layer.head_backward(x, dlogits, dx);
  layer.backward(input, dx);
  const parameter& table = named(parameters, "table");
  check_gradient("table", table.value, table.gradient, loss);
}

TEST_CASE("cross entropy equals the plain formula and differentiates to the logits", "[train]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random random(seed);
  const int rows = 67, vocabulary = 31;
  matrix logits("logits", rows, vocabulary), work("work", rows, vocabulary);
  tokens target("target", rows);
  Kokkos::View<double*, Kokkos::LayoutRight, device> losses("losses", rows);
  fill_normal(logits, 4.0, random);
  for (int t = 0; t < rows; ++t)
    target(t) = static_cast<std::int32_t>(random.integer(0, vocabulary - 1));
  const auto loss = [&] {
    Kokkos::deep_copy(work, logits);
    cross_entropy(work, target, losses, false, rows);
    loss_value value;
    for (int t = 0; t < rows; ++t) value.sum += losses(t) / rows;
    value.magnitude = value.sum;
    return value;
  };
  double exact = 0.0;
  for (int t = 0; t < rows; ++t) {
    double total = 0.0;
    for (int v = 0; v < vocabulary; ++v) total += std::exp(double(logits(t, v)));
    exact += (std::log(total) - logits(t, target(t))) / rows;
  }
  CHECK(std::abs(loss().sum - exact) <= 1e-6 * exact);

  Kokkos::deep_copy(work, logits);
  cross_entropy(work, target, losses, true, rows);
  matrix gradient("gradient", rows, vocabulary);
  Kokkos::deep_copy(gradient, work);
  check_gradient("logits", logits, gradient, loss);
}
