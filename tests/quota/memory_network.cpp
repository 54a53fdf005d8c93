#include <limits>

#include <lrmoe/quota/error_bounded.hpp>
#include <lrmoe/quota/fixed_fraction.hpp>
#include <lrmoe/quota/memory_network.hpp>
#include <lrmoe/quota/peak_capped.hpp>

#include "catch.hpp"
#include "requests.hpp"

using requests::counts_type;

namespace {

/// Message of the memory_error that assigning throws; empty if it throws none.
template <class Policy>
std::string memory_refusal(requests::problem& problem, const Policy& policy) {
  try {
    problem.assigned(policy);
  } catch (const lrmoe::memory_error& failure) {
    return failure.what();
  }
  return {};
}

/// Whether every rank keeps its limits with the final shares of sources.
bool within_limits(const requests::problem& of, const counts_type& quotas, double step_s) {
  const auto time = requests::times(of, quotas, true);
  for (std::int64_t r = 0; r < of.R; ++r) {
    const auto& rank = of.ranks[static_cast<std::size_t>(r)];
    std::int64_t kept = 0;
    for (std::size_t e = 0; e < quotas.size(); ++e) kept += of.home[e] == r ? quotas[e] : 0;
    if (rank.fixed_bytes + of.pair.bytes * kept > rank.available_bytes) return false;
    if (step_s > 0 && time[static_cast<std::size_t>(r)] > step_s * (1 + 1e-12)) return false;
  }
  return true;
}

/// Kept fractions in ascending order.
std::vector<double> fractions(const counts_type& quotas, const counts_type& wanted) {
  std::vector<double> result;
  for (std::size_t e = 0; e < quotas.size(); ++e) {
    if (wanted[e] > 0) result.push_back(static_cast<double>(quotas[e]) / wanted[e]);
  }
  std::sort(result.begin(), result.end());
  return result;
}

void set_memory(requests::problem& of, std::vector<std::int64_t> rooms, std::int64_t bytes) {
  of.pair.bytes = bytes;
  of.ranks.resize(rooms.size());
  for (std::size_t r = 0; r < rooms.size(); ++r) {
    of.ranks[r].fixed_bytes = 1000;
    // Some bytes that are not enough for another pair.
    of.ranks[r].available_bytes = 1000 + rooms[r] * bytes + bytes / 2;
  }
}

}  // namespace

TEST_CASE("memory is shared in proportion to what experts want", "[quota]") {
  auto problem = requests::on_one_rank({100, 0, 300, 200});
  set_memory(problem, {300}, 10);
  CHECK(problem.assigned(lrmoe::memory_network<>{}) == counts_type{50, 0, 150, 100});
  // 301 pairs: of equal fractions the smallest expert goes first.
  set_memory(problem, {301}, 10);
  CHECK(problem.assigned(lrmoe::memory_network<>{}) == counts_type{51, 0, 150, 100});
  set_memory(problem, {600}, 10);
  CHECK(problem.assigned(lrmoe::memory_network<>{}) == counts_type{100, 0, 300, 200});
  set_memory(problem, {3}, 10);
  CHECK(problem.assigned(lrmoe::memory_network<>{}) == counts_type{1, 0, 1, 1});
}

TEST_CASE("only ranks that are short of memory keep less", "[quota]") {
  requests::problem problem;
  problem.R = 2;
  problem.home = {0, 1, 0, 1};
  problem.source_counts = {10, 20, 30, 40, 10, 20, 30, 40};
  set_memory(problem, {40, 1000}, 7);
  CHECK(problem.assigned(lrmoe::memory_network<>{}) == counts_type{10, 40, 30, 80});
}

TEST_CASE("a time budget counts computing and both ends of every link", "[quota]") {
  // Half of each expert's pairs come from the other rank. With 60 kept pairs of each expert a rank
  // computes 60 at 1 s, receives 30 and sends 30 at 2 s.
  requests::problem problem;
  problem.R = 2;
  problem.home = {0, 1};
  problem.source_counts = {50, 50, 50, 50};
  problem.pair = {.s = 1, .remote_s = 2, .bytes = 0};
  problem.ranks = {{.fixed_s = 20}, {.fixed_s = 20}};
  CHECK(problem.assigned(lrmoe::memory_network<>{{}, 200}) == counts_type{60, 60});
  CHECK(problem.assigned(lrmoe::memory_network<>{{}, 1000}) == counts_type{100, 100});
  problem.pair.remote_s = 0;
  CHECK(problem.assigned(lrmoe::memory_network<>{{}, 50}) == counts_type{30, 30});
}

