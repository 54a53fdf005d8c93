// The five expert operations on a GPU, with the default product and every element type. products.cpp tests
// each provider by itself.
#include <lrmoe/cuda/backend.hpp>

#include "operations_test.hpp"

using namespace operations_test_support;

namespace {

template <class Product>
using composed = lrmoe::composed_operations<Product, space_type, device>;
using measured = composed<lrmoe::cuda::measured_product>;

}  // namespace

#define LRMOE_TEST_VARIANTS \
  (variant<float, measured>), (variant<double, measured>), (variant<lrmoe::bfloat16, measured>)

TEMPLATE_TEST_CASE(
    "on a GPU the expert operations equal the oracle on groups of every awkward size", "[experts]",
    LRMOE_TEST_VARIANTS) {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  const bool shuffled = GENERATE(false, true);
  const std::size_t misaligned_by = GENERATE(0u, 1u);
  INFO("shuffled = " << shuffled << ", misaligned by " << misaligned_by);
  const operations_test<TestType> test(edge_counts, shuffled, misaligned_by, seed);
  for (const auto update : both_updates) test.run({}, true, update);
}

TEMPLATE_TEST_CASE(
    "on a GPU the expert operations equal the oracle on extents of one and large ones", "[experts]",
    LRMOE_TEST_VARIANTS) {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  const layout shape =
      GENERATE(layout{{1}, 1, 1}, layout{{3, 5}, 1, 7}, layout{{2, 0, 4}, 8, 1},
               layout{{600, 0, 1100}, 5, 3}, layout{{9, 4}, 131, 150},
               layout{{300, 0, 77}, 256, 192}, layout{{1, 2, 1, 0, 1, 2, 1, 1, 3}, 515, 2});
  INFO("D = " << shape.D << ", F = " << shape.F << ", rows " << shape.rows());
  const std::size_t misaligned_by = GENERATE(0u, 1u);
  const operations_test<TestType> test(shape, true, misaligned_by, seed);
  for (const auto update : both_updates) test.run({}, true, update);
}

TEMPLATE_TEST_CASE(
    "on a GPU no rows at all leave every output but overwritten gradients untouched and cost "
    "nothing",
    "[experts]", LRMOE_TEST_VARIANTS) {
  const layout shape = GENERATE(layout{{0, 0, 0}, 6, 5}, layout{{0}, 1, 1});
  for (const auto update : both_updates) {
    const auto result = operations_test<TestType>(shape, false, 0, 1).run({}, true, update);
    lrmoe::product_cost total = result.gate_up;
    total += result.down;
    total += result.down_backward;
    total += result.weight_gradient;
    total += result.gate_up_backward;
    CHECK(total.flops == 0.0);
  }
}

TEMPLATE_TEST_CASE("on a GPU the expert operations give the same bits again, on another stream too",
                   "[experts]", LRMOE_TEST_VARIANTS) {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  const operations_test<TestType> test(layout{{600, 0, 17, 40}, 40, 24}, true, 0, seed);
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  for (const auto update : both_updates) {
    const auto first = test.run({}, false, update);
    CHECK(test.run({}, false, update).bits == first.bits);
    CHECK(test.run(space_type(stream), false, update).bits == first.bits);
  }
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
}
