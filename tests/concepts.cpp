// Which types model the library's concepts, and which do not: decided by the compiler.
#include <memory>

#include <lrmoe/estimator/top_plus_sampled.hpp>
#include <lrmoe/lrmoe.hpp>
#include <lrmoe/openmp/backend.hpp>

#include "catch.hpp"
#include "fixture.hpp"

namespace {

using fixture::device;
using lrmoe::index_type;

// ---- routers
static_assert(lrmoe::router<lrmoe::softmax_top_k>);
static_assert(lrmoe::router<lrmoe::given_routing>);
static_assert(lrmoe::router<lrmoe::sigmoid_top_k<float, device>>);
static_assert(!lrmoe::router<int>);
static_assert(!lrmoe::router<lrmoe::pps>);
struct router_that_cannot_be_copied : lrmoe::softmax_top_k {
  std::unique_ptr<int> state;
};
static_assert(!lrmoe::router<router_that_cannot_be_copied>);
struct router_without_columns {
  void validate(std::int64_t, std::int64_t) const {}
};
static_assert(!lrmoe::router<router_without_columns>);

// ---- quotas
static_assert(lrmoe::quota<lrmoe::fixed_fraction>);
static_assert(!lrmoe::quota<double>);
struct quota_without_capacity {
  void validate() const {}
};
static_assert(!lrmoe::quota<quota_without_capacity>);
struct quota_with_a_capacity_of_doubles {
  void validate() const {}
  double capacity(std::int64_t, std::int64_t) const { return 0; }
};
static_assert(!lrmoe::quota<quota_with_a_capacity_of_doubles>);

// ---- scorers
static_assert(lrmoe::scorer<lrmoe::lrm_score>);
static_assert(lrmoe::scorer<lrmoe::routing_weight_score>);
static_assert(lrmoe::scorer<lrmoe::gradient_norm_score>);
static_assert(lrmoe::scorer<lrmoe::random_score>);
static_assert(lrmoe::scorer<lrmoe::any_scorer>);
struct smallest_scorer {
  KOKKOS_FUNCTION float size(const lrmoe::pair_features& pair) const { return pair.weight; }
};
static_assert(lrmoe::scorer<smallest_scorer>);
struct scorer_of_doubles {
  double size(const lrmoe::pair_features&) const { return 0; }
};
static_assert(!lrmoe::scorer<scorer_of_doubles>);
struct scorer_that_changes {
  float size(const lrmoe::pair_features&) { return 0; }
};
static_assert(!lrmoe::scorer<scorer_that_changes>);
static_assert(!lrmoe::scorer<lrmoe::fixed_fraction>);

// ---- estimators
static_assert(lrmoe::estimator<lrmoe::pps>);
static_assert(lrmoe::estimator<lrmoe::top>);
static_assert(lrmoe::estimator<lrmoe::top_plus_sampled>);
static_assert(lrmoe::estimator<lrmoe::uniform>);
static_assert(lrmoe::estimator<lrmoe::exact>);
static_assert(lrmoe::estimator<lrmoe::any_estimator<lrmoe::pps, lrmoe::top>>);
static_assert(!lrmoe::estimator<lrmoe::lrm_score>);
struct estimator_that_does_not_say {
  void validate() const {}
  bool keeps_all() const { return false; }
};
static_assert(!lrmoe::estimator<estimator_that_does_not_say>);
struct estimator_without_validation {
  bool keeps_all() const { return false; }
  bool unbiased() const { return true; }
};
static_assert(!lrmoe::estimator<estimator_without_validation>);
// A run-time estimator takes its own alternatives and nothing else.
using pps_or_top = lrmoe::any_estimator<lrmoe::pps, lrmoe::top>;
static_assert(std::is_constructible_v<pps_or_top, lrmoe::top>);
static_assert(!std::is_constructible_v<pps_or_top, lrmoe::uniform>);

// ---- backends
static_assert(lrmoe::backend<lrmoe::openmp::backend<>>);
#if LRMOE_OPENMP_HAS_CBLAS
static_assert(lrmoe::backend<lrmoe::openmp::backend<lrmoe::openmp::cblas_product>>);
#endif
#if LRMOE_OPENMP_HAS_KOKKOS_KERNELS
static_assert(lrmoe::backend<lrmoe::openmp::backend<lrmoe::openmp::kokkos_kernels_product>>);
#endif
static_assert(!lrmoe::backend<int>);
struct backend_without_operations {
  using execution_space = fixture::space_type;
  using device_type = device;
  struct expert_operations {
    explicit expert_operations(lrmoe::workspace<device>&) {}
  };
};
static_assert(!lrmoe::backend<backend_without_operations>);

// ---- ownership
using context = lrmoe::context<lrmoe::openmp::backend<>>;
static_assert(!std::is_copy_constructible_v<context>);
static_assert(!std::is_copy_assignable_v<context>);
static_assert(!std::is_copy_constructible_v<lrmoe::buffer<device>>);
static_assert(std::is_nothrow_move_constructible_v<lrmoe::buffer<device>>);

// ---- types
static_assert(sizeof(lrmoe::bfloat16) == 2);
static_assert(!std::is_convertible_v<float, lrmoe::bfloat16>);
static_assert(!std::is_convertible_v<lrmoe::bfloat16, float>);
static_assert(std::is_constructible_v<float, lrmoe::bfloat16>);
static_assert(std::is_same_v<lrmoe::accumulate_t<lrmoe::bfloat16>, float>);
static_assert(std::is_same_v<lrmoe::accumulate_t<float>, float>);
static_assert(std::is_same_v<lrmoe::accumulate_t<double>, double>);
static_assert(std::is_base_of_v<lrmoe::error, lrmoe::argument_error>);
static_assert(std::is_base_of_v<lrmoe::error, lrmoe::memory_error>);
static_assert(!std::is_base_of_v<lrmoe::argument_error, lrmoe::memory_error>);
static_assert(std::is_base_of_v<std::runtime_error, lrmoe::error>);

}  // namespace