TEST_CASE("limits lower another policy's quotas", "[quota]") {
  auto problem = requests::on_one_rank({100, 300});
  set_memory(problem, {40}, 1);
  using half = lrmoe::memory_network<lrmoe::fixed_fraction>;
  CHECK(problem.assigned(half{{0.5}, 0}) == counts_type{10, 30});
  set_memory(problem, {4000}, 1);
  CHECK(problem.assigned(half{{0.5}, 0}) == counts_type{50, 150});
  CHECK(lrmoe::memory_network<lrmoe::peak_capped<lrmoe::error_bounded>>{}.uses_history());
}

TEST_CASE("an expert with pairs whose inner quota is zero stays at zero", "[quota]") {
  struct second_only {
    void validate() const {}
    static constexpr bool uses_history() { return false; }
    void assign(const lrmoe::quota_request& request, std::span<lrmoe::index_type> quotas) const {
      quotas[0] = 0;
      quotas[1] = request.counts[1];
    }
  };
  auto problem = requests::on_one_rank({100, 300});
  set_memory(problem, {40}, 1);
  CHECK(problem.assigned(lrmoe::memory_network<second_only>{}) == counts_type{0, 40});
  problem.pair = {.s = 1, .remote_s = 1, .bytes = 1};
  problem.R = 2;
  problem.source_counts = {100, 300, 0, 0};
  set_memory(problem, {50, 50}, 1);
  CHECK(problem.assigned(lrmoe::memory_network<second_only>{{}, 30}) == counts_type{0, 30});
}

TEST_CASE("limits hold on every rank, with final shares, and are used", "[quota]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (int round = 0; round < 150; ++round) {
    const auto R = draw.integer(1, 8);
    auto problem = requests::random_problem(draw, R, draw.integer(1, 24), 300);
    const bool linked = draw.integer(0, 2) != 0;
    problem.pair = {.s = draw.uniform(0, 2),
                    .remote_s = linked ? draw.uniform(0, 3) : 0.0,
                    .bytes = draw.integer(0, 3) * 100};
    for (auto& rank : problem.ranks) {
      rank.fixed_s = draw.uniform(0, 5);
      rank.fixed_bytes = draw.integer(0, 1000);
      rank.available_bytes = rank.fixed_bytes + 300 * 24 + draw.integer(0, 100000);
    }
    const double step_s = draw.integer(0, 3) == 0 ? 0.0 : draw.uniform(150, 3000);
    const lrmoe::memory_network<> policy{{}, step_s};
    counts_type quotas;
    try {
      quotas = problem.assigned(policy);
    } catch (const lrmoe::argument_error&) {
      // Then even one pair of each expert is too much.
      counts_type least;
      for (const auto L : problem.counts) least.push_back(std::min(L, 1));
      CHECK_FALSE(within_limits(problem, least, step_s));
      continue;
    }
    REQUIRE(requests::lawful(quotas, problem.counts));
    CHECK(within_limits(problem, quotas, step_s));
    if (problem.pair.remote_s > 0) continue;
    // Without links no single pair more fits.
    for (std::size_t e = 0; e < quotas.size(); ++e) {
      if (quotas[e] == problem.counts[e]) continue;
      ++quotas[e];
      CHECK_FALSE(within_limits(problem, quotas, step_s * (1 - 1e-9)));
      --quotas[e];
    }
  }
}

TEST_CASE("no quotas within memory and computing time are more even, as enumeration shows",
          "[quota]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (int round = 0; round < 150; ++round) {
    auto problem = requests::random_problem(draw, 2, draw.integer(1, 5), 5);
    problem.pair.s = 1;
    set_memory(problem, {draw.integer(5, 20), draw.integer(5, 20)}, 16);
    const double step_s = draw.integer(0, 1) == 0 ? 0.0 : draw.uniform(5, 20);
    const auto quotas = problem.assigned(lrmoe::memory_network<>{{}, step_s});
    CHECK(within_limits(problem, quotas, step_s));
    std::vector<double> best;
    requests::for_all_quotas(problem.counts, [&](const counts_type& tried) {
      if (within_limits(problem, tried, step_s)) {
        best = std::max(best, fractions(tried, problem.counts));
      }
    });
    CHECK(fractions(quotas, problem.counts) == best);
  }
}

