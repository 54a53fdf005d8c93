// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

/// What every benchmark shares: how time is taken, how results are written down.
namespace bench {

class stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Median and extremes of repeated measurements.
struct spread {
  double median = 0;
  double min = 0;
  double max = 0;
};

inline spread spread_of(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const std::size_t middle = samples.size() / 2;
  const double median =
      samples.size() % 2 == 1 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
  return {median, samples.front(), samples.back()};
}

/// Seconds from a start to marks in the work of an execution space. Here a mark waits for the work before
/// it; gpu.hpp has the one for a GPU, where a mark is an event in the stream and nothing waits.
template <class ExecutionSpace>
class work_timer {
 public:
  explicit work_timer(const ExecutionSpace& space) : space_(space) {}

  void start() {
    marks_.clear();
    since_ = stopwatch{};
  }
  void mark() {
    space_.fence("bench::work_timer: mark");
    marks_.push_back(since_.seconds());
  }
  /// From the start to each mark. Waits for the last one.
  std::vector<double> seconds() { return marks_; }

  static constexpr const char* clock = "steady_clock around fenced calls";

 private:
  ExecutionSpace space_;
  stopwatch since_;
  std::vector<double> marks_;
};

/// The same start for every case on the host: worker threads of the last one, which wait actively for a
/// while (27 ms in OpenBLAS), are asleep, and nothing it used is left in cache.
class cold_host {
 public:
  void operator()() {
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    for (std::size_t i = 0; i < flushed_.size(); i += 64) ++flushed_[i];
  }

 private:
  static std::size_t flush_bytes() {
    const long last_level = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return 2 * static_cast<std::size_t>(std::clamp(last_level, 16L << 20, 512L << 20));
  }

  std::vector<unsigned char> flushed_ = std::vector<unsigned char>(flush_bytes());
};

/// What gives every case on this space the same start; gpu.hpp has the one for a GPU.
template <class ExecutionSpace>
std::function<void()> cold_start(const ExecutionSpace& /*space*/) {
  return cold_host{};
}

/// Times several cases in one run, interleaved (A B C A B C ...), so that whatever disturbs or slows
/// the machine for a while falls on all of them and ratios stay true.
class harness {
 public:
  /// One repetition of a case; returns the seconds of each of its series (a step and a part of it,
  /// say). Warm-ups have negative numbers, measured repetitions count from 0.
  using run_function = std::function<std::vector<double>(int repetition)>;

  /// `settle` is called before every repetition: it gives each the same start. Of several ranks, which run
  /// the same cases, one speaks.
  harness(int warm_ups, int repetitions, std::function<void()> settle = cold_host{},
          bool speaks = true)
      : warm_ups_(warm_ups),
        repetitions_(repetitions),
        settle_(std::move(settle)),
        speaks_(speaks) {}

  /// Adds a case; returns its number.
  std::size_t add(std::string name, run_function run) {
    cases_.push_back({std::move(name), std::move(run), {}});
    return cases_.size() - 1;
  }

  /// Runs everything, with a progress line where a person watches.
  void run() {
    const bool watched = speaks_ && isatty(STDERR_FILENO) != 0;
    for (int repetition = -warm_ups_; repetition < repetitions_; ++repetition) {
      for (auto& one : cases_) {
        if (watched) {
          std::fprintf(stderr, "\r\033[K%s %d/%d  %s", repetition < 0 ? "warm-up" : "repetition",
                       repetition < 0 ? repetition + warm_ups_ + 1 : repetition + 1,
                       repetition < 0 ? warm_ups_ : repetitions_, one.name.c_str());
        }
        settle_();
        const auto seconds = one.run(repetition);
        if (repetition >= 0) one.samples.push_back(seconds);
      }
    }
    if (watched) std::fprintf(stderr, "\r\033[K");
  }

  spread seconds(std::size_t number, std::size_t series = 0) const {
    std::vector<double> samples;
    for (const auto& repetition : cases_[number].samples) samples.push_back(repetition[series]);
    return spread_of(std::move(samples));
  }

  int repetitions() const { return repetitions_; }

 private:
  struct measured_case {
    std::string name;
    run_function run;
    std::vector<std::vector<double>> samples;
  };

  int warm_ups_;
  int repetitions_;
  std::function<void()> settle_;
  bool speaks_;
  std::vector<measured_case> cases_;
};

}  // namespace bench