TEST_CASE("bfloat16 rounds to nearest, ties to even, as the oracle does", "[bfloat16]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const auto check = [](float value) {
    const double got = fixture::value_of(lrmoe::bfloat16(value));
    REQUIRE(got == oracle::round_to(oracle::format::bfloat16, value));
    if (value != 0.0f) REQUIRE(std::abs(got - value) <= std::ldexp(std::abs(value), -8));
  };
  for (int i = 0; i < 10000; ++i)
    check(static_cast<float>(
        std::ldexp(draw.uniform(-1.0, 1.0), static_cast<int>(draw.integer(-100, 100)))));
  // Half-way cases: 1 + 2^-8 to the even 1, 1 + 3 2^-8 up to the even 1 + 2^-6.
  CHECK(static_cast<float>(lrmoe::bfloat16(1.0f + 0x1p-8f)) == 1.0f);
  CHECK(static_cast<float>(lrmoe::bfloat16(1.0f + 3 * 0x1p-8f)) == 1.0f + 0x1p-6f);
  CHECK(static_cast<float>(lrmoe::bfloat16(-0.0f)) == 0.0f);
  CHECK(lrmoe::bfloat16(-0.0f).bits == 0x8000);
}

TEST_CASE("bfloat16 keeps NaN and infinity, and overflows to infinity", "[bfloat16]") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  CHECK(static_cast<float>(lrmoe::bfloat16(infinity)) == infinity);
  CHECK(static_cast<float>(lrmoe::bfloat16(-infinity)) == -infinity);
  CHECK(static_cast<float>(lrmoe::bfloat16(std::numeric_limits<float>::max())) == infinity);
  CHECK(std::isnan(static_cast<float>(lrmoe::bfloat16(std::nanf("")))));
  // A NaN whose payload sits in the discarded half must not become infinity.
  CHECK(std::isnan(
      static_cast<float>(lrmoe::bfloat16(Kokkos::bit_cast<float>(std::uint32_t{0x7f800001})))));
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = Kokkos::bit_cast<float>(bits << 16);
    if (!std::isnan(value)) REQUIRE(lrmoe::bfloat16(value).bits == bits);
  }
}