TEST_CASE("quotas under link limits are as even as enumeration finds, up to whole shares",
          "[quota]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  int exact = 0, rounds = 0;
  for (int round = 0; round < 150; ++round) {
    auto problem = requests::random_problem(draw, 2, 3, 0);
    // Different primes, so that no two fractions but 0 and 1 are equal.
    const counts_type primes{7, 11, 13};
    for (std::size_t e = 0; e < 3; ++e) {
      problem.source_counts[e] = static_cast<lrmoe::index_type>(draw.integer(0, primes[e]));
      problem.source_counts[3 + e] = primes[e] - problem.source_counts[e];
    }
    problem.pair = {.s = draw.uniform(0.1, 1), .remote_s = draw.uniform(0.1, 1), .bytes = 16};
    set_memory(problem, {draw.integer(6, 30), draw.integer(6, 30)}, 16);
    const double step_s = draw.uniform(8, 25);
    const auto quotas = problem.assigned(lrmoe::memory_network<>{{}, step_s});
    REQUIRE(within_limits(problem, quotas, step_s));
    // Sources in proportion to their pairs; with less to spend where whole shares may load more.
    const auto best_within = [&](double budget) {
      std::vector<double> best;
      requests::for_all_quotas(problem.counts, [&](const counts_type& tried) {
        const auto time = requests::times(problem, tried, false);
        if (within_limits(problem, tried, 0) && std::max(time[0], time[1]) <= budget) {
          best = std::max(best, fractions(tried, problem.counts));
        }
      });
      return best;
    };
    const auto mine = fractions(quotas, problem.counts);
    ++rounds;
    exact += mine == best_within(step_s) ? 1 : 0;
    // A share is off by less than 1 pair at each of 3 experts, and rounds make up for it in steps.
    CHECK(mine >= best_within(step_s - 6 * problem.pair.remote_s));
  }
  CHECK(exact >= rounds / 3);
}

TEST_CASE("what does not fit is refused with what is needed, available and to be done", "[quota]") {
  auto problem = requests::on_one_rank({100, 0, 300, 200});
  set_memory(problem, {2}, 10);
  CHECK(fixture::names(memory_refusal(problem, lrmoe::memory_network<>{}),
                       {"rank 0 needs 1030 bytes", "1000 whatever is kept", "3 experts",
                        "Available are 1025", "raise the memory budget"}));
  problem.ranks[0] = {.fixed_bytes = 500, .available_bytes = 0};
  CHECK(fixture::names(memory_refusal(problem, lrmoe::memory_network<>{}),
                       {"needs 530 bytes", "Available are 0"}));

  problem.ranks[0] = {.fixed_s = 2};
  problem.pair = {.s = 1, .remote_s = 0, .bytes = 0};
  const auto refused = [&](double step_s) {
    return fixture::refusal([&] { problem.assigned(lrmoe::memory_network<>{{}, step_s}); });
  };
  CHECK(fixture::names(refused(4.5), {"rank 0 needs 5 s", "step_s = 4.5", "raise it"}));
  CHECK(fixture::names(refused(1.0), {"needs 5 s", "2 whatever is kept"}));
  CHECK(refused(5.0).empty());

  requests::problem far;
  far.R = 2;
  far.home = {0, 1};
  far.source_counts = {0, 9, 9, 0};
  far.pair = {.s = 1, .remote_s = 2, .bytes = 0};
  CHECK(fixture::names(fixture::refusal([&] {
                         far.assigned(lrmoe::memory_network<>{{}, 4.9});
                       }),
                       {"rank 0 needs 5 s", "step_s = 4.9"}));
  CHECK(far.assigned(lrmoe::memory_network<>{{}, 5.0}) == counts_type{1, 1});
}

TEST_CASE("budgets and costs out of range are refused by name", "[quota]") {
  for (const double step_s : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    CHECK(fixture::names(fixture::refusal([&] {
                           lrmoe::memory_network<>{{}, step_s}.validate();
                         }),
                         {"step_s = ", "at least 0"}));
  }
  const auto refused = [](lrmoe::pair_cost pair, lrmoe::rank_cost rank) {
    auto problem = requests::on_one_rank({5});
    problem.pair = pair;
    problem.ranks = {rank};
    return fixture::refusal([&] { problem.assigned(lrmoe::memory_network<>{{}, 1}); });
  };
  CHECK(fixture::names(refused({.s = -1, .remote_s = 0, .bytes = 0}, {}), {"costs", "-1 s"}));
  CHECK(fixture::names(refused({.s = 0, .remote_s = std::nan(""), .bytes = 0}, {}), {"nan s"}));
  CHECK(fixture::names(refused({.s = 0, .remote_s = 0, .bytes = -5}, {}), {"-5 bytes"}));
  CHECK(fixture::names(refused({}, {.fixed_s = std::nan("")}), {"nan s"}));
  CHECK(fixture::names(refused({}, {.available_bytes = -1}), {"-1 bytes"}));
}
