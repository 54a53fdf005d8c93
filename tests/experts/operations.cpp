// The five expert operations of the host backend, with every product provider and element type, and their
// composition from a plain product, which other backends use.
#include <lrmoe/experts/composed_operations.hpp>
#include <lrmoe/openmp/backend.hpp>

#include "operations_test.hpp"
#include "plain_product.hpp"

using namespace operations_test_support;

namespace {

template <class Product>
using fused = lrmoe::openmp::expert_operations<Product>;
using composed = lrmoe::composed_operations<plain_product, space_type, device>;

}  // namespace

#if LRMOE_OPENMP_HAS_CBLAS && LRMOE_OPENMP_HAS_KOKKOS_KERNELS
#define LRMOE_TEST_FUSED_VARIANTS                                      \
  (variant<float, fused<lrmoe::openmp::cblas_product>>),               \
      (variant<double, fused<lrmoe::openmp::cblas_product>>),          \
      (variant<lrmoe::bfloat16, fused<lrmoe::openmp::cblas_product>>), \
      (variant<float, fused<lrmoe::openmp::kokkos_kernels_product>>),  \
      (variant<double, fused<lrmoe::openmp::kokkos_kernels_product>>), \
      (variant<lrmoe::bfloat16, fused<lrmoe::openmp::kokkos_kernels_product>>)
#else
#define LRMOE_TEST_FUSED_VARIANTS                               \
  (variant<float, fused<lrmoe::openmp::default_product>>),      \
      (variant<double, fused<lrmoe::openmp::default_product>>), \
      (variant<lrmoe::bfloat16, fused<lrmoe::openmp::default_product>>)
#endif
#define LRMOE_TEST_VARIANTS                                                           \
  LRMOE_TEST_FUSED_VARIANTS, (variant<float, composed>), (variant<double, composed>), \
      (variant<lrmoe::bfloat16, composed>)

TEMPLATE_TEST_CASE("the expert operations equal the oracle on groups of every awkward size",
                   "[experts]", LRMOE_TEST_VARIANTS) {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  const bool shuffled = GENERATE(false, true);
  const std::size_t misaligned_by = GENERATE(0u, 1u);
  INFO("shuffled = " << shuffled << ", misaligned by " << misaligned_by);
  const operations_test<TestType> test(edge_counts, shuffled, misaligned_by, seed);
  for (const auto update : both_updates) test.run({}, true, update);
}

TEMPLATE_TEST_CASE("the expert operations equal the oracle on extents of one and on large ones",
                   "[experts]", LRMOE_TEST_VARIANTS) {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  // More rows than a tile, gradients wider than a thread's part with few and with many groups.
  const layout shape = GENERATE(layout{{1}, 1, 1}, layout{{3, 5}, 1, 7}, layout{{2, 0, 4}, 8, 1},
                                layout{{600, 0, 1100}, 5, 3}, layout{{9, 4}, 131, 150},
                                layout{{1, 2, 1, 0, 1, 2, 1, 1, 3}, 515, 2});
  INFO("D = " << shape.D << ", F = " << shape.F << ", rows " << shape.rows());
  const operations_test<TestType> test(shape, true, 1, seed);
  for (const auto update : both_updates) test.run({}, true, update);
}

TEMPLATE_TEST_CASE(
    "no rows at all leave every output but overwritten gradients untouched and cost nothing",
    "[experts]", LRMOE_TEST_VARIANTS) {
  const layout shape = GENERATE(layout{{0, 0, 0}, 6, 5}, layout{{0}, 1, 1});
  for (const auto update : both_updates) {
    const auto result = operations_test<TestType>(shape, false, 0, 1).run({}, true, update);
    for (const auto& cost : {result.gate_up, result.down, result.down_backward,
                             result.weight_gradient, result.gate_up_backward}) {
      CHECK(cost.flops == 0.0);
      CHECK(cost.bytes_read == 0.0);
      CHECK(cost.bytes_written == 0.0);
    }
  }
}

TEMPLATE_TEST_CASE("the expert operations give the same bits again and with another thread count",
                   "[experts]", LRMOE_TEST_VARIANTS) {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  const operations_test<TestType> test(layout{{600, 0, 17, 40}, 33, 20}, true, 0, seed);
  const auto one = fixture::space_of_threads(1), two = fixture::space_of_threads(2);
  for (const auto update : both_updates) {
    const auto first = test.run(one, false, update);
    CHECK(test.run(one, false, update).bits == first.bits);
    CHECK(test.run(two, false, update).bits == first.bits);
  }
}

