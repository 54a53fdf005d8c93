// Whole runs of the trainer on a small text: reproducible, continued bit by bit, honest in their log.
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "catch.hpp"
#include "command_line.hpp"
#include "small_run.hpp"

using namespace train;
using namespace train_test;

TEST_CASE("training lowers the loss, and every line of the log is complete", "[train]") {
  small_run exact;
  exact.o.steps = 60;
  exact.o.target_loss = 2.0;
  REQUIRE(exact.run());
  const auto log = exact.log();
  CHECK(log.front()["type"] == "settings");
  CHECK(log.back()["type"] == "summary");
  double previous_moe = 0.0, last_smoothed = 0.0, reached = 0.0;
  std::int64_t step = 0;
  for (const json& line : log) {
    if (line["type"] == "step") {
      CHECK(line["step"] == ++step);
      CHECK(line["moe_ms"] > 0.0);
      CHECK(line["moe_ms"] <= line["step_ms"]);
      CHECK(line["moe_s_cumulative"].get<double>() ==
            Approx(previous_moe + 1e-3 * line["moe_ms"].get<double>()));
      previous_moe = line["moe_s_cumulative"];
      for (const char* key :
           {"loss", "learning_rate", "gradient_norm", "tokens_per_s", "kept_fraction",
            "noise_ratio", "worst_case_time_ratio", "moe_peak_bytes", "process_peak_bytes"})
        CHECK(line[key].is_number());
    } else if (line["type"] == "validation") {
      const double loss = line["val_loss"];
      last_smoothed = last_smoothed == 0.0 ? loss : 0.5 * (loss + last_smoothed);
      CHECK(line["val_loss_smoothed"] == last_smoothed);
      if (reached == 0.0 && last_smoothed <= 2.0) reached = line["moe_s_cumulative"];
    }
  }
  CHECK(step == 60);
  CHECK(reached > 0.0);
  CHECK(log.back()["moe_s_to_target"] == reached);
  CHECK(log.back()["final_val_loss"] < 1.8);
}

TEST_CASE("lrmoe that keeps every pair trains exactly as exact does", "[train]") {
  small_run exact, all(method::lrmoe), half(method::lrmoe);
  all.o.keep = 1.0;
  half.o.keep = 0.5;
  for (const small_run* run : {&exact, &all, &half}) REQUIRE(run->run());
  CHECK(exact.trajectory() == all.trajectory());
  CHECK(exact.trajectory() != half.trajectory());
}

TEST_CASE("a run that stops and continues equals one that does not", "[train]") {
  const auto estimator = GENERATE(estimator_choice::pps, estimator_choice::uniform);
  small_run whole(method::lrmoe), parts(method::lrmoe);
  for (small_run* run : {&whole, &parts}) {
    run->o.estimator = estimator;
    run->o.keep = 0.3;
  }
  REQUIRE(whole.run());
  CHECK_FALSE(parts.run(5));
  parts.o.resume = true;
  CHECK_FALSE(parts.run(7));
  REQUIRE(parts.run());
  CHECK(whole.trajectory() == parts.trajectory());
  CHECK(whole.log().size() == parts.log().size());

  // Also after a crash, with log lines that no checkpoint covers.
  small_run crashed(method::lrmoe);
  crashed.o.estimator = estimator;
  crashed.o.keep = 0.3;
  crashed.o.checkpoint_every = 4;
  crashed.run(4);
  const std::string early = content_of(crashed.o.output + "/checkpoint.bin");
  crashed.o.resume = true;
  crashed.run(11);
  set_content(crashed.o.output + "/checkpoint.bin", early);
  REQUIRE(crashed.run());
  CHECK(whole.trajectory() == crashed.trajectory());
}

TEST_CASE("Ctrl-C stops a run after the step and leaves a checkpoint to continue from", "[train]") {
  small_run whole, stopped;
  REQUIRE(whole.run());
  stop_signal::install();
  {
    trainer t(stopped.o);
    CHECK_FALSE(t.run(3));
    std::raise(SIGINT);
    CHECK_FALSE(t.run());
  }
  stop_signal::install();
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  stopped.o.resume = true;
  REQUIRE(stopped.run());
  CHECK(whole.trajectory() == stopped.trajectory());
}

TEST_CASE("a run refuses what it cannot continue, replace or write", "[train]") {
  small_run run;
  CHECK_NAMES(message_of([&] {
                run.o.resume = true;
                run.run();
              }),
              "nothing to resume", "checkpoint.bin");
  run.o.resume = false;
  run.run(2);
  CHECK_NAMES(message_of([&] { run.run(); }), "exists", "--resume", "--overwrite");
  run.o.resume = true;
  run.o.width = 32;
  CHECK_NAMES(message_of([&] { run.run(); }), "width = 16", "32");
  run.o.width = 16;
  run.o.data.push_back(run.o.data.front());
  CHECK_NAMES(message_of([&] { run.run(); }), "data_bytes");
  run.o.data.pop_back();
  REQUIRE(run.run());
  run.o.resume = false;
  run.o.overwrite = true;
  REQUIRE(run.run());

  run.o.overwrite = false;
  run.o.output = run.o.data.front();
  CHECK_NAMES(message_of([&] { run.run(); }), "cannot make the output folder");
}

