// NCCL between the GPUs of this machine, a host thread for each rank. With one GPU the world has one rank,
// and what needs two warns and ends.
#include <lrmoe/cuda/config.hpp>

#if LRMOE_CUDA_HAS_NCCL
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include <lrmoe/cuda/device.hpp>
#include <lrmoe/cuda/exchange/nccl.hpp>

#include "../exchange/laws.hpp"

// Named, as not every member that the concept asks for is called.
namespace threads {

using std::int64_t;

/// Host values between threads of this process: every rank puts its bytes down and reads all.
class meeting {
 public:
  explicit meeting(int ranks) : ranks_(ranks) {}

  void all_gather(int rank, const std::byte* mine, std::size_t bytes, std::byte* all) {
    std::unique_lock lock(mutex_);
    if (arrived_ == 0) table_.assign(bytes * static_cast<std::size_t>(ranks_), std::byte{0});
    std::copy_n(mine, bytes, table_.begin() + static_cast<std::ptrdiff_t>(bytes) * rank);
    step(lock, arrived_);
    std::copy(table_.begin(), table_.end(), all);
    step(lock, left_);
  }

 private:
  /// Returns when all have come to it.
  void step(std::unique_lock<std::mutex>& lock, int& count) {
    const int64_t round = round_;
    if (++count == ranks_) {
      count = 0;
      ++round_;
      all_here_.notify_all();
      return;
    }
    if (!all_here_.wait_for(lock, std::chrono::seconds(60), [&] { return round_ != round; }))
      throw lrmoe::rank_error("lrmoe: a thread of the test did not come");
  }

  const int ranks_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::vector<std::byte> table_;
  int arrived_ = 0, left_ = 0;
  int64_t round_ = 0;
};

/// Models lrmoe::communicator on host memory, without exchanges.
class thread_ranks {
 public:
  thread_ranks(meeting& at, int rank, int size) : meeting_(&at), rank_(rank), size_(size) {}
  int rank() const { return rank_; }
  int size() const { return size_; }
  int64_t bytes_sent() const { return 0; }
  void all_gather(const std::byte* mine, int64_t bytes, std::byte* all) {
    meeting_->all_gather(rank_, mine, static_cast<std::size_t>(bytes), all);
  }
  template <class ExecutionSpace>
  void all_to_all(const ExecutionSpace&, const std::byte*, std::span<const int64_t>, std::byte*,
                  std::span<const int64_t>) {
    throw lrmoe::error("lrmoe: these ranks exchange host values only");
  }

 private:
  meeting* meeting_;
  int rank_, size_;
};

}  // namespace threads

namespace {

using laws::int64_t;
using lrmoe::cuda::check;
using lrmoe::cuda::nccl_communicator;

constexpr double patient_s = 60.0;

using threads::meeting;
using threads::thread_ranks;
using ranks_type = nccl_communicator<thread_ranks>;

/// Bytes on the current GPU.
class device_bytes {
 public:
  explicit device_bytes(int64_t n) {
    check(cudaMalloc(&data_, static_cast<std::size_t>(n)), "allocating bytes of the test");
  }
  device_bytes(const device_bytes&) = delete;
  ~device_bytes() { static_cast<void>(cudaFree(data_)); }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  void put(const std::vector<std::byte>& values, cudaStream_t stream) const {
    check(cudaMemcpyAsync(data_, values.data(), values.size(), cudaMemcpyHostToDevice, stream),
          "copying bytes of the test");
  }
  std::vector<std::byte> get(cudaStream_t stream, std::size_t n) const {
    std::vector<std::byte> result(n);
    check(cudaMemcpyAsync(result.data(), data_, n, cudaMemcpyDeviceToHost, stream),
          "copying bytes of the test");
    check(cudaStreamSynchronize(stream), "waiting for bytes of the test");
    return result;
  }

