// Starts Kokkos, runs Catch2, and prints the totals in one line that scripts/test adds up.
#define CATCH_CONFIG_RUNNER
#include <cstdio>

#include <Kokkos_Core.hpp>

#include "catch.hpp"

namespace {

#if LRMOE_CATCH2_V3
using listener_base = Catch::EventListenerBase;
#else
using listener_base = Catch::TestEventListenerBase;
#endif

Catch::Totals totals;

class totals_listener : public listener_base {
 public:
  using listener_base::listener_base;
  void testRunEnded(const Catch::TestRunStats& statistics) override { totals = statistics.totals; }
};

CATCH_REGISTER_LISTENER(totals_listener)

}  // namespace

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  Catch::Session session;
  if (const int usage_error = session.applyCommandLine(argc, argv)) return usage_error;
  const bool only_lists = session.config().listTests() || session.config().listTags() ||
                          session.config().listReporters() || session.configData().showHelp;
  const int failed = session.run();
  if (only_lists) return failed;
  const auto& cases = totals.testCases;
  const auto& assertions = totals.assertions;
  std::printf("test totals: cases %llu passed %llu failed, assertions %llu passed %llu failed\n",
              static_cast<unsigned long long>(cases.passed),
              static_cast<unsigned long long>(cases.failed),
              static_cast<unsigned long long>(assertions.passed),
              static_cast<unsigned long long>(assertions.failed));
  if (assertions.passed + assertions.failed == 0) {
    std::printf("no assertion ran\n");
    return 1;
  }
  return failed;
}
