// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#if !__has_include(<nccl.h>)
#error \
    "lrmoe: nccl.h is not found: install NCCL (libnccl-dev, or the nvidia-nccl package of Python) and add its include folder, or use another communicator"
#endif

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nccl.h>

#include <lrmoe/cuda/device_guard.hpp>
#include <lrmoe/exchange/pieces.hpp>

static_assert(
    NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0),
    "lrmoe::cuda::nccl_communicator needs NCCL 2.18 or later (non-blocking communicators)");

namespace lrmoe::cuda {

/// A rank's connection to the others through NCCL, with a thread that watches it. Part of
/// nccl_communicator, which states the contract.
///
/// NCCL's kernels wait on the device for other ranks, and a wait for one that is lost has no end. So the
/// thread looks every few milliseconds at the operations under way: when one is overdue, or NCCL
/// reports an error, it aborts NCCL's communicator, after which those kernels return and fences too.
class nccl_link {
 public:
  /// Bytes for or from one other rank.
  struct message {
    std::byte* data = nullptr;
    std::int64_t bytes = 0;
    int peer = 0;
    bool received = false;
  };

  /// Collective: makes NCCL's communicator, or gives up after timeout_s with a rank_error.
  nccl_link(ncclUniqueId id, int rank, int size, int device, double timeout_s)
      : rank_(rank), size_(size), device_(device), timeout_s_(timeout_s), owns_(true) {
    const device_guard guard(device_);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    where_ = "making the communicator";
    const ncclResult_t status = ncclCommInitRankConfig(&comm_, size, id, rank, &config);
    if (status != ncclSuccess && status != ncclInProgress) fail_with(status);
    wait_until_ready();
    start_watching();
  }

  /// Uses the caller's communicator.
  nccl_link(ncclComm_t adopted, int rank, int size, int device, double timeout_s)
      : rank_(rank),
        size_(size),
        device_(device),
        timeout_s_(timeout_s),
        owns_(false),
        comm_(adopted) {
    start_watching();
  }

  nccl_link(const nccl_link&) = delete;
  nccl_link& operator=(const nccl_link&) = delete;

  ~nccl_link() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    if (watcher_.joinable()) watcher_.join();
    if (owns_ && comm_ != nullptr) end_communicator();
    for (const operation& each : under_way_) destroy(each);
    for (const operation& each : spare_) destroy(each);
  }

  int rank() const { return rank_; }
  int size() const { return size_; }
  int device() const { return device_; }

  /// Throws rank_error, with the cause, once the communicator has failed.
  void require_working() {
    const std::lock_guard lock(mutex_);
    throw_if_broken();
  }

  /// Enqueues the part for this rank itself and all messages as one operation.
  void exchange(cudaStream_t stream, const std::byte* own_from, std::byte* own_to,
                std::int64_t own_bytes, const std::vector<message>& messages) {
    const device_guard guard(device_);
    operation current = begin("all_to_all");
    try {
      check(cudaEventRecord(current.begun, stream), "recording a CUDA event");
      if (own_bytes > 0)
        check(cudaMemcpyAsync(own_to, own_from, static_cast<std::size_t>(own_bytes),
                              cudaMemcpyDeviceToDevice, stream),
              "copying the bytes that a rank sends itself");
      std::int64_t rounds = 0;
      for (const message& each : messages) rounds = std::max(rounds, mpi::num_pieces(each.bytes));
      for (std::int64_t round = 0; round < rounds; ++round) send_pieces(stream, messages, round);
      check(cudaEventRecord(current.ended, stream), "recording a CUDA event");
    } catch (const std::exception& failure) {
      // The others wait for what was not sent: NCCL's error on their side, or their timeout, ends that.
      destroy(current);
      abort(break_off("rank " + std::to_string(rank_) + " could not enqueue " + where_ + ": " +
                      failure.what()));
      throw;
    }
    {
      const std::lock_guard lock(mutex_);
      under_way_.push_back(current);
    }
    wake_.notify_all();
  }

 private:
  using clock = std::chrono::steady_clock;

  /// Events around what one call enqueued. The time of a wait counts from `begun`, as the stream may come to
  /// it long after the call.
  struct operation {
    cudaEvent_t begun = nullptr, ended = nullptr;
    std::int64_t call = 0;
    const char* name = "";
    bool reached = false;
    clock::time_point since{};
  };

