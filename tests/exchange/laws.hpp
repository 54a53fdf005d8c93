// What holds for every communicator, written once. All ranks of it call these, with one seed.
#pragma once

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <lrmoe/exchange/agreement.hpp>
#include <lrmoe/exchange/collectives.hpp>

#include "catch.hpp"
#include "random.hpp"

namespace laws {

using std::int64_t;
using space_type = Kokkos::DefaultHostExecutionSpace;

/// (R, R) bytes from each rank to each.
using size_matrix = std::vector<int64_t>;

enum class pattern { random, self_only, to_one, from_one, neighbours, large, empty };
inline constexpr pattern all_patterns[] = {pattern::random,   pattern::self_only,  pattern::to_one,
                                           pattern::from_one, pattern::neighbours, pattern::large,
                                           pattern::empty};

inline size_matrix sizes(fixture::random& draw, int R, pattern of) {
  size_matrix result(static_cast<std::size_t>(R) * static_cast<std::size_t>(R), 0);
  const int chosen = static_cast<int>(draw.integer(0, R - 1));
  for (int from = 0; from < R; ++from)
    for (int to = 0; to < R; ++to) {
      const int64_t some = draw.integer(0, 2) == 0 ? 0 : draw.integer(1, 300);
      int64_t& size = result[static_cast<std::size_t>(from * R + to)];
      switch (of) {
        case pattern::random:
          size = some;
          break;
        case pattern::self_only:
          size = from == to ? some : 0;
          break;
        case pattern::to_one:
          size = to == chosen ? some : 0;
          break;
        case pattern::from_one:
          size = from == chosen ? some : 0;
          break;
        case pattern::neighbours:
          size = to == (from + 1) % R ? some : 0;
          break;
        case pattern::large:
          size = draw.integer(0, 4 * R) == 0 ? 100'003 + some : some;
          break;
        case pattern::empty:
          break;
      }
    }
  return result;
}

/// The i-th byte that one rank sends to another in a call.
inline std::byte content(std::uint64_t call, int from, int to, int64_t i) {
  std::uint64_t word = call * 0x9e3779b97f4a7c15ULL +
                       static_cast<std::uint64_t>(from) * 1000003ULL +
                       static_cast<std::uint64_t>(to) * 7919ULL + static_cast<std::uint64_t>(i);
  word = (word ^ (word >> 31)) * 0xbf58476d1ce4e5b9ULL;
  return static_cast<std::byte>(word >> 56);
}

/// One rank's part of an exchange whose messages begin `first` bytes behind what it sends, and twice that
/// behind what it receives.
struct rank_messages {
  rank_messages(int ranks, int own, const size_matrix& bytes, int64_t first)
      : R(ranks), rank(own), send_offsets{first}, receive_offsets{2 * first} {
    const auto size = [&](int from, int to) {
      return bytes[static_cast<std::size_t>(from * R + to)];
    };
    for (int r = 0; r < R; ++r) {
      send_offsets.push_back(send_offsets.back() + size(rank, r));
      receive_offsets.push_back(receive_offsets.back() + size(r, rank));
      if (r != rank) to_others += size(rank, r);
    }
  }

  /// What it sends in a call.
  std::vector<std::byte> outgoing(std::uint64_t call) const {
    std::vector<std::byte> values(static_cast<std::size_t>(send_offsets.back()));
    for (int to = 0; to < R; ++to)
      for (int64_t at = begin(send_offsets, to); at < begin(send_offsets, to + 1); ++at)
        values[static_cast<std::size_t>(at)] =
            content(call, rank, to, at - begin(send_offsets, to));
    return values;
  }
  /// Memory to receive in: nothing of it is what a message would leave.
  std::vector<std::byte> untouched() const {
    return std::vector<std::byte>(static_cast<std::size_t>(receive_offsets.back() + margin),
                                  std::byte{0xa5});
  }
  /// That memory after a call.
  std::vector<std::byte> expected(std::uint64_t call) const {
    std::vector<std::byte> values = untouched();
    for (int from = 0; from < R; ++from)
      for (int64_t at = begin(receive_offsets, from); at < begin(receive_offsets, from + 1); ++at)
        values[static_cast<std::size_t>(at)] =
            content(call, from, rank, at - begin(receive_offsets, from));
    return values;
  }
  /// Bytes that are wrong in what was received, inside the messages and around them.
  int64_t wrong(std::uint64_t call, const std::vector<std::byte>& got) const {
    const std::vector<std::byte> right = expected(call);
    int64_t count = 0;
    for (std::size_t i = 0; i < right.size(); ++i) count += got[i] != right[i];
    return count;
  }

