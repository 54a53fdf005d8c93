#include <csignal>

#include "../exchange/laws.hpp"
#include "processes.hpp"

namespace {

using laws::int64_t;
using lrmoe::mpi::communicator;

constexpr double patient_s = 60.0;

/// What an operation of this rank fails with; empty if it does not.
template <class Operation>
std::string error_of(const Operation& operation) {
  try {
    operation();
  } catch (const lrmoe::rank_error& failure) {
    return failure.what();
  }
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void gather_one(communicator& ranks) {
  std::vector<int> all(static_cast<std::size_t>(ranks.size()));
  lrmoe::all_gather(ranks, ranks.rank(), std::span(all));
}

double seconds_of(const auto& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

TEST_CASE("MPI ranks obey the laws of communicators", "[mpi]") {
  const std::uint64_t seed = processes::fresh_seed();
  INFO("seed " << seed);
  communicator ranks(MPI_COMM_WORLD, patient_s);
  laws::all_to_all(ranks, seed);
  laws::all_gather(ranks, seed);
  laws::calls_stay_apart(ranks, seed, 300);
  laws::sums(ranks, seed);
  laws::agreement(ranks, seed);
  laws::settings(ranks, seed);
}

TEST_CASE("an MPI communicator keeps to itself and moves", "[mpi]") {
  const std::uint64_t seed = processes::fresh_seed();
  INFO("seed " << seed);
  communicator first(MPI_COMM_WORLD, patient_s), second(MPI_COMM_WORLD, patient_s);
  // Interleaved calls, and messages of the program's own, do not meet.
  fixture::random draw(seed);
  for (int round = 0; round < 20; ++round) {
    const auto sizes = laws::sizes(draw, first.size(), laws::pattern::random);
    laws::exchange_once(first, sizes, draw.bits());
    MPI_Barrier(MPI_COMM_WORLD);
    laws::exchange_once(second, sizes, draw.bits());
  }
  communicator moved = std::move(first);
  laws::calls_stay_apart(moved, seed, 10);
  second = std::move(moved);
  laws::calls_stay_apart(second, seed, 10);
}

TEST_CASE("an MPI communicator refuses a timeout that is not positive", "[mpi]") {
  CHECK_THROWS_AS(communicator(MPI_COMM_WORLD, 0.0), lrmoe::argument_error);
  CHECK_THROWS_AS(communicator(MPI_COMM_WORLD, -1.0), lrmoe::argument_error);
}

TEST_CASE("an MPI rank that does not come in time is reported by its number", "[mpi][several]") {
  const int R = processes::count(), late = R - 1;
  {
    communicator ranks(MPI_COMM_WORLD, 0.5);
    const std::string name = "rank " + std::to_string(late) + " did not come to all_gather";
    gather_one(ranks);
    if (ranks.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    std::string message;
    const double waited_s = seconds_of([&] { message = error_of([&] { gather_one(ranks); }); });
    INFO(message);
    CHECK(contains(message, name));
    if (ranks.rank() == late) {
      CHECK(contains(message, "gave up"));
      CHECK(waited_s < 0.4);
    } else {
      CHECK(waited_s < 1.4);
    }
    // It refuses further use, with the cause, and its end does not wait.
    CHECK(contains(error_of([&] { gather_one(ranks); }), name));
    std::byte none{};
    const std::vector<int64_t> offsets(static_cast<std::size_t>(R) + 1, 0);
    CHECK(contains(
        error_of([&] { ranks.all_to_all(laws::space_type(), &none, offsets, &none, offsets); }),
        name));
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("large messages to an MPI rank that is late are given up as well", "[mpi][several]") {
  const int R = processes::count(), late = R - 1;
  const std::size_t bytes = 3 << 20;  // no MPI buffers as much
  std::vector<std::byte> send(bytes * static_cast<std::size_t>(R)), receive(send.size());
  std::vector<int64_t> offsets(static_cast<std::size_t>(R) + 1);
  for (std::size_t r = 0; r < offsets.size(); ++r) offsets[r] = static_cast<int64_t>(r * bytes);
  std::string message;
  {
    communicator ranks(MPI_COMM_WORLD, 0.5);
    if (ranks.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    message = error_of([&] {
      ranks.all_to_all(laws::space_type(), send.data(), offsets, receive.data(), offsets);
    });
  }
  INFO(message);
  CHECK(contains(message, "rank " + std::to_string(late) + " did not come to all_to_all"));
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("an exception that leaves one MPI rank ends the others' waiting", "[mpi][several]") {
  const int R = processes::count(), culprit = R - 1;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::string message;
  const double waited_s = seconds_of([&] {
    try {
      communicator ranks(MPI_COMM_WORLD, patient_s);
      gather_one(ranks);
      if (rank == culprit) throw std::domain_error("mine");
      gather_one(ranks);
    } catch (const std::exception& failure) {
      message = failure.what();
    }
  });
  INFO(message);
  if (rank == culprit) {
    CHECK(message == "mine");
  } else {
    CHECK(contains(message, "rank " + std::to_string(culprit) + " left with an exception"));
  }
  CHECK(waited_s < patient_s / 2);
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("MPI ranks in different operations or with different sizes are told", "[mpi][several]") {
  const int R = processes::count();
  std::vector<std::byte> send(1000), receive(1000);
  std::vector<int64_t> offsets(static_cast<std::size_t>(R) + 1);
  for (std::size_t r = 0; r < offsets.size(); ++r) offsets[r] = static_cast<int64_t>(4 * r);
  const auto check = [&](const std::string& text, const auto& operation) {
    std::string message;
    {
      communicator ranks(MPI_COMM_WORLD, patient_s);
      message = error_of([&] {
        operation(ranks);
        // A rank that has what it needs learns of the failure at its next wait.
        gather_one(ranks);
      });
    }
    INFO(message);
    CHECK(contains(message, text));
    MPI_Barrier(MPI_COMM_WORLD);
  };
  const int last = R - 1;
  check("is in all_", [&](communicator& ranks) {
    if (ranks.rank() == last) return gather_one(ranks);
    ranks.all_to_all(laws::space_type(), send.data(), offsets, receive.data(), offsets);
  });
  for (const int64_t more : {-2, 3}) {
    check(more > 0 ? "sends more than the 4 bytes" : "sends 2 bytes where rank 0 expects 4",
          [&](communicator& ranks) {
            std::vector<int64_t> from = offsets;
            if (ranks.rank() == last)  // other sizes for rank 0 only
              for (std::size_t r = 1; r < from.size(); ++r) from[r] += more;
            ranks.all_to_all(laws::space_type(), send.data(), from, receive.data(), offsets);
          });
  }
}

TEST_CASE("a process that is killed ends all others", "[.][killed]") {
  communicator ranks(MPI_COMM_WORLD, 600.0);
  gather_one(ranks);
  if (ranks.rank() == ranks.size() - 1) std::raise(SIGKILL);
  gather_one(ranks);
}
