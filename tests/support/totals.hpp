// What a run of Catch2 came to, for the line that scripts/test and scripts/gpu-check add up. For files
// with a main function.
#pragma once

#include <cstdio>
#include <vector>

#include "catch.hpp"

namespace totals {

#if LRMOE_CATCH2_V3
using listener_base = Catch::EventListenerBase;
#else
using listener_base = Catch::TestEventListenerBase;
#endif

/// Hears what ran while it is registered.
class listener : public listener_base {
 public:
  using listener_base::listener_base;
  void testCaseEnded(const Catch::TestCaseStats& statistics) override {
    failed_by_case.push_back(statistics.totals.testCases.failed);
  }
  void testRunEnded(const Catch::TestRunStats& statistics) override { of_run = statistics.totals; }

  static inline Catch::Totals of_run;
  /// 1 for each case that failed, else 0; in the order of running.
  static inline std::vector<unsigned long long> failed_by_case;
};

struct counts {
  unsigned long long passed = 0, failed = 0;
};

/// The line, and the program's exit code: nothing that ran is a failure as well.
inline int finish(const counts& cases, const counts& assertions, int failed) {
  std::printf("test totals: cases %llu passed %llu failed, assertions %llu passed %llu failed\n",
              cases.passed, cases.failed, assertions.passed, assertions.failed);
  if (assertions.passed + assertions.failed > 0) return failed;
  std::printf("no assertion ran\n");
  return 1;
}

}  // namespace totals