TEMPLATE_TEST_CASE("the cost of an operation counts the rows and groups that were used",
                   "[experts]", LRMOE_TEST_VARIANTS) {
  using element = typename TestType::element;
  const operations_test<TestType> test(edge_counts, true, 0, 1);
  const auto result = test.run({}, false);
  const double D = static_cast<double>(edge_counts.D), F = static_cast<double>(edge_counts.F);
  const double P = static_cast<double>(test.all().rows());
  const double M = static_cast<double>(test.kept().rows());
  const double all_groups = static_cast<double>(test.all().groups_in_use());
  const double kept_groups = static_cast<double>(test.kept().groups_in_use());
  REQUIRE(M < P);
  CHECK(result.gate_up.flops == 4 * P * D * F);
  CHECK(result.down.flops == 2 * P * D * F);
  CHECK(result.down_backward.flops == 2 * M * D * F);
  CHECK(result.gate_up_backward.flops == 4 * M * D * F);
  CHECK(result.weight_gradient.flops == 6 * M * D * F);
  const double bytes = sizeof(element), real_bytes = sizeof(lrmoe::accumulate_t<element>);
  CHECK(result.gate_up.bytes_read == (P * D + all_groups * 2 * D * F) * bytes);
  CHECK(result.down.bytes_read == (P * F + all_groups * D * F) * bytes);
  CHECK(result.down.bytes_written == P * D * bytes);
  CHECK(result.down_backward.bytes_read == (M * D + kept_groups * D * F) * bytes);
  CHECK(result.gate_up_backward.bytes_read == (M * 2 * F + kept_groups * 2 * D * F) * bytes);
  CHECK(result.gate_up_backward.bytes_written == M * D * bytes);
  CHECK(result.weight_gradient.bytes_read ==
        M * (2 * D + 3 * F) * bytes + kept_groups * 3 * D * F * real_bytes);
  CHECK(result.weight_gradient.bytes_written == kept_groups * 3 * D * F * real_bytes);
  const auto overwriting = test.run({}, false, lrmoe::gradient_update::overwrite).weight_gradient;
  CHECK(overwriting.flops == result.weight_gradient.flops);
  CHECK(overwriting.bytes_read == M * (2 * D + 3 * F) * bytes);
  CHECK(overwriting.bytes_written == result.weight_gradient.bytes_written);
}

TEMPLATE_TEST_CASE("gate_up without saved activations gives the same hidden rows", "[experts]",
                   LRMOE_TEST_VARIANTS) {
  using element = typename TestType::element;
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const integer P = 21, D = 10, F = 6;
  const array<element> x(draw.normal(P * D, 1.0, fixture::format_of<element>()));
  const array<element> weights(draw.normal(2 * D * 2 * F, 0.3, fixture::format_of<element>()));
  const std::vector<index_type> host_offsets{0, 9, 21};
  const array<index_type> offsets(host_offsets);
  lrmoe::ledger account;
  const space_type space;
  lrmoe::workspace<device> scratch(space, account);
  typename TestType::operations on(scratch);
  const auto run = [&](bool save) {
    const array<element> pre(save ? P * 2 * F : 0), h(P * F);
    const array<float> norms(save ? P : 0);
    on.gate_up(space, lrmoe::gathered_rows<element, device>{x.matrix(P, D)},
               lrmoe::row_groups<device>{offsets.vector(), host_offsets},
               lrmoe::tensor_view<const element, device>(weights.tensor(2, D, 2 * F)),
               save ? pre.matrix(P, 2 * F) : lrmoe::matrix_view<element, device>{}, h.matrix(P, F),
               save ? norms.vector() : lrmoe::vector_view<float, device>{});
    space.fence("lrmoe_test::gate_up");
    return h.bits();
  };
  CHECK(run(true) == run(false));
}

TEMPLATE_TEST_CASE("absent weights and factors mean one, and dw may be left out", "[experts]",
                   LRMOE_TEST_VARIANTS) {
  using element = typename TestType::element;
  using real = lrmoe::accumulate_t<element>;
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const integer M = 12, D = 7, F = 5;
  const auto format = fixture::format_of<element>();
  const array<element> pre(draw.normal(M * 2 * F, 1.0, format)),
      d_out(draw.normal(M * D, 1.0, format)), weights(draw.normal(F * D, 0.4, format));
  const std::vector<index_type> host_offsets{0, 12};
  const array<index_type> offsets(host_offsets);
  const array<real> ones(std::vector<double>(12, 1.0));
  const array<float> factors(std::vector<double>(12, 1.0));
  lrmoe::ledger account;
  const space_type space;
  lrmoe::workspace<device> scratch(space, account);
  typename TestType::operations on(scratch);
  const auto run = [&](bool given) {
    lrmoe::swiglu_kept_rows<element, device> rows;
    rows.pre.matrix = pre.matrix(M, 2 * F);
    rows.d_out.matrix = d_out.matrix(M, D);
    rows.groups = {offsets.vector(), host_offsets};
    if (given) {
      rows.weights = ones.vector();
      rows.factors = factors.vector();
    }
    const array<element> d_pre(M * 2 * F), scaled_h(M * F);
    const array<real> d_weights(given ? M : 0);
    on.down_backward(space, rows,
                     lrmoe::tensor_view<const element, device>(weights.tensor(1, F, D)),
                     d_pre.matrix(M, 2 * F), scaled_h.matrix(M, F),
                     given ? d_weights.vector() : lrmoe::vector_view<real, device>{});
    space.fence("lrmoe_test::down_backward");
    return std::vector{d_pre.bits(), scaled_h.bits()};
  };
  CHECK(run(true) == run(false));
}

TEST_CASE("the host's exponential is accurate, and silu keeps limits and NaN", "[experts]") {
  for (int i = -87 * 64; i <= 87 * 64; ++i) {
    const float x = static_cast<float>(i) / 64.0f;
    const double exact = std::exp(static_cast<double>(x));
    REQUIRE(std::abs(static_cast<double>(lrmoe::openmp::exponential(x)) - exact) <= 2e-7 * exact);
  }
  const auto silu = [](float x) { return x * lrmoe::openmp::sigmoid(x); };
  CHECK(lrmoe::openmp::exponential(0.0f) == 1.0f);
  CHECK(silu(200.0f) == 200.0f);
  CHECK(std::abs(silu(-200.0f)) < 1e-35f);
  CHECK(silu(3e38f) == 3e38f);
  CHECK(silu(std::numeric_limits<float>::infinity()) == std::numeric_limits<float>::infinity());
  CHECK(std::isnan(silu(std::nanf(""))));
  CHECK(std::isnan(silu(-std::nanf(""))));
}
