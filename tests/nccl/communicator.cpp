// NCCL between processes with a GPU each, started over MPI.
#include <csignal>
#include <stdexcept>
#include <thread>
#include <vector>

#include <lrmoe/cuda/device.hpp>

#include "../exchange/laws.hpp"
#include "fixture.hpp"
#include "ranks_on_gpus.hpp"

using laws::int64_t;
using namespace processes;

namespace {

/// Bytes on this process' GPU, and their values on the host.
class exchanged_bytes {
 public:
  explicit exchanged_bytes(std::size_t count)
      : bytes_(Kokkos::view_alloc("lrmoe_test::bytes", Kokkos::WithoutInitializing), count) {}
  std::byte* data() const { return bytes_.data(); }
  void put(const std::vector<std::byte>& values) const {
    copy(bytes_.data(), values.data(), values.size(), cudaMemcpyHostToDevice);
  }
  std::vector<std::byte> get(std::size_t count) const {
    std::vector<std::byte> values(count);
    copy(values.data(), bytes_.data(), count, cudaMemcpyDeviceToHost);
    Kokkos::Cuda().fence();
    return values;
  }

 private:
  static void copy(void* to, const void* from, std::size_t count, cudaMemcpyKind kind) {
    lrmoe::cuda::check(cudaMemcpyAsync(to, from, count, kind, Kokkos::Cuda().cuda_stream()),
                       "copying bytes of the test");
  }
  Kokkos::View<std::byte*, Kokkos::CudaSpace> bytes_;
};

/// One exchange; returns the number of bytes that are wrong, inside the messages and around them.
int64_t wrong_bytes(ranks_type& ranks, const laws::size_matrix& bytes, std::uint64_t call,
                    int64_t first = 0) {
  const laws::rank_messages messages(ranks.size(), ranks.rank(), bytes, first);
  const std::vector<std::byte> outgoing = messages.outgoing(call), untouched = messages.untouched();
  const exchanged_bytes send(outgoing.size()), receive(untouched.size());
  receive.put(untouched);
  // Enqueued, not waited for: the exchange comes after it and before what follows.
  send.put(outgoing);
  const int64_t before = ranks.bytes_sent();
  ranks.all_to_all(Kokkos::Cuda(), send.data(), messages.send_offsets, receive.data(),
                   messages.receive_offsets);
  send.put(std::vector<std::byte>(outgoing.size(), std::byte{0x3c}));
  const std::vector<std::byte> got = receive.get(untouched.size());
  return messages.wrong(call, got) + (ranks.bytes_sent() - before == messages.to_others ? 0 : 1);
}

/// The same number of bytes from each rank to each.
laws::size_matrix all_alike(int R, int64_t bytes) {
  return laws::size_matrix(static_cast<std::size_t>(R * R), bytes);
}

}  // namespace

TEST_CASE("every process has the GPU of its number on the node, its own unless NCCL shares them",
          "[nccl]") {
  int rank = 0;
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &rank);
  MPI_Comm_free(&node);
  const int gpus = lrmoe::cuda::device_count();
  CHECK((rank < gpus || lrmoe::cuda::nccl_shares_gpus()));
  CHECK(Kokkos::Cuda().cuda_device() == rank % gpus);
}

