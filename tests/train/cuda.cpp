// The trainer with its MoE layers on a GPU: the host's loss curve. Empty in a build without CUDA.
#if LRMOE_HAS_CUDA_BACKEND
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "catch.hpp"
#include "small_run.hpp"

using namespace train;
using namespace train_test;

namespace {

/// Two runs that differ in where their MoE layers compute.
struct both_backends {
  small_run host, cuda;

  explicit both_backends(train::method method) : host(method), cuda(method) {
    cuda.o.backend = backend_choice::cuda;
  }

  template <class Change>
  void train_with(const Change& change) {
    change(host.o);
    change(cuda.o);
    REQUIRE(host.run());
    REQUIRE(cuda.run());
  }

  /// Largest difference of a number of the steps, relative to the host's.
  double difference(const char* key) const {
    const auto expected = host.of_steps(key), found = cuda.of_steps(key);
    REQUIRE(found.size() == expected.size());
    REQUIRE(!found.empty());
    double largest = 0.0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      REQUIRE(std::isfinite(found[i]));
      largest = std::max(largest, std::abs(found[i] - expected[i]) / std::abs(expected[i]));
    }
    return largest;
  }

  /// Whether all that separates the two is rounding.
  bool equal_up_to_rounding() const {
    INFO("loss " << difference("loss") << ", gradient " << difference("gradient_norm"));
    return difference("loss") <= rounding && difference("gradient_norm") <= 10 * rounding;
  }

  // Both compute in fp32 and add up in other orders, so a gradient differs by a few ulps, 1e-7 of it, and
  // training enlarges that. Two products of the host, by CBLAS and by Kokkos Kernels, differ by less than
  // 1e-6 in the losses of 24 steps and less than 4e-5 in the norms of gradients. The GPU's exponential
  // function is another one as well.
  static constexpr double rounding = 2e-5;
  // A token may have two experts, or an expert two pairs, that come to the same place up to rounding. One
  // choice in another order changes a 64th of a layer's gradient. Those two products meet that in one run of
  // twenty, and then the losses differ by less than 4e-3.
  static constexpr double other_choice = 1e-2;
};

/// Trains with three seeds: most runs meet no tie, and then nothing but rounding separates the backends.
template <class Change>
void check_equal_training(train::method method, const Change& change) {
  int equal = 0;
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    INFO("seed " << seed);
    both_backends runs(method);
    runs.train_with([&](options& o) {
      o.seed = seed;
      change(o);
    });
    CHECK(runs.difference("loss") <= both_backends::other_choice);
    if (!runs.equal_up_to_rounding()) continue;
    ++equal;
    CHECK(runs.cuda.of_steps("kept_fraction") == runs.host.of_steps("kept_fraction"));
  }
  CHECK(equal >= 2);
}

}  // namespace

TEST_CASE("exact training on the GPU has the host's loss curve", "[train]") {
  check_equal_training(method::exact, [](options& o) { o.steps = 24; });
  small_run cuda, host;
  cuda.o.backend = backend_choice::cuda;
  for (small_run* run : {&cuda, &host}) REQUIRE(run->run());
  // Before the first update only one forward pass separates the two.
  const auto losses = cuda.of_steps("loss");
  CHECK(std::abs(losses[0] - host.of_steps("loss")[0]) <= 1e-6 * losses[0]);
  CHECK(losses.back() < 0.7 * losses.front());
  CHECK(cuda.log().front()["backend"] == "cuda");
  CHECK(host.log().front()["backend"] == "host");
}

TEST_CASE("with half of the pairs the GPU keeps as many as the host, and learns alike", "[train]") {
  const auto estimator = GENERATE(estimator_choice::pps, estimator_choice::top);
  check_equal_training(method::lrmoe, [&](options& o) {
    o.keep = 0.5;
    o.estimator = estimator;
  });
}

TEST_CASE("what forward saves and dropped pairs' router gradients are the host's on the GPU",
          "[train]") {
  const auto saved = GENERATE(lrmoe::saved_activations::recompute, lrmoe::saved_activations::proxy);
  const auto router = GENERATE(lrmoe::router_gradient::exact, lrmoe::router_gradient::sketch);
  check_equal_training(method::lrmoe, [&](options& o) {
    o.keep = 0.5;
    o.saved = saved;
    o.router_gradient = router;
  });
}

TEST_CASE("ranks that share the GPU have the host's loss curve while experts move", "[train]") {
  const std::string planner = GENERATE("static", "lrmoe");
  INFO(planner);
  check_equal_training(method::exact, [&](options& o) {
    o.ranks = 3;
    o.batch = 8;
    o.planner = planner;
    o.sharded_state = true;
  });
}

TEST_CASE("a run on the GPU repeats bit for bit, stopped and continued or not", "[train]") {
  small_run whole(method::lrmoe), parts(method::lrmoe);
  for (small_run* run : {&whole, &parts}) {
    run->o.keep = 0.5;
    run->o.backend = backend_choice::cuda;
  }
  REQUIRE(whole.run());
  CHECK_FALSE(parts.run(5));
  parts.o.resume = true;
  REQUIRE(parts.run());
  CHECK(parts.trajectory() == whole.trajectory());
  CHECK(parts.tensors() == whole.tensors());
}

TEST_CASE("a run of the host continues on the GPU", "[train]") {
  small_run host, parts;
  REQUIRE(host.run());
  CHECK_FALSE(parts.run(6));
  parts.o.backend = backend_choice::cuda;
  parts.o.resume = true;
  REQUIRE(parts.run());
  const double expected = host.log().back()["final_val_loss"];
  CHECK(std::abs(parts.log().back()["final_val_loss"].get<double>() - expected) <=
        both_backends::other_choice * expected);
}
#endif