  static constexpr std::chrono::milliseconds watch_interval{10};

  static void destroy(const operation& of) {
    if (of.begun != nullptr) static_cast<void>(cudaEventDestroy(of.begun));
    if (of.ended != nullptr) static_cast<void>(cudaEventDestroy(of.ended));
  }
  static void abort(ncclComm_t communicator) {
    if (communicator != nullptr) static_cast<void>(ncclCommAbort(communicator));
  }
  static double seconds_since(clock::time_point start) {
    return std::chrono::duration<double>(clock::now() - start).count();
  }
  static std::string text(double value) {
    std::ostringstream result;
    result << value;
    return result.str();
  }

  void start_watching() {
    exceptions_ = std::uncaught_exceptions();
    watcher_ = std::thread([this] { watch(); });
  }

  operation begin(const char* name) {
    const std::lock_guard lock(mutex_);
    throw_if_broken();
    ++call_;
    where_ = std::string(name) + " (call " + std::to_string(call_) + ")";
    drop_ended();
    operation next;
    if (!spare_.empty()) {
      next = spare_.back();
      spare_.pop_back();
    } else {
      check(cudaEventCreateWithFlags(&next.begun, cudaEventDisableTiming), "making a CUDA event");
      const cudaError_t status = cudaEventCreateWithFlags(&next.ended, cudaEventDisableTiming);
      if (status != cudaSuccess) destroy(next);
      check(status, "making a CUDA event");
    }
    next.call = call_;
    next.name = name;
    next.reached = false;
    return next;
  }

  /// Piece `round` of every message that has so many, as one group: NCCL requires that for sends and
  /// receives that need each other to proceed.
  void send_pieces(cudaStream_t stream, const std::vector<message>& messages, std::int64_t round) {
    std::unique_lock lock(mutex_);
    throw_if_broken();
    ncclResult_t status = ncclGroupStart();
    const auto failed = [&] { return status != ncclSuccess && status != ncclInProgress; };
    for (const message& each : messages) {
      if (failed() || round >= mpi::num_pieces(each.bytes)) continue;
      const auto [offset, size] = mpi::piece_of(each.bytes, round);
      const auto count = static_cast<std::size_t>(size);
      status = each.received
                   ? ncclRecv(each.data + offset, count, ncclInt8, each.peer, comm_, stream)
                   : ncclSend(each.data + offset, count, ncclInt8, each.peer, comm_, stream);
    }
    const ncclResult_t ended = ncclGroupEnd();
    if (!failed()) status = ended;
    lock.unlock();
    if (failed()) fail_with(status);
    // Of a non-blocking communicator nothing may be asked before it is ready again, and what is enqueued
    // behind the group is ordered after it only then.
    wait_until_ready();
  }