  int R, rank;
  std::vector<int64_t> send_offsets, receive_offsets;  // (R+1)
  int64_t to_others = 0;

 private:
  static constexpr int64_t margin = 5;
  static int64_t begin(const std::vector<int64_t>& offsets, int r) {
    return offsets[static_cast<std::size_t>(r)];
  }
};

/// One exchange with every byte checked, those outside the messages too.
template <class Communicator>
void exchange_once(Communicator& ranks, const size_matrix& bytes, std::uint64_t call,
                   int64_t first = 0) {
  const int R = ranks.size(), rank = ranks.rank();
  const rank_messages messages(R, rank, bytes, first);
  const auto& send_offsets = messages.send_offsets;
  Kokkos::View<std::byte*, Kokkos::HostSpace> send("send",
                                                   static_cast<std::size_t>(send_offsets.back()));
  std::vector<std::byte> receive = messages.untouched();
  const space_type space;
  // Enqueued, not waited for: the exchange is ordered after it.
  for (int to = 0; to < R; ++to) {
    const int64_t begin = send_offsets[static_cast<std::size_t>(to)];
    Kokkos::parallel_for(
        "fill",
        Kokkos::RangePolicy<space_type, Kokkos::IndexType<int64_t>>(
            space, 0, send_offsets[static_cast<std::size_t>(to) + 1] - begin),
        [=](int64_t i) { send[static_cast<std::size_t>(begin + i)] = content(call, rank, to, i); });
  }
  const int64_t before = ranks.bytes_sent();
  ranks.all_to_all(space, send.data(), send_offsets, receive.data(), messages.receive_offsets);
  space.fence();
  CHECK(ranks.bytes_sent() - before == messages.to_others);
  INFO("rank " << rank << " of " << R);
  CHECK(messages.wrong(call, receive) == 0);
}

template <class Communicator>
void all_to_all(Communicator& ranks, std::uint64_t seed) {
  fixture::random draw(seed);
  for (const pattern of : all_patterns)
    for (const int64_t first : {0, 13}) {
      const size_matrix bytes = sizes(draw, ranks.size(), of);
      exchange_once(ranks, bytes, draw.bits(), first);
    }
}

template <class Communicator>
void all_gather(Communicator& ranks, std::uint64_t seed) {
  const auto R = static_cast<std::size_t>(ranks.size());
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{8}, std::size_t{1001}}) {
    std::vector<std::byte> mine(bytes), all(bytes * R + 1, std::byte{7});
    for (std::size_t i = 0; i < bytes; ++i)
      mine[i] = content(seed, ranks.rank(), 0, static_cast<int64_t>(i));
    const int64_t before = ranks.bytes_sent();
    ranks.all_gather(mine.data(), static_cast<int64_t>(bytes), all.data());
    std::size_t wrong = all.back() != std::byte{7};
    for (std::size_t r = 0; r < R; ++r)
      for (std::size_t i = 0; i < bytes; ++i)
        wrong +=
            all[r * bytes + i] != content(seed, static_cast<int>(r), 0, static_cast<int64_t>(i));
    CHECK(wrong == 0);
    CHECK(ranks.bytes_sent() == before);
  }
}

/// Ranks that come at different times, many calls long: no message of one call ends in another.
template <class Communicator>
void calls_stay_apart(Communicator& ranks, std::uint64_t seed, int calls) {
  fixture::random common(seed);
  fixture::random own(seed + 1 + static_cast<std::uint64_t>(ranks.rank()));
  for (int call = 0; call < calls; ++call) {
    if (own.integer(0, 9) == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(own.integer(1, 500)));
    if (common.integer(0, 1) == 0) {
      exchange_once(ranks, sizes(common, ranks.size(), pattern::random), common.bits());
    } else {
      const int64_t value = static_cast<int64_t>(common.integer(0, 1'000'000));
      std::vector<int64_t> all(static_cast<std::size_t>(ranks.size()));
      lrmoe::all_gather(ranks, value * 1000 + ranks.rank(), std::span(all));
      std::vector<int64_t> expected(all.size());
      std::iota(expected.begin(), expected.end(), value * 1000);
      CHECK(all == expected);
    }
  }
}