TEST_CASE("smaller batch and fewer steps use two thirds at keep 1/2 and see the same data",
          "[train]") {
  small_run exact, smaller(method::smaller_batch), fewer(method::fewer_steps);
  for (small_run* run : {&exact, &smaller, &fewer}) {
    run->o.keep = 0.5;
    run->o.batch = 6;
    run->o.warmup = 3;
    REQUIRE(run->run());
  }
  CHECK(smaller.o.used_batch() == 4);
  CHECK(smaller.o.used_steps() == 12);
  CHECK(smaller.log().back()["tokens"] == 12 * 4 * 16);
  CHECK(fewer.o.used_batch() == 6);
  CHECK(fewer.o.used_steps() == 8);
  CHECK(fewer.o.used_warmup() == 2);
  CHECK(fewer.log().back()["step"] == 8);
  // The first loss is before any update: of equal weights on equal data.
  CHECK(fewer.log()[1]["loss"] == exact.log()[1]["loss"]);
  // Its own full schedule: down to about a tenth of the peak at its last step.
  double last_rate = 0.0;
  for (const json& line : fewer.log())
    if (line["type"] == "step") last_rate = line["learning_rate"];
  CHECK(last_rate < 0.2 * fewer.o.learning_rate);
}

TEST_CASE("frozen experts stop changing after the warm-up", "[train]") {
  small_run run(method::frozen_experts);
  run.o.warmup = 4;
  const auto experts_after = [&](std::int64_t step) {
    run.run(step);
    run.o.resume = true;
    const trainer t(run.o);
    std::vector<float> values;
    for (const parameter& p : t.parameters())
      if (p.name == "block0.moe.down") values.assign(p.value.data(), p.value.data() + p.size());
    CHECK(values.size() == 6 * 8 * 16);
    return values;
  };
  const auto start = experts_after(1), warm = experts_after(4), end = experts_after(12);
  CHECK(start != warm);
  CHECK(warm == end);
}

TEST_CASE("bad usage is exit code 2 and help is 0", "[train]") {
  const auto code = [](std::vector<std::string> words) {
    words.insert(words.begin(), "lrmoe_train");
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    options o;
    command_line flags(o);
    return flags.parse(static_cast<int>(arguments.size()), arguments.data(), o);
  };
  CHECK(code({"--data", "a", "--output", "b"}) == -1);
  CHECK(code({"--help"}) == 0);
  CHECK(code({"--version"}) == 0);
  CHECK(code({}) == 2);
  CHECK(code({"--data", "a"}) == 2);
  CHECK(code({"--data", "a", "--plan-only"}) == -1);
  CHECK(code({"--data", "a", "--output", "b", "--backend", "host"}) == -1);
  CHECK(code({"--data", "a", "--output", "b", "--backend", "gpu"}) == 2);
#if LRMOE_HAS_CUDA_BACKEND
  CHECK(code({"--data", "a", "--output", "b", "--backend", "cuda"}) == -1);
#else
  CHECK(code({"--data", "a", "--output", "b", "--backend", "cuda"}) == 2);
  options cuda;
  cuda.backend = backend_choice::cuda;
  CHECK_NAMES(conflict(cuda), "--backend cuda", "scripts/bootstrap --cuda", "cuda-release");
  CHECK_NAMES(message_of([&] { place_of(cuda.backend); }), "--backend cuda", "cuda-release");
#endif
  CHECK(code({"--data", "a", "--plan-only", "--memory-budget", "2GiB", "--link", "1250MB"}) == -1);
  for (const auto& [flag, value] :
       std::vector<std::pair<std::string, std::string>>{{"--keep", "0"},
                                                        {"--keep", "1.01"},
                                                        {"--keep", "nan"},
                                                        {"--method", "magic"},
                                                        {"--steps", "0"},
                                                        {"--steps", "many"},
                                                        {"--heads", "3"},
                                                        {"--top-k", "17"},
                                                        {"--warmup", "300"},
                                                        {"--memory-budget", "-1"},
                                                        {"--memory-budget", "999999999999TB"},
                                                        {"--link", "-5"},
                                                        {"--link", "nan"},
                                                        {"--epsilon", "-1"},
                                                        {"--epsilon", "nan"},
                                                        {"--noise-weight", "2"},
                                                        {"--step-budget", "-1"},
                                                        {"--dx-share", "0"},
                                                        {"--dw-share", "1.5"},
                                                        {"--sketch-size", "0"},
                                                        {"--sketch-size", "1025"},
                                                        {"--controller", "memory-network"},
                                                        {"--save", "nothing"},
                                                        {"--no-such-flag", "1"}}) {
    INFO(flag << " " << value);
    CHECK(code({"--data", "a", "--output", "b", flag + "=" + value}) == 2);
  }
}