  void wait_until_ready() {
    const auto start = clock::now();
    for (std::int64_t polls = 0;; ++polls) {
      ncclResult_t state = ncclSuccess;
      {
        const std::lock_guard lock(mutex_);
        throw_if_broken();
        const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
        if (asked != ncclSuccess) state = asked;
      }
      if (state == ncclSuccess) return;
      if (state != ncclInProgress) fail_with(state);
      if (seconds_since(start) > timeout_s_)
        fail("not all ranks came to " + where_ + " within " + text(timeout_s_) + " s; rank " +
             std::to_string(rank_) + " waited");
      if (polls < 1000)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  void throw_if_broken() {
    if (!broken_) return;
    const bool before = std::exchange(told_, true);
    throw rank_error(cause_ + (before ? " (before: this communicator takes no more calls)" : ""));
  }

  [[noreturn]] void fail_with(ncclResult_t status) { fail(description(status, where_)); }

  /// Ends NCCL's communicator; where the watcher was first, its cause is the one that counts.
  [[noreturn]] void fail(const std::string& reason) {
    abort(break_off(reason));
    const std::lock_guard lock(mutex_);
    told_ = true;
    throw rank_error(cause_);
  }

  /// From now on the communicator is refused; returns NCCL's, which the caller has to abort.
  ncclComm_t break_off(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    return break_off_locked(reason);
  }
  ncclComm_t break_off_locked(const std::string& reason) {
    if (!broken_) cause_ = "lrmoe: " + reason;
    broken_ = true;
    return std::exchange(comm_, nullptr);
  }

  std::string description(ncclResult_t status, const std::string& where) const {
    const char* detail = ncclGetLastError(nullptr);
    std::string result = "NCCL failed on rank " + std::to_string(rank_) + " in " + where + ": " +
                         ncclGetErrorString(status);
    if (detail != nullptr && detail[0] != '\0') result += std::string(" (") + detail + ")";
    if (status == ncclRemoteError || status == ncclSystemError)
      result += "; another rank may have ended";
    return result + "; NCCL_DEBUG=WARN prints more";
  }

  void drop_ended() {
    auto first = under_way_.begin();
    while (first != under_way_.end() && cudaEventQuery(first->ended) == cudaSuccess)
      spare_.push_back(*first++);
    under_way_.erase(under_way_.begin(), first);
  }

  /// The watcher's thread.
  void watch() {
    static_cast<void>(cudaSetDevice(device_));
    // Looking at events must not disturb a stream that another thread is capturing.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode));
    std::unique_lock lock(mutex_);
    while (!stop_) {
      if (broken_ || under_way_.empty()) {
        wake_.wait(lock, [this] { return stop_ || (!broken_ && !under_way_.empty()); });
        continue;
      }
      const std::string reason = failure_seen();
      if (reason.empty()) {
        wake_.wait_for(lock, watch_interval, [this] { return stop_; });
        continue;
      }
      ncclComm_t const aborted = break_off_locked(reason);
      lock.unlock();
      abort(aborted);
      lock.lock();
    }
  }

  /// Why the communicator has to be given up; empty if all is well.
  std::string failure_seen() {
    drop_ended();
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
    if (asked != ncclSuccess) state = asked;
    if (under_way_.empty()) return {};
    operation& oldest = under_way_.front();
    const std::string where =
        std::string(oldest.name) + " (call " + std::to_string(oldest.call) + ")";
    if (state != ncclSuccess && state != ncclInProgress) return description(state, where);
    const cudaError_t status = cudaEventQuery(oldest.reached ? oldest.ended : oldest.begun);
    if (status != cudaSuccess && status != cudaErrorNotReady)
      return "the device of rank " + std::to_string(rank_) + " failed in or before " + where +
             ": " + cudaGetErrorString(status);
    if (status == cudaErrorNotReady && oldest.reached && seconds_since(oldest.since) > timeout_s_)
      return where + " did not end within " + text(timeout_s_) + " s; rank " +
             std::to_string(rank_) + " waited: another rank failed or did not come";
    if (status == cudaSuccess && !oldest.reached) {
      oldest.reached = true;
      oldest.since = clock::now();
    }
    return {};
  }

  /// All ranks come here when they end in peace. One that unwinds an exception takes the others along.
  void end_communicator() noexcept {
    const device_guard guard(device_);
    if (std::uncaught_exceptions() > exceptions_) {
      static_cast<void>(ncclCommAbort(comm_));
      return;
    }
    // What others still receive may lie in this rank's buffers until finalizing is over.
    ncclResult_t state = ncclCommFinalize(comm_);
    const auto start = clock::now();
    while ((state == ncclSuccess || state == ncclInProgress) && seconds_since(start) < timeout_s_) {
      if (ncclCommGetAsyncError(comm_, &state) != ncclSuccess) state = ncclInternalError;
      if (state != ncclInProgress) break;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    static_cast<void>(state == ncclSuccess ? ncclCommDestroy(comm_) : ncclCommAbort(comm_));
  }

  const int rank_, size_, device_;
  const double timeout_s_;
  const bool owns_;
  int exceptions_ = 0;
  std::int64_t call_ = 0;
  std::string where_;  // of the caller's thread

  std::mutex mutex_;  // guards what follows, and every call that NCCL's communicator gets
  std::condition_variable wake_;
  ncclComm_t comm_ = nullptr;
  std::vector<operation> under_way_, spare_;
  bool stop_ = false;
  bool broken_ = false;
  bool told_ = false;
  std::string cause_;

  std::thread watcher_;
};

}  // namespace lrmoe::cuda