template <class Communicator>
void sums(Communicator& ranks, std::uint64_t seed) {
  const int R = ranks.size();
  constexpr std::size_t n = 37;
  // Of very different sizes, so that another order of addition gives other bits.
  const auto values_of = [&](int rank) {
    fixture::random draw(seed + static_cast<std::uint64_t>(rank));
    std::vector<double> values(n);
    for (double& value : values)
      value = draw.uniform(-1.0, 1.0) * std::pow(2.0, draw.uniform(-40.0, 40.0));
    return values;
  };
  std::vector<double> expected = values_of(0);
  for (int r = 1; r < R; ++r) {
    const std::vector<double> values = values_of(r);
    for (std::size_t i = 0; i < n; ++i) expected[i] += values[i];
  }
  std::vector<double> gathered;
  for (int again = 0; again < 2; ++again) {
    std::vector<double> values = values_of(ranks.rank());
    lrmoe::sum_over_ranks(ranks, std::span(values), gathered);
    CHECK(values == expected);
  }
  CHECK(lrmoe::sum_over_ranks(ranks, int64_t{1} << ranks.rank() % 60) == [&] {
    int64_t sum = 0;
    for (int r = 0; r < R; ++r) sum += int64_t{1} << r % 60;
    return sum;
  }());
  std::vector<int64_t> too_few(static_cast<std::size_t>(R) + 1);
  CHECK_THROWS_AS(lrmoe::all_gather(ranks, int64_t{1}, std::span(too_few)), lrmoe::argument_error);
}

/// Every subset of failing ranks below 2^R, or some random ones.
template <class Communicator>
void agreement(Communicator& ranks, std::uint64_t seed) {
  const int R = ranks.size(), rank = ranks.rank();
  fixture::random draw(seed);
  for (int round = 0; round < 8; ++round) {
    std::vector<bool> fails(static_cast<std::size_t>(R));
    int failing = 0;
    for (int r = 0; r < R; ++r) {
      const bool wanted = round == 0 ? false : round == 1 ? r == R - 1 : draw.integer(0, 3) == 0;
      fails[static_cast<std::size_t>(r)] = wanted;
      failing += wanted;
    }
    const auto step = [&] {
      if (fails[static_cast<std::size_t>(rank)])
        throw std::length_error("no room on " + std::to_string(rank));
      return rank * 10;
    };
    INFO("rank " << rank << " of " << R << ", " << failing << " fail");
    if (failing == 0) {
      CHECK(lrmoe::agree(ranks, step) == rank * 10);
    } else if (fails[static_cast<std::size_t>(rank)]) {
      CHECK_THROWS_AS(lrmoe::agree(ranks, step), std::length_error);
    } else {
      std::string message;
      try {
        lrmoe::agree(ranks, step);
      } catch (const lrmoe::rank_error& failure) {
        message = failure.what();
      }
      for (int r = 0; r < R; ++r) {
        const std::string text =
            "rank " + std::to_string(r) + " failed: no room on " + std::to_string(r);
        const bool named = (message + ";").find(text + ";") != std::string::npos;
        CHECK(named == fails[static_cast<std::size_t>(r)]);
      }
    }
    // The communicator works on after a failure.
    CHECK(lrmoe::sum_over_ranks(ranks, int64_t{1}) == R);
  }
  // What is no std::exception, and a message that is empty, are failures too.
  if (R == 1) return;
  const auto odd = [&] {
    if (rank == 0) throw 17;
    if (rank == 1) throw std::runtime_error("");
  };
  if (rank == 0) {
    CHECK_THROWS_AS(lrmoe::agree(ranks, odd), int);
  } else if (rank == 1) {
    CHECK_THROWS_AS(lrmoe::agree(ranks, odd), std::runtime_error);
  } else {
    CHECK_THROWS_AS(lrmoe::agree(ranks, odd), lrmoe::rank_error);
  }
}

template <class Communicator>
void settings(Communicator& ranks, std::uint64_t) {
  const int R = ranks.size(), rank = ranks.rank();
  lrmoe::named_settings common{{"experts", "128"}, {"keep", "0.5"}, {"empty", ""}};
  if (rank % 2 == 1) std::swap(common[0], common[2]);  // their order does not count
  lrmoe::require_same_settings(ranks, common);
  if (R == 1) return;

  lrmoe::named_settings changed = common;
  for (auto& [name, value] : changed)
    if (rank == R - 1 && name == "keep") value = "0.25";
  if (rank == 0) changed.emplace_back("seed", "7");
  std::string message;
  try {
    lrmoe::require_same_settings(ranks, changed);
  } catch (const lrmoe::argument_error& failure) {
    message = failure.what();
  }
  INFO(message);
  CHECK(message.find("keep is '0.25' on rank " + std::to_string(R - 1) + ", '0.5' on rank") !=
        std::string::npos);
  CHECK(message.find("seed is '7' on rank 0, absent on rank") != std::string::npos);
  CHECK(message.find("experts") == std::string::npos);
  lrmoe::require_same_settings(ranks, common);
}

}  // namespace laws
