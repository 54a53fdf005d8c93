// Training on several ranks of one process: the same losses, and checkpoints that fit any number.
#include <cmath>
#include <string>

#include "catch.hpp"
#include "small_run.hpp"

using namespace train;
using namespace train_test;

namespace {

struct ranks_run : small_run {
  explicit ranks_run(std::int64_t ranks, const std::string& planner = "static",
                     bool sharded = false) {
    o.ranks = ranks;
    o.planner = planner;
    o.sharded_state = sharded;
    o.batch = 8;
  }
};

/// Losses, and norms of the gradient, of a run with every pair kept.
std::vector<double> losses(const small_run& run) {
  std::vector<double> values;
  for (const json& line : run.log()) {
    if (line["type"] == "step") {
      values.push_back(line["loss"]);
      values.push_back(line["gradient_norm"]);
    }
    if (line["type"] == "validation") values.push_back(line["val_loss"]);
  }
  return values;
}

}  // namespace

TEST_CASE("exact training loses and gains the same on any number of ranks", "[train]") {
  const ranks_run alone(1);
  CHECK(alone.run());
  const std::vector<double> expected = losses(alone);
  REQUIRE(expected.size() > 24);
  const auto check = [&](const small_run& run) {
    INFO("ranks " << run.o.ranks << ", planner " << run.o.planner);
    CHECK(run.run());
    const std::vector<double> found = losses(run);
    REQUIRE(found.size() == expected.size());
    // Sums in another order differ by a few ulps, which 12 steps of training may enlarge.
    for (std::size_t i = 0; i < found.size(); ++i)
      CHECK(std::abs(found[i] - expected[i]) <= 2e-4 * std::abs(expected[i]));
  };
  for (const std::int64_t ranks : {2, 3, 8}) {
    check(ranks_run(ranks));
    check(ranks_run(ranks, "static", true));
  }
  for (const auto& planner : lrmoe::all_planners()) {
    check(ranks_run(3, std::string(planner.attributes().name), true));
  }
}

TEST_CASE("a run on ranks repeats bit for bit, and says what each rank did", "[train]") {
  ranks_run one(3, "lrmoe", true), two(3, "lrmoe", true);
  for (ranks_run* run : {&one, &two}) {
    run->o.method = method::lrmoe;
    run->o.keep = 0.5;
    CHECK(run->run());
  }
  CHECK(one.trajectory() == two.trajectory());
  CHECK(one.tensors() == two.tensors());
  for (const json& line : one.log()) {
    if (line["type"] != "step") continue;
    std::int64_t pairs = 0, kept = 0;
    for (const std::int64_t n : line["rank_pairs"]) pairs += n;
    for (const std::int64_t n : line["rank_pairs_kept"]) kept += n;
    CHECK(pairs == 8 * 16 * 2 * 2);  // batch, context, top-k, layers
    CHECK(static_cast<double>(kept) == Approx(line["kept_fraction"].get<double>() * pairs));
    CHECK(line["rank_bytes_sent"].size() == 3);
    CHECK(line["rank_moe_ms"].size() == 3);
  }
}

TEST_CASE("a checkpoint of eight ranks continues on three, two and one with the same bits",
          "[train]") {
  const ranks_run written(8, "lrmoe", true);
  CHECK(!written.run(6));
  for (const std::int64_t ranks : {3, 2, 1}) {
    INFO("ranks " << ranks);
    ranks_run read(ranks);
    set_content(read.o.data[0], small_text());
    std::filesystem::create_directories(read.o.output);
    for (const char* file : {"/checkpoint.bin", "/log.jsonl"})
      std::filesystem::copy(written.o.output + file, read.o.output + file);
    read.o.resume = true;
    CHECK(!read.run(6));  // nothing to do but to write it again
    CHECK(read.tensors() == written.tensors());
    CHECK(read.run());
  }
}

TEST_CASE("a trace holds the counts of the last steps of every layer", "[train]") {
  ranks_run run(2);
  run.o.record_routing = run.place.path + "/trace.json";
  run.o.record_steps = 3;
  CHECK(run.run());
  const auto trace = bench::routing_trace::read(run.o.record_routing);
  CHECK(trace.R == 2);
  CHECK(trace.layers == 2);
  REQUIRE(trace.calls.size() == 3 * 2);
  for (const auto& call : trace.calls) {
    std::int64_t pairs = 0;
    for (const auto n : call) pairs += n;
    CHECK(pairs == 8 * 16 * 2);
  }
}

TEST_CASE("what fails on one rank ends the run on all with the cause", "[train]") {
  ranks_run nowhere(3);
  nowhere.o.output = "/dev/null/nowhere";
  CHECK(message_of([&] { nowhere.run(); }).find("cannot make the output folder") !=
        std::string::npos);
  ranks_run nothing(3);
  nothing.o.resume = true;
  CHECK(message_of([&] { nothing.run(); }).find("nothing to resume") != std::string::npos);
}
