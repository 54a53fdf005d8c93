// The trainer's controllers, budgets and what a continued run remembers.
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include "calibration.hpp"
#include "catch.hpp"
#include "noise_scale.hpp"
#include "small_run.hpp"

using namespace train;
using namespace train_test;

namespace {

std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& failure) {
    return failure.what();
  }
  return {};
}

bool holds(const std::string& text, const std::string& part) {
  INFO("\"" << part << "\" in: " << text);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("every controller trains, keeps some pairs of all, and continues bit by bit", "[train]") {
  for (const auto& [name, controller] : controller_names) {
    INFO(name);
    small_run whole(method::lrmoe), parts(method::lrmoe);
    for (small_run* one : {&whole, &parts}) {
      one->o.controller = controller;
      one->o.keep = 0.5;
      one->o.epsilon = 0.5;
      if (controller == controller_choice::memory_network) one->o.step_budget_ms = 1e6;
    }
    REQUIRE(whole.run());
    CHECK_FALSE(parts.run(5));
    parts.o.resume = true;
    REQUIRE(parts.run());
    CHECK(parts.trajectory() == whole.trajectory());
    CHECK(whole.log().back()["final_val_loss"] < 5.0);
  }
}

TEST_CASE("a rule from history keeps all at first, then what it is asked for", "[train]") {
  small_run run(method::lrmoe);
  run.o.controller = controller_choice::error_bounded;
  run.o.epsilon = 0.5;
  REQUIRE(run.run());
  const auto log = run.log();
  double first = 0.0, last = 0.0, noise = 0.0;
  for (const json& line : log)
    if (line["type"] == "step") {
      if (line["step"] == 1) first = line["kept_fraction"];
      last = line["kept_fraction"];
      noise = line["noise_ratio"];
    }
  CHECK(first == 1.0);
  CHECK(last < 0.95);
  CHECK(noise > 0.1);
  CHECK(noise < 2.0);

  small_run shared(method::lrmoe);
  shared.o.controller = controller_choice::shared_threshold;
  shared.o.keep = 0.5;
  REQUIRE(shared.run());
  for (const json& line : shared.log())
    if (line["type"] == "step") CHECK(line["kept_fraction"] == Approx(0.5).margin(0.03));
}

TEST_CASE("a memory budget caps what is kept, and one that cannot be met is refused", "[train]") {
  small_run free(method::lrmoe);
  free.o.keep = 1.0;
  REQUIRE(free.run());
  const std::int64_t needed = free.log().back()["moe_peak_bytes"];

  small_run tight(method::lrmoe);
  tight.o.keep = 1.0;
  // What can be saved are [dg du] and a few numbers of the pairs that are dropped.
  tight.o.memory_budget_bytes = static_cast<std::uint64_t>(needed - 4000);
  REQUIRE(tight.run());
  CHECK(tight.log().back()["moe_peak_bytes"] <= needed - 4000);
  for (const json& line : tight.log())
    if (line["type"] == "step") {
      CHECK(line["kept_fraction"] < 0.9);
      CHECK(line["kept_fraction"] > 0.1);
    }

  small_run impossible(method::lrmoe);
  impossible.o.memory_budget_bytes = 1000;
  const std::string message = refusal_of([&] { impossible.run(); });
  holds(message, "1000");
  CHECK_FALSE(std::filesystem::exists(impossible.o.output + "/checkpoint.bin"));
}

TEST_CASE("what forward saves and which gradients use the kept pairs are flags", "[train]") {
  std::vector<double> losses;
  for (const auto saved : {lrmoe::saved_activations::save, lrmoe::saved_activations::recompute}) {
    small_run run(method::lrmoe);
    run.o.keep = 0.5;
    run.o.saved = saved;
    REQUIRE(run.run());
    losses.push_back(run.log().back()["final_val_loss"]);
  }
  CHECK(losses[0] == Approx(losses[1]).epsilon(1e-4));
  small_run scoped(method::lrmoe);
  scoped.o.keep = 0.8;
  scoped.o.saved = lrmoe::saved_activations::proxy;
  scoped.o.dw_share = 0.5;
  scoped.o.router_gradient = lrmoe::router_gradient::exact;
  REQUIRE(scoped.run());
  CHECK(scoped.log().back()["final_val_loss"] < 5.0);
}

TEST_CASE("a calibration is read whole, and refused when missing, damaged or of another machine",
          "[train]") {
  temporary_folder place;
  const std::string path = place.path + "/rates.json";
  holds(refusal_of([&] { read_calibration(path); }), "lrmoe_calibrate");
  bench::json good{{"machine", bench::host_machine()},
                   {"rates",
                    {{"product_flops_per_s", 3e9},
                     {"product_half_width", 10.0},
                     {"memory_bytes_per_s", 4e9},
                     {"inside", {{"bytes_per_s", 5e9}, {"latency_s", 1e-6}}},
                     {"across", {{"bytes_per_s", 6e9}, {"latency_s", 2e-6}}},
                     {"ranks_per_node", 8}}}};
  const auto write = [&](const bench::json& document) { std::ofstream(path) << document.dump(); };
  write(good);
  const auto rates = read_calibration(path);
  CHECK(rates.product_flops_per_s == 3e9);
  CHECK(rates.product_half_width == 10.0);
  CHECK(rates.memory_bytes_per_s == 4e9);
  CHECK(rates.inside.bytes_per_s == 5e9);
  CHECK(rates.across.latency_s == 2e-6);
  CHECK(rates.ranks_per_node == 8);
  for (const char* key : {"product_flops_per_s", "inside", "ranks_per_node"}) {
    bench::json damaged = good;
    damaged["rates"].erase(key);
    write(damaged);
    holds(refusal_of([&] { read_calibration(path); }), "damaged");
  }
  bench::json negative = good;
  negative["rates"]["memory_bytes_per_s"] = -1.0;
  write(negative);
  holds(refusal_of([&] { read_calibration(path); }), "memory_bytes_per_s = -1");
  std::ofstream(path) << "{\"rates\": ";
  holds(refusal_of([&] { read_calibration(path); }), "damaged");
  bench::json elsewhere = good;
  elsewhere["machine"]["cores"] = 1000000;
  write(elsewhere);
  holds(refusal_of([&] { read_calibration(path); }), "another machine");
}

TEST_CASE("the noise scale is that of independent contributions", "[train]") {
  // n contributions with mean m and variance s^2 in each of d coordinates, summed: S / ||g||^2 is
  // n d (m^2 + s^2) over d n^2 m^2, up to the m^2 of single contributions.
  std::mt19937_64 engine(7);
  std::normal_distribution<double> normal;
  constexpr int n = 64, d = 50;
  constexpr double m = 0.2, s = 1.0;
  noise_scale scale;
  for (int step = 0; step < 2000; ++step) {
    double total = 0.0, squares = 0.0;
    for (int i = 0; i < d; ++i) {
      double sum = 0.0;
      for (int p = 0; p < n; ++p) {
        const double z = m + s * normal(engine);
        sum += z;
        squares += z * z;
      }
      total += sum * sum;
    }
    lrmoe::certificate certified;
    certified.score_total = squares;
    scale.add(certified, total);
  }
  const double expected = 1000.0 * n * (m * m + s * s) / (n * (n - 1.0) * m * m);
  CHECK(scale.tokens(1000) == Approx(expected).epsilon(0.1));
  CHECK(scale.relative_error() == 0.0);
  noise_scale copy;
  copy.restore(scale.state());
  CHECK(copy.tokens(1000) == scale.tokens(1000));
}
