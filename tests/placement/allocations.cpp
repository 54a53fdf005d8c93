// Counts what is allocated: the global operators of this executable add up their calls.
#include <cstdlib>
#include <new>

#include <lrmoe/placement/all_planners.hpp>
#include <lrmoe/placement/step_time.hpp>

#include "catch.hpp"
#include "requests.hpp"

namespace {

std::int64_t allocations = 0;

}  // namespace

// Not inlined: GCC would take malloc and delete for a pair that does not match.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* const memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

TEST_CASE("planners allocate nothing once sizes were seen", "[placement]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  requests::problem of(8, 6, 32);
  of.costs = requests::some_costs();
  of.machine.ranks_per_node = 4;
  std::vector<requests::counts_type> calls;
  for (int call = 0; call < 60; ++call)
    calls.push_back(requests::random_counts(draw, 8, 32, "zipf", 3000));
  for (const auto& planner : lrmoe::all_planners()) {
    INFO(planner.attributes().name);
    of.history = lrmoe::load_history(planner.attributes().window);
    lrmoe::placement_plan plan;
    requests::counts_type split(static_cast<std::size_t>(8 * 8 * 6));
    lrmoe::step_time time;
    // The same calls twice: the second time all sizes were seen.
    for (const bool seen : {false, true}) {
      of.history.clear();
      of.current = {};
      std::int64_t counted = 0;
      for (of.step = 0; of.step < 60; ++of.step) {
        of.source_counts = calls[of.step];
        const auto request = of.request();
        const std::int64_t at_start = allocations;
        planner.plan(request, plan);
        const auto numbers = static_cast<std::size_t>(8 * plan.replicas.replicas());
        planner.split(request, plan, std::span(split).first(numbers));
        time.predict(request, planner.attributes(), plan, std::span(split).first(numbers));
        counted += allocations - at_start;
        of.history.record(8, 32, of.source_counts);
        of.current = plan.replicas;
      }
      CHECK((counted == 0) == seen);
    }
  }
}
