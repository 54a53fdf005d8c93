#include <atomic>
#include <set>

#include <lrmoe/exchange/logical.hpp>

#include "laws.hpp"

namespace {

using laws::int64_t;
using lrmoe::logical::communicator;
using lrmoe::logical::world;

constexpr int sizes_tested[] = {1, 2, 3, 8, 64};

/// Messages of the errors that the ranks of a failing run see; empty for a rank that sees none.
template <class Program>
std::vector<std::string> errors_of(int R, const Program& program) {
  std::vector<std::string> messages(static_cast<std::size_t>(R));
  world ranks(R);
  try {
    ranks.run([&](communicator& own) {
      try {
        program(own);
      } catch (const std::exception& failure) {
        messages[static_cast<std::size_t>(own.rank())] = failure.what();
        throw;
      }
    });
  } catch (const std::exception&) {
  }
  return messages;
}

void gather_one(communicator& ranks) {
  std::vector<int> all(static_cast<std::size_t>(ranks.size()));
  lrmoe::all_gather(ranks, ranks.rank(), std::span(all));
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("logical ranks obey the laws of communicators", "[exchange]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  for (const int R : sizes_tested) {
    world ranks(R);
    CHECK(ranks.size() == R);
    ranks.run([&](communicator& own) {
      laws::all_to_all(own, seed);
      laws::all_gather(own, seed);
      laws::calls_stay_apart(own, seed, R == 64 ? 10 : 60);
      laws::sums(own, seed);
      laws::agreement(own, seed);
      laws::settings(own, seed);
    });
  }
}

TEST_CASE("a world runs again, also after a run that failed", "[exchange]") {
  world ranks(3);
  for (int round = 0; round < 4; ++round) {
    if (round % 2 == 1) {
      CHECK_THROWS_AS(ranks.run([](communicator& own) {
        if (own.rank() == 1) throw std::domain_error("once");
        gather_one(own);
      }),
                      std::domain_error);
    } else {
      int64_t sum = 0;
      ranks.run([&](communicator& own) {
        CHECK(own.bytes_sent() == 0);
        const int64_t mine = lrmoe::sum_over_ranks(own, int64_t{own.rank()});
        if (own.rank() == 2) sum = mine;
      });
      CHECK(sum == 3);
    }
  }
}

TEST_CASE("one logical rank runs at a time, in ascending order", "[exchange]") {
  for (const int R : sizes_tested) {
    std::vector<int> order;  // unguarded: the ranks take turns
    std::atomic<int> running = 0;
    bool alone = true;
    world ranks(R);
    ranks.run([&](communicator& own) {
      for (int phase = 0; phase < 3; ++phase) {
        alone = alone && ++running == 1;
        order.push_back(phase * R + own.rank());
        std::this_thread::yield();
        --running;
        gather_one(own);
      }
    });
    std::vector<int> expected(static_cast<std::size_t>(3 * R));
    std::iota(expected.begin(), expected.end(), 0);
    CHECK(alone);
    CHECK(order == expected);
  }
}

TEST_CASE("kernels launched by logical ranks use all threads and give right results",
          "[exchange]") {
  using space_type = laws::space_type;
  for (const int R : {1, 3, 64}) {
    std::vector<std::vector<double>> results(static_cast<std::size_t>(R));
    world ranks(R);
    ranks.run([&](communicator& own) {
      const space_type space;
      CHECK(space.concurrency() == Kokkos::DefaultHostExecutionSpace().concurrency());
      constexpr int64_t n = 20'011;
      const int rank = own.rank();
      const Kokkos::View<int64_t*, Kokkos::HostSpace> values("values", n), before("before", n);
      const Kokkos::RangePolicy<space_type, Kokkos::IndexType<int64_t>> range(space, 0, n);
      for (int phase = 0; phase < 3; ++phase) {
        Kokkos::parallel_for("fill", range, [=](int64_t i) {
          values[static_cast<std::size_t>(i)] = (i * 7 + rank + phase) % 101;
        });
        int64_t sum = 0, total = 0;
        Kokkos::parallel_reduce(
            "sum", range,
            [=](int64_t i, int64_t& into) { into += values[static_cast<std::size_t>(i)]; }, sum);
        Kokkos::parallel_scan(
            "scan", range,
            [=](int64_t i, int64_t& running, bool final) {
              if (final) before[static_cast<std::size_t>(i)] = running;
              running += values[static_cast<std::size_t>(i)];
            },
            total);
        gather_one(own);
        int64_t expected = 0, wrong = 0;
        for (int64_t i = 0; i < n; ++i) {
          wrong += before[static_cast<std::size_t>(i)] != expected;
          expected += (i * 7 + rank + phase) % 101;
        }
        CHECK(wrong == 0);
        CHECK(sum == expected);
        CHECK(total == expected);
      }
      // Team scratch comes from a pool that all launches share.
      double of_teams = 0.0;
      Kokkos::parallel_reduce(
          "teams", Kokkos::TeamPolicy<space_type>(space, 17, Kokkos::AUTO),
          [=](const Kokkos::TeamPolicy<space_type>::member_type& team, double& into) {
            double row = 0.0;
            Kokkos::parallel_reduce(
                Kokkos::TeamThreadRange(team, 100),
                [=](int i, double& part) { part += i * team.league_rank(); }, row);
            Kokkos::single(Kokkos::PerTeam(team), [&] { into += row; });
          },
          of_teams);
      CHECK(of_teams == 4950.0 * 136.0);
    });
  }
}

TEST_CASE("a logical rank's working time counts neither the others' nor the exchange",
          "[exchange]") {
  world ranks(3);
  std::vector<double> busy(3);
  const auto sleep_ms = [](int time) {
    std::this_thread::sleep_for(std::chrono::milliseconds(time));
  };
  ranks.run([&](communicator& own) {
    for (int phase = 0; phase < 2; ++phase) {
      if (own.rank() == 1) sleep_ms(100);
      gather_one(own);
    }
    busy[static_cast<std::size_t>(own.rank())] = own.busy_s();
  });
  CHECK(busy[1] >= 0.2);
  CHECK(busy[0] < 0.1);
  CHECK(busy[2] < 0.1);
}

TEST_CASE("a logical rank that fails or leaves is named to all that wait for it", "[exchange]") {
  for (const int R : {2, 3, 8}) {
    for (int culprit = 0; culprit < R; ++culprit) {
      for (const bool throws : {true, false}) {
        const auto messages = errors_of(R, [&](communicator& own) {
          gather_one(own);
          if (own.rank() == culprit) {
            if (throws) throw std::runtime_error("disk full");
            return;
          }
          gather_one(own);
          gather_one(own);
        });
        const std::string name = "rank " + std::to_string(culprit);
        for (int r = 0; r < R; ++r) {
          INFO("R " << R << ", culprit " << culprit << ", rank " << r);
          const std::string& message = messages[static_cast<std::size_t>(r)];
          if (r == culprit) {
            CHECK(message == (throws ? "disk full" : ""));
          } else {
            CHECK(contains(message, throws ? name + " failed: disk full" : name + " returned"));
          }
        }
      }
    }
  }
}

TEST_CASE("a failing run throws its cause and not what followed from it", "[exchange]") {
  world ranks(4);
  const auto run = [&](std::set<int> fail) {
    ranks.run([&](communicator& own) {
      if (fail.contains(own.rank())) throw std::out_of_range(std::to_string(own.rank()));
      gather_one(own);
    });
  };
  for (const auto& [fail, cause] :
       {std::pair{std::set<int>{3}, "3"}, std::pair{std::set<int>{1, 2}, "1"}}) {
    std::string message;
    try {
      run(fail);
    } catch (const std::out_of_range& failure) {
      message = failure.what();
    }
    CHECK(message == cause);
  }
  // Without a cause of its own anywhere, what the lowest rank saw.
  CHECK_THROWS_AS(ranks.run([](communicator& own) {
    if (own.rank() != 2) gather_one(own);
  }),
                  lrmoe::rank_error);
}

TEST_CASE("a communicator that failed refuses further use", "[exchange]") {
  world ranks(2);
  bool refused = false;
  CHECK_THROWS_AS(ranks.run([&](communicator& own) {
    if (own.rank() == 1) throw std::domain_error("cause");
    CHECK_THROWS_AS(gather_one(own), lrmoe::rank_error);
    CHECK_THROWS_AS(gather_one(own), lrmoe::rank_error);
    refused = true;
  }),
                  std::domain_error);
  CHECK(refused);
}

TEST_CASE("a step that failed throws its own exception where no agreement is possible any more",
          "[exchange]") {
  const auto messages = errors_of(3, [](communicator& own) {
    if (own.rank() == 1) return;
    lrmoe::agree(own, [&] {
      if (own.rank() == 2) throw std::domain_error("mine");
    });
  });
  CHECK(contains(messages[0], "rank 1 returned"));
  CHECK(messages[1].empty());
  CHECK(messages[2] == "mine");
}

TEST_CASE("logical ranks in different operations or with different sizes are told the numbers",
          "[exchange]") {
  constexpr int R = 3;
  std::vector<std::byte> send(100), receive(100);
  const auto all_to_all = [&](communicator& own, const laws::size_matrix& sent,
                              const laws::size_matrix& expected) {
    std::vector<int64_t> send_offsets{0}, receive_offsets{0};
    for (int r = 0; r < R; ++r) {
      send_offsets.push_back(send_offsets.back() +
                             sent[static_cast<std::size_t>(own.rank() * R + r)]);
      receive_offsets.push_back(receive_offsets.back() +
                                expected[static_cast<std::size_t>(r * R + own.rank())]);
    }
    own.all_to_all(laws::space_type(), send.data(), send_offsets, receive.data(), receive_offsets);
  };
  const laws::size_matrix equal(R * R, 4);
  laws::size_matrix other = equal;
  other[1 * R + 2] = 7;
  const auto check = [](const std::vector<std::string>& messages, const std::string& text) {
    for (const std::string& message : messages) {
      INFO(message);
      CHECK(contains(message, text));
    }
  };
  check(errors_of(R, [&](communicator& own) { all_to_all(own, other, equal); }),
        "rank 1 sends 7 bytes to rank 2, which expects 4");
  check(errors_of(R, [&](communicator& own) { all_to_all(own, equal, other); }),
        "rank 1 sends 4 bytes to rank 2, which expects 7");
  check(errors_of(R,
                  [&](communicator& own) {
                    if (own.rank() == 1) return gather_one(own);
                    all_to_all(own, equal, equal);
                  }),
        "rank 0 is in all_to_all and rank 1 in all_gather");
  check(errors_of(R,
                  [&](communicator& own) {
                    own.all_gather(send.data(), own.rank() == 2 ? 5 : 6, receive.data());
                  }),
        "rank 0 passes 6 bytes and rank 2 5");
}

TEST_CASE("all_to_all refuses offsets that fall or are too few, on every communicator",
          "[exchange]") {
  std::vector<std::byte> data(100);
  const auto refused = [&](auto& ranks, std::vector<int64_t> from, std::vector<int64_t> to) {
    CHECK_THROWS_AS(ranks.all_to_all(laws::space_type(), data.data(), from, data.data(), to),
                    lrmoe::argument_error);
  };
  const auto check = [&](auto& ranks) {
    refused(ranks, {0, 4, 8}, {0, 4});
    refused(ranks, {0, 4}, {0});
    refused(ranks, {-1, 4}, {0, 5});
    refused(ranks, {4, 0}, {0, 4});
  };
  lrmoe::single_rank alone;
  check(alone);
  refused(alone, {0, 4}, {0, 5});
  world(1).run([&](communicator& own) { check(own); });
}

TEST_CASE("the only rank of a program obeys the laws of communicators", "[exchange]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  lrmoe::single_rank alone;
  laws::all_to_all(alone, seed);
  laws::all_gather(alone, seed);
  laws::sums(alone, seed);
  laws::agreement(alone, seed);
  laws::settings(alone, seed);
}

TEST_CASE("a world needs a possible number of ranks", "[exchange]") {
  for (const int R : {0, -3, world::max_ranks + 1})
    CHECK_THROWS_AS(world(R), lrmoe::argument_error);
}
