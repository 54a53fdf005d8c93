// What a layer promises on a GPU beside its numbers, which tests/layer.cpp checks on every backend.
#include <lrmoe/layer.hpp>

#include "kokkos_events.hpp"
#include "layer_harness.hpp"

using namespace layer_test;

namespace {

using policies_type = policies_of<lrmoe::softmax_top_k>;

policies_type reduced(double keep, const any_estimator& estimator) {
  policies_type policies;
  policies.router.renormalise = true;
  policies.quota.keep = keep;
  policies.estimator = estimator;
  return policies;
}

}  // namespace

TEMPLATE_TEST_CASE("in steady state a step on a GPU allocates nothing and waits once", "[layer]",
                   float, lrmoe::bfloat16) {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  // The second leaves experts without pairs, whose gradients are overwritten with zeros.
  const oracle::extents shape =
      GENERATE(oracle::extents{300, 64, 48, 8, 3, 16}, oracle::extents{3, 64, 48, 32, 3, 16});
  const lrmoe::gradient_update update =
      GENERATE(lrmoe::gradient_update::add, lrmoe::gradient_update::overwrite);
  const problem p = random_problem(draw, shape, fixture::format_of<TestType>(),
                                   routing_kind::softmax_renormalised);
  const call<TestType> views(p);
  const any_estimator estimator = GENERATE(
      any_estimator(lrmoe::exact{}), any_estimator(lrmoe::pps{1}), any_estimator(lrmoe::top{}));
  lrmoe::context<backend> context;
  layer_of<policies_type, TestType> layer(context, shape_of(p.in.shape), reduced(0.5, estimator));
  for (std::uint64_t step = 0; step < 2; ++step) {
    forward(layer, step, views);
    backward(layer, views, update);
  }
  const fixture::kokkos_events heard;
  forward(layer, 2, views);
  // The host plans from the counts.
  CHECK(heard.fences == 1);
  enqueue_backward(layer, views, update);
  CHECK(heard.fences == 1);
  // The next step's counts bring the report along.
  forward(layer, 3, views);
  layer.report();
  CHECK(heard.fences == 2);
  enqueue_backward(layer, views, update);
  layer.report();
  layer.report();
  CHECK(heard.fences == 3);
  CHECK(heard.allocations == 0);
}

TEST_CASE("a layer runs on the caller's stream and gives the same bits there", "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const problem p = random_problem(draw, {200, 40, 24, 6, 2, 0}, oracle::format::bfloat16,
                                   routing_kind::softmax_renormalised);
  const auto run = [&](const space_type& space) {
    const call<lrmoe::bfloat16> views(p);
    lrmoe::context<backend> context(space);
    layer_of<policies_type, lrmoe::bfloat16> layer(context, shape_of(p.in.shape),
                                                   reduced(0.4, lrmoe::pps{seed}));
    for (std::uint64_t step = 0; step < 3; ++step) {
      forward(layer, step, views);
      backward(layer, views);
    }
    return views.bits();
  };
  const auto expected = run(space_type());
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  CHECK(run(space_type(stream)) == expected);
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
}

TEST_CASE("memory that the device does not have is a memory_error, and the layer works on",
          "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const problem p = random_problem(draw, {40, 16, 12, 4, 2, 0}, oracle::format::binary32,
                                   routing_kind::softmax_renormalised);
  const call<float> views(p);
  lrmoe::context<backend> context;
  layer_of<policies_type, float> layer(context, shape_of(p.in.shape), reduced(0.5, lrmoe::pps{1}));
  forward(layer, 0, views);
  const auto live = context.memory.live_bytes();
  CHECK_THROWS_AS(context.scratch["test::huge"].template vector<double>(std::int64_t{1} << 40),
                  lrmoe::memory_error);
  CHECK(context.memory.live_bytes() == live);
  backward(layer, views);
  check_step(p, views, coefficients(layer, 80), routing_kind::softmax_renormalised);
}