 private:
  void* data_ = nullptr;
};

/// A stream of one GPU, the space on it, and bytes to exchange. They are taken before NCCL's communicator
/// is made: where one process has several GPUs, allocating waits for kernels of the others.
struct gpu {
  explicit gpu(int device) {
    check(cudaSetDevice(device), "selecting a GPU");
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    space = Kokkos::Cuda(stream);
    send.emplace(capacity);
    receive.emplace(capacity);
  }
  gpu(const gpu&) = delete;
  ~gpu() {
    space.fence();
    send.reset();
    receive.reset();
    space = Kokkos::Cuda();
    static_cast<void>(cudaStreamDestroy(stream));
  }
  static constexpr int64_t capacity = 1 << 20;
  cudaStream_t stream = nullptr;
  Kokkos::Cuda space;
  std::optional<device_bytes> send, receive;
};

/// One exchange; returns the number of bytes that are wrong, inside the messages and around them.
template <class Communicator>
int64_t wrong_bytes(Communicator& ranks, const gpu& on, const laws::size_matrix& bytes,
                    std::uint64_t call, int64_t first = 0) {
  const laws::rank_messages messages(ranks.size(), ranks.rank(), bytes, first);
  const std::vector<std::byte> outgoing = messages.outgoing(call), untouched = messages.untouched();
  const device_bytes &send = *on.send, &receive = *on.receive;
  if (static_cast<int64_t>(std::max(outgoing.size(), untouched.size())) > gpu::capacity)
    throw lrmoe::error("lrmoe: the test exchanges more bytes than it has");
  receive.put(untouched, on.stream);
  // Enqueued, not waited for: the exchange comes after it and before what follows.
  send.put(outgoing, on.stream);
  const int64_t before = ranks.bytes_sent();
  ranks.all_to_all(on.space, send.data(), messages.send_offsets, receive.data(),
                   messages.receive_offsets);
  check(cudaMemsetAsync(send.data(), 0x3c, outgoing.size(), on.stream), "overwriting bytes");
  const std::vector<std::byte> got = receive.get(on.stream, untouched.size());
  return messages.wrong(call, got) + (ranks.bytes_sent() - before == messages.to_others ? 0 : 1);
}

template <class Communicator>
int64_t wrong_in_all_patterns(Communicator& ranks, const gpu& on, std::uint64_t seed) {
  fixture::random draw(seed);
  int64_t wrong = 0;
  for (const auto pattern : laws::all_patterns)
    for (const int64_t first : {0, 13}) {
      const auto sizes = laws::sizes(draw, ranks.size(), pattern);
      wrong += wrong_bytes(ranks, on, sizes, draw.bits(), first);
    }
  return wrong;
}

/// Message of the error that the call throws; empty if it throws nothing.
template <class Error = lrmoe::error, class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& failure) {
    return failure.what();
  }
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

double seconds_of(const auto& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Runs program(rank, meeting) on a thread per rank and returns what each threw. Catch is not told of
/// anything on these threads.
std::vector<std::string> on_threads(int R, const std::function<void(int, meeting&)>& program) {
  meeting at(R);
  std::vector<std::string> failures(static_cast<std::size_t>(R));
  std::vector<std::thread> threads;
  for (int r = 0; r < R; ++r)
    threads.emplace_back([&, r] {
      failures[static_cast<std::size_t>(r)] = error_of<std::exception>([&] { program(r, at); });
    });
  for (std::thread& each : threads) each.join();
  return failures;
}

/// An environment variable is not set while it lives.
class without_variable {
 public:
  explicit without_variable(const char* name) : name_(name) {
    if (const char* value = std::getenv(name)) value_ = value;
    ::unsetenv(name);
  }
  without_variable(const without_variable&) = delete;
  ~without_variable() {
    if (value_) ::setenv(name_, value_->c_str(), 1);
  }

 private:
  const char* name_;
  std::optional<std::string> value_;
};

/// Ranks that the machine has GPUs for; warns when that is one.
int several_ranks() {
  const int R = std::min(lrmoe::cuda::device_count(), 4);
  if (R < 2) WARN("one GPU: what several ranks do over NCCL is not tested here");
  return R;
}

}  // namespace

TEST_CASE("a world of one NCCL rank obeys the laws of communicators", "[cuda][nccl]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  const gpu on(Kokkos::Cuda().cuda_device());
  nccl_communicator<lrmoe::single_rank> ranks({}, on.space, patient_s);
  CHECK(ranks.rank() == 0);
  CHECK(ranks.size() == 1);
  CHECK(wrong_in_all_patterns(ranks, on, seed) == 0);
  CHECK(ranks.bytes_sent() == 0);
  laws::all_gather(ranks, seed);
  laws::sums(ranks, seed);
  laws::agreement(ranks, seed);
  laws::settings(ranks, seed);
  // Hundreds of calls under way at once, then moved.
  const device_bytes &send = *on.send, &receive = *on.receive;
  std::vector<std::byte> ascending(4096);
  for (std::size_t i = 0; i < ascending.size(); ++i) ascending[i] = static_cast<std::byte>(i % 251);
  send.put(ascending, on.stream);
  const std::vector<int64_t> offsets{0, 4096};
  for (int call = 0; call < 500; ++call) {
    const bool back = call % 2 == 1;
    ranks.all_to_all(on.space, back ? receive.data() : send.data(), offsets,
                     back ? send.data() : receive.data(), offsets);
  }
  CHECK(send.get(on.stream, 4096) == ascending);
  CHECK(receive.get(on.stream, 4096) == ascending);
  auto moved = std::move(ranks);
  CHECK(wrong_in_all_patterns(moved, on, seed + 1) == 0);
  moved.require_working();
}

