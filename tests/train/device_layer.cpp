// MoE layers behind copies: a device whose memory is the host's other half, so that what is copied, when,
// and what ranks exchange are checked bit by bit without a GPU.
#include <string>

#include "catch.hpp"
#include "small_run.hpp"

using namespace train;
using namespace train_test;

namespace {

/// The host's backend as a device of its own.
place_maker copying() {
  return make_place<device_place<lrmoe::openmp::backend<>>>;
}

}  // namespace

TEST_CASE("a layer behind copies trains with the same bits", "[train]") {
  const auto method = GENERATE(method::exact, method::lrmoe, method::frozen_experts);
  const auto saved = GENERATE(lrmoe::saved_activations::save, lrmoe::saved_activations::recompute,
                              lrmoe::saved_activations::proxy);
  INFO(name_of(method_names, method) << ", " << name_of(saved_names, saved));
  small_run direct(method), copied(method);
  for (small_run* run : {&direct, &copied}) {
    run->o.keep = 0.5;
    run->o.saved = saved;
    run->o.warmup = 4;
    run->layers = run == &copied ? copying() : nullptr;
    REQUIRE(run->run());
  }
  CHECK(copied.trajectory() == direct.trajectory());
  CHECK(copied.tensors() == direct.tensors());
  CHECK(copied.of_steps("balance_loss") == direct.of_steps("balance_loss"));
}

TEST_CASE("ranks whose rows are on devices train with the same bits while experts move",
          "[train]") {
  // Validation has fewer sequences than some of these have ranks: then some have no rows.
  const std::int64_t ranks = GENERATE(2, 3, 8);
  const std::string planner = GENERATE("static", "lrmoe", "flexmoe");
  INFO(ranks << " ranks, planner " << planner);
  small_run direct(method::lrmoe), copied(method::lrmoe);
  for (small_run* run : {&direct, &copied}) {
    run->o.keep = 0.5;
    run->o.batch = 8;
    run->o.ranks = ranks;
    run->o.planner = planner;
    run->o.sharded_state = true;
    run->layers = run == &copied ? copying() : nullptr;
    REQUIRE(run->run());
  }
  CHECK(copied.trajectory() == direct.trajectory());
  CHECK(copied.tensors() == direct.tensors());
  for (const char* key : {"rank_pairs", "rank_pairs_kept", "rank_bytes_sent"}) {
    const auto a = direct.log(), b = copied.log();
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (a[i]["type"] == "step") CHECK(a[i][key] == b[i][key]);
    }
  }
}

TEST_CASE("a checkpoint of the host continues on a device, and back", "[train]") {
  small_run whole(method::lrmoe), parts(method::lrmoe);
  for (small_run* run : {&whole, &parts}) {
    run->o.keep = 0.5;
    run->o.controller = controller_choice::error_bounded;  // remembers
  }
  REQUIRE(whole.run());
  CHECK_FALSE(parts.run(4));
  parts.o.resume = true;
  parts.layers = copying();
  CHECK_FALSE(parts.run(8));
  parts.layers = nullptr;
  REQUIRE(parts.run());
  CHECK(parts.trajectory() == whole.trajectory());
  CHECK(parts.tensors() == whole.tensors());
}

TEST_CASE("a memory budget is of the device, where the optimizer's state is not", "[train]") {
  small_run free, tight(method::lrmoe), on_host;
  free.layers = tight.layers = copying();
  REQUIRE(free.run());
  REQUIRE(on_host.run());
  const std::int64_t needed = free.log().back()["moe_peak_bytes"];
  CHECK(needed < on_host.log().back()["moe_peak_bytes"].get<std::int64_t>());
  tight.o.keep = 1.0;
  tight.o.memory_budget_bytes = static_cast<std::uint64_t>(needed - 4000);
  REQUIRE(tight.run());
  CHECK(tight.log().back()["moe_peak_bytes"] <= needed - 4000);
  for (const double kept : tight.of_steps("kept_fraction")) {
    CHECK(kept < 1.0);
    CHECK(kept > 0.1);
  }
}
