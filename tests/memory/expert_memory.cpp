#include <lrmoe/bfloat16.hpp>
#include <lrmoe/memory/expert_memory.hpp>

#include "catch.hpp"
#include "fixture.hpp"

using lrmoe::memory_category;

TEST_CASE("a rank's experts take weights, main gradients and optimizer state", "[memory]") {
  const lrmoe::layer_shape shape{.D = 8, .F = 5, .E = 6, .K = 2, .F_shared = 4};
  const std::int64_t expert = 3 * 8 * 5, shared = 3 * 8 * 4;
  const auto use = lrmoe::expert_memory<float>(shape, {.experts = 3, .replicas = 2});
  CHECK(use[memory_category::expert_weights] == 4 * (3 * expert + shared));
  CHECK(use[memory_category::replicas] == 4 * 2 * expert);
  CHECK(use[memory_category::gradients] == 4 * (5 * expert + shared));
  CHECK(use[memory_category::optimizer] == 4 * 2 * (3 * expert + shared));
  CHECK(use.total() == 4 * (16 * expert + 4 * shared));

  // bfloat16 weights with a master copy, their state shared by three ranks.
  const auto sharded = lrmoe::expert_memory<lrmoe::bfloat16>(shape, {.experts = 2,
                                                                     .replicas = 1,
                                                                     .optimizer_values = 3,
                                                                     .optimizer_shards = 3,
                                                                     .layer_experts = 6});
  CHECK(sharded[memory_category::expert_weights] == 2 * (2 * expert + shared));
  CHECK(sharded[memory_category::replicas] == 2 * expert);
  CHECK(sharded[memory_category::gradients] == 4 * (3 * expert + shared));
  CHECK(sharded[memory_category::optimizer] == 4 * (6 * expert + shared));
}

TEST_CASE("optimizer state cannot be shared by no rank", "[memory]") {
  CHECK(fixture::names(fixture::refusal([] {
                         lrmoe::expert_memory<float>({.D = 1, .F = 1, .E = 1, .K = 1},
                                                     {.experts = 1, .optimizer_shards = 0});
                       }),
                       {"optimizer_shards = 0", "at least 1"}));
}