TEST_CASE("an NCCL communicator refuses bad offsets and settings by name", "[cuda][nccl]") {
  const gpu on(Kokkos::Cuda().cuda_device());
  using one = nccl_communicator<lrmoe::single_rank>;
  CHECK(
      contains(error_of<lrmoe::argument_error>([&] { one({}, on.space, 0.0); }), "timeout of 0 s"));
  CHECK(
      contains(error_of<lrmoe::argument_error>([&] { one({}, on.space, -1.0); }), "timeout of -1"));
  one ranks({}, on.space, patient_s);
  std::byte* const none = nullptr;
  const auto refusal = [&](std::vector<int64_t> send, std::vector<int64_t> receive) {
    return error_of<lrmoe::argument_error>(
        [&] { ranks.all_to_all(on.space, none, send, none, receive); });
  };
  CHECK(contains(refusal({0}, {0, 0}), "passes 1 send offsets for 1 ranks"));
  CHECK(contains(refusal({0, 0}, {0, 0, 0}), "passes 3 receive offsets for 1 ranks"));
  CHECK(contains(refusal({-1, 0}, {0, 1}), "first send offset of -1"));
  CHECK(contains(refusal({3, 2}, {0, 0}), "send offsets of rank 0 fall from 3 to 2"));
  CHECK(contains(refusal({0, 2}, {0, 3}), "sends itself 2 bytes and expects 3"));
  CHECK(refusal({7, 7}, {9, 9}).empty());
  ranks.require_working();
}

TEST_CASE("an NCCL communicator of the caller is used and left alone", "[cuda][nccl]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  const gpu on(Kokkos::Cuda().cuda_device());
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  ncclComm_t own = nullptr;
  REQUIRE(ncclCommInitRank(&own, 1, id, 0) == ncclSuccess);
  {
    nccl_communicator<lrmoe::single_rank> ranks(lrmoe::single_rank{}, own, patient_s);
    CHECK(wrong_in_all_patterns(ranks, on, seed) == 0);
    CHECK(contains(error_of<lrmoe::argument_error>([&] {
                     meeting at(2);
                     nccl_communicator<thread_ranks>(thread_ranks(at, 1, 2), own, patient_s);
                   }),
                   "rank 0 of 1 in NCCL is rank 1 of 2 on the host"));
  }
  int size = 0;
  CHECK(ncclCommCount(own, &size) == ncclSuccess);
  CHECK(ncclCommDestroy(own) == ncclSuccess);
}

TEST_CASE("two ranks on one GPU are refused before NCCL starts", "[cuda][nccl]") {
  const int device = Kokkos::Cuda().cuda_device();
  const without_variable strict("NCCL_MULTI_RANK_GPU_ENABLE");
  CHECK_FALSE(lrmoe::cuda::nccl_shares_gpus());
  const auto failures = on_threads(2, [&](int r, meeting& at) {
    check(cudaSetDevice(device), "selecting a GPU");
    ranks_type(thread_ranks(at, r, 2), Kokkos::Cuda(), patient_s);
  });
  for (const std::string& each : failures) {
    INFO(each);
    CHECK(contains(each, "ranks 0 and 1 use the same GPU"));
    CHECK(contains(each, "NCCL_MULTI_RANK_GPU_ENABLE=1"));
  }
}

TEST_CASE("a rank that does not come while the communicator is made is given up",
          "[cuda][nccl][lost]") {
  const int device = Kokkos::Cuda().cuda_device();
  std::string message;
  const double waited_s = seconds_of([&] {
    ncclUniqueId id;
    check(cudaSetDevice(device), "selecting a GPU");
    static_cast<void>(ncclGetUniqueId(&id));
    message = error_of<lrmoe::rank_error>([&] { lrmoe::cuda::nccl_link(id, 0, 2, device, 1.0); });
  });
  INFO(message);
  CHECK(
      contains(message, "not all ranks came to making the communicator within 1 s; rank 0 waited"));
  CHECK(waited_s >= 1.0);
  CHECK(waited_s < 20.0);
}