TEST_CASE("processes over NCCL obey the laws of communicators", "[nccl]") {
  const std::uint64_t seed = fresh_seed();
  INFO("seed " << seed);
  ranks_type ranks = on_gpus();
  CHECK(ranks.size() == count());
  fixture::random draw(seed);
  for (const auto pattern : laws::all_patterns)
    for (const int64_t first : {0, 13}) {
      const auto sizes = laws::sizes(draw, ranks.size(), pattern);
      CHECK(wrong_bytes(ranks, sizes, draw.bits(), first) == 0);
    }
  laws::all_gather(ranks, seed);
  laws::sums(ranks, seed);
  laws::agreement(ranks, seed);
  laws::settings(ranks, seed);
  // Ranks that come at different times: no message of one call ends in another.
  fixture::random alone(seed + 1 + static_cast<std::uint64_t>(ranks.rank()));
  int64_t wrong = 0;
  for (int call = 0; call < 100; ++call) {
    if (alone.integer(0, 9) == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(alone.integer(1, 500)));
    wrong +=
        wrong_bytes(ranks, laws::sizes(draw, ranks.size(), laws::pattern::random), draw.bits());
  }
  CHECK(wrong == 0);
  // Two at once keep to themselves, and moving one leaves it as it is.
  ranks_type second = on_gpus();
  for (int call = 0; call < 10; ++call) {
    const auto sizes = laws::sizes(draw, ranks.size(), laws::pattern::random);
    wrong += wrong_bytes(ranks, sizes, draw.bits());
    wrong += wrong_bytes(second, sizes, draw.bits());
  }
  second = std::move(ranks);
  wrong += wrong_bytes(second, all_alike(count(), 100), draw.bits());
  CHECK(wrong == 0);
  second.require_working();
}

TEST_CASE("a process that does not come to an exchange ends the others' fences in time",
          "[nccl][several]") {
  const double timeout_s = 1.0;
  ranks_type ranks = on_gpus(timeout_s);
  const int R = ranks.size(), late = R - 1;
  // Connects them, so that the next call does not wait on the host.
  CHECK(wrong_bytes(ranks, all_alike(R, 1000), 1) == 0);
  if (ranks.rank() != late) {
    const exchanged_bytes send(static_cast<std::size_t>(R) * 1000);
    const exchanged_bytes receive(static_cast<std::size_t>(R) * 1000);
    std::vector<int64_t> offsets;
    for (int r = 0; r <= R; ++r) offsets.push_back(1000 * r);
    const Kokkos::Cuda space;
    const double waited_s = seconds_of([&] {
      ranks.all_to_all(space, send.data(), offsets, receive.data(), offsets);
      space.fence();
    });
    CHECK(waited_s >= 0.9 * timeout_s);
    CHECK(waited_s < 20.0);
    const std::string found = error_of([&] { ranks.require_working(); });
    CHECK(fixture::names(found, {"all_to_all (call 2) did not end within 1 s",
                                 "rank " + std::to_string(ranks.rank()) + " waited"}));
    // Small host values are refused as well: what they would be about is lost.
    std::vector<int> all(static_cast<std::size_t>(R));
    CHECK(fixture::names(error_of([&] { lrmoe::all_gather(ranks, 1, std::span(all)); }),
                         {"takes no more calls"}));
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("an exception that leaves one process ends the others' waiting", "[nccl][several]") {
  const int culprit = count() - 1;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::string message;
  const double waited_s = seconds_of([&] {
    try {
      ranks_type ranks = on_gpus();
      CHECK(wrong_bytes(ranks, all_alike(ranks.size(), 1000), 1) == 0);
      if (rank == culprit) throw std::domain_error("mine");
      std::vector<int> all(static_cast<std::size_t>(ranks.size()));
      lrmoe::all_gather(ranks, rank, std::span(all));
    } catch (const std::exception& failure) {
      message = failure.what();
    }
  });
  CHECK(fixture::names(
      message,
      {rank == culprit ? "mine" : "rank " + std::to_string(culprit) + " left with an exception"}));
  CHECK(waited_s < patient_s / 2);
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("a process that is killed ends all others", "[.][killed]") {
  ranks_type ranks = on_gpus(600.0, 600.0);
  const bool whole = wrong_bytes(ranks, all_alike(ranks.size(), 1000), 1) == 0;
  if (whole && ranks.rank() == ranks.size() - 1) std::raise(SIGKILL);
  static_cast<void>(wrong_bytes(ranks, all_alike(ranks.size(), 1000), 2));
}
