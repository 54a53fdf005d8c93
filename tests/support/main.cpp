// Starts Kokkos, runs Catch2, and prints the totals in one line that scripts/test adds up.
#define CATCH_CONFIG_RUNNER
#include <Kokkos_Core.hpp>

#include "totals.hpp"

using totals::listener;
CATCH_REGISTER_LISTENER(listener)

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  Catch::Session session;
  if (const int usage_error = session.applyCommandLine(argc, argv)) return usage_error;
  const bool only_lists = session.config().listTests() || session.config().listTags() ||
                          session.config().listReporters() || session.configData().showHelp;
  const int failed = session.run();
  if (only_lists) return failed;
  const Catch::Totals& of = listener::of_run;
  return totals::finish({of.testCases.passed, of.testCases.failed},
                        {of.assertions.passed, of.assertions.failed}, failed);
}