TEST_CASE("NCCL ranks obey the laws of communicators", "[cuda][nccl][several]") {
  const int R = several_ranks();
  if (R < 2) return;
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  std::vector<int64_t> wrong(static_cast<std::size_t>(R), 0);
  const auto failures = on_threads(R, [&](int r, meeting& at) {
    const gpu on(r);
    ranks_type ranks(thread_ranks(at, r, R), on.space, patient_s);
    int64_t& own = wrong[static_cast<std::size_t>(r)];
    own += wrong_in_all_patterns(ranks, on, seed);
    // Ranks that come at different times: no message of one call ends in another.
    fixture::random common(seed), alone(seed + 1 + static_cast<std::uint64_t>(r));
    for (int call = 0; call < 100; ++call) {
      if (alone.integer(0, 9) == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(alone.integer(1, 500)));
      own += wrong_bytes(ranks, on, laws::sizes(common, R, laws::pattern::random), common.bits());
    }
    std::vector<int> all(static_cast<std::size_t>(R));
    lrmoe::all_gather(ranks, r, std::span(all));
    for (int s = 0; s < R; ++s) own += all[static_cast<std::size_t>(s)] != s;
  });
  for (int r = 0; r < R; ++r) {
    INFO("rank " << r);
    CHECK(failures[static_cast<std::size_t>(r)] == "");
    CHECK(wrong[static_cast<std::size_t>(r)] == 0);
  }
}

TEST_CASE("messages of several pieces arrive whole over NCCL", "[cuda][nccl][several]") {
  if (several_ranks() < 2) return;
  const int64_t bytes = 2 * lrmoe::mpi::largest_piece_bytes + 12'345;
  std::vector<int64_t> wrong(2, -1);
  const auto failures = on_threads(2, [&](int r, meeting& at) {
    const gpu on(r);
    const device_bytes data(bytes);
    ranks_type ranks(thread_ranks(at, r, 2), on.space, patient_s);
    // Rank 0 sends, rank 1 receives; marks at the ends of all pieces tell them apart.
    const int64_t piece = lrmoe::mpi::largest_piece_bytes;
    const std::vector<int64_t> marks{0, piece - 1, piece, 2 * piece - 1, 2 * piece, bytes - 1};
    check(cudaMemsetAsync(data.data(), r == 0 ? 1 : 9, static_cast<std::size_t>(bytes), on.stream),
          "filling bytes");
    if (r == 0)
      for (std::size_t i = 0; i < marks.size(); ++i)
        check(cudaMemsetAsync(data.data() + marks[i], static_cast<int>(20 + i), 1, on.stream),
              "marking bytes");
    const std::vector<int64_t> some{0, r == 0 ? 0 : bytes, bytes}, nothing{0, 0, 0};
    ranks.all_to_all(on.space, data.data(), r == 0 ? some : nothing, data.data(),
                     r == 0 ? nothing : some);
    const auto got = data.get(on.stream, static_cast<std::size_t>(bytes));
    int64_t& own = wrong[static_cast<std::size_t>(r)];
    own = 0;
    for (std::size_t i = 0; i < marks.size(); ++i)
      own += got[static_cast<std::size_t>(marks[i])] != static_cast<std::byte>(20 + i);
    own += std::count(got.begin(), got.end(), std::byte{1}) !=
           bytes - static_cast<int64_t>(marks.size());
  });
  for (const std::string& each : failures) CHECK(each == "");
  CHECK(wrong == std::vector<int64_t>{0, 0});
}

TEST_CASE("an NCCL rank that is lost ends the fences and operations of the others",
          "[cuda][nccl][several][lost]") {
  if (several_ranks() < 2) return;
  std::string first, second, intact;
  double fence_s = 0.0;
  const auto failures = on_threads(2, [&](int r, meeting& at) {
    const gpu on(r);
    thread_ranks host(at, r, 2);
    int go = 0;
    std::vector<int> all(2);
    auto ranks = std::make_unique<ranks_type>(host, on.space, 1.0);
    const laws::size_matrix bytes(4, 1000);
    // Connects them, so that the next call does not wait on the host.
    if (wrong_bytes(*ranks, on, bytes, 1) != 0) throw lrmoe::error("wrong bytes");
    if (r == 0) {
      std::byte *const send = on.send->data(), *const receive = on.receive->data();
      const std::vector<int64_t> offsets{0, 1000, 2000};
      ranks->all_to_all(on.space, send, offsets, receive, offsets);
      fence_s = seconds_of([&] { on.space.fence(); });
      intact = error_of<lrmoe::rank_error>([&] { ranks->require_working(); });
      first = error_of<lrmoe::rank_error>(
          [&] { ranks->all_to_all(on.space, send, offsets, receive, offsets); });
      second = error_of<lrmoe::rank_error>([&] { lrmoe::all_gather(*ranks, go, std::span(all)); });
    }
    lrmoe::all_gather(host, go, std::span(all));  // rank 1 waits here instead of coming
    ranks.reset();
  });
  for (const std::string& each : failures) CHECK(each == "");
  CHECK(fence_s >= 0.9);
  CHECK(fence_s < 20.0);
  for (const std::string& each : {intact, first, second}) {
    INFO(each);
    CHECK(contains(each, "all_to_all (call 2) did not end within 1 s; rank 0 waited"));
  }
  CHECK(contains(second, "takes no more calls"));
}

#endif
