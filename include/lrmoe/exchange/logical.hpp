// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <lrmoe/exchange/communicator.hpp>

namespace lrmoe::logical {

class world;

/// One of the ranks that a world runs. Lives as long as the world's run().
class communicator {
 public:
  communicator(communicator&& other) noexcept = default;
  communicator& operator=(communicator&& other) noexcept = default;
  communicator(const communicator&) = delete;
  communicator& operator=(const communicator&) = delete;

  int rank() const { return rank_; }
  int size() const;
  std::int64_t bytes_sent() const;
  /// Seconds this rank has worked: while the others stood still, and outside the communicator's
  /// operations. Kernels that it enqueued count, since an operation waits for them first.
  double busy_s() const;

  /// See lrmoe::communicator. Throws rank_error on every rank when their operations or sizes differ.
  void all_gather(const std::byte* mine, std::int64_t bytes, std::byte* all);
  template <class ExecutionSpace>
  void all_to_all(const ExecutionSpace& space, const std::byte* send,
                  std::span<const std::int64_t> send_offsets, std::byte* receive,
                  std::span<const std::int64_t> receive_offsets);

 private:
  friend class world;
  communicator(world& of, int rank) : world_(&of), rank_(rank) {}

  world* world_;
  int rank_;
};

/// R ranks in one process: laptops, tests, studies of many ranks on one machine.
///
///   logical::world world(8);
///   world.run([&](logical::communicator& ranks) { ... the program of one rank ... });
///
/// Order     Each rank has a host thread, and exactly one of them runs at a time, from one operation
///           of the communicator to the next, in ascending rank order. So each rank has the whole
///           machine while it runs, its time can be measured, and a run is repeatable; data that
///           ranks share needs no lock. An operation copies once all ranks have come to it, straight
///           from the sender's memory to the receiver's.
/// Kokkos    Kernels may be launched from every rank. Each host thread has an OpenMP team of its own:
///           R times the number of cores threads exist, and those of waiting ranks sleep.
/// Throws    A rank that returns or throws while others need it fails their operation at once with a
///           rank_error. A rank that never comes back to the communicator cannot be interrupted.
/// Cost      one switch of threads per rank and operation
class world {
 public:
  explicit world(int ranks) : size_(ranks) {
    require(ranks >= 1 && ranks <= max_ranks, "logical::world: ", ranks, " ranks must be in [1, ",
            max_ranks, "]");
    members_ = std::make_unique<member[]>(static_cast<std::size_t>(ranks));
  }
  world(const world&) = delete;
  world& operator=(const world&) = delete;

  static constexpr int max_ranks = 1024;
  int size() const { return size_; }

  /// Runs program(communicator&) once on every rank and returns when all have ended.
  /// Throws the exception of the lowest rank whose exception is its own, not a rank_error that tells
  /// of another; else that of the lowest rank that threw.
  template <class Program>
  void run(Program&& program) {
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(size_));
    cause_.clear();
    arrived_ = 0;
    for (int r = 0; r < size_; ++r) {
      member& self = of(r);
      self.state = position::running;
      self.failure = nullptr;
      self.bytes_sent = 0;
      self.busy = {};
    }
    try {
      for (int r = 0; r < size_; ++r)
        threads.emplace_back([this, r, &program] { run_rank(r, program); });
    } catch (const std::exception& failure) {
      // The started ones end at their first operation, as the others never come.
      cause_ = "lrmoe: logical::world: starting " + std::to_string(size_) +
               " threads failed: " + failure.what();
      for (auto r = static_cast<int>(threads.size()); r < size_; ++r) of(r).state = position::ended;
    }
    give_baton(next_after(size_ - 1));
    for (std::thread& thread : threads) thread.join();
    if (static_cast<int>(threads.size()) < size_) throw error(cause_);
    rethrow();
  }

 private:
  friend class communicator;
  using clock = std::chrono::steady_clock;
  static constexpr int nobody = -1;

  enum class position { running, waiting, ended };
  enum class operation { all_gather, all_to_all };

  /// What a rank brings to an operation.
  struct request {
    operation kind = operation::all_gather;
    std::string_view memory;  ///< name of the memory space
    const std::byte* send = nullptr;
    std::byte* receive = nullptr;
    std::int64_t bytes = 0;                         // all_gather
    std::span<const std::int64_t> send_offsets;     // all_to_all
    std::span<const std::int64_t> receive_offsets;  // all_to_all
  };

  struct member {
    position state = position::running;
    request wants;
    std::exception_ptr failure;
    std::int64_t bytes_sent = 0;
    clock::duration busy{};
    clock::time_point since{};  ///< when it last got the baton
    std::mutex mutex;
    std::condition_variable turn;
    bool has_baton = false;  ///< guarded by mutex
  };

  member& of(int rank) const { return members_[static_cast<std::size_t>(rank)]; }

  template <class Program>
  void run_rank(int rank, Program& program) {
    member& self = of(rank);
    await_baton(rank);
    std::string message;
    try {
      communicator ranks(*this, rank);
      program(ranks);
    } catch (const std::exception& failure) {
      self.failure = std::current_exception();
      message = failure.what();
    } catch (...) {
      self.failure = std::current_exception();
      message = "an exception that is no std::exception";
    }
    self.busy += clock::now() - self.since;
    self.state = position::ended;
    if (self.failure && cause_.empty())
      cause_ = "lrmoe: rank " + std::to_string(rank) + " failed: " + message;
    if (arrived_ > 0 && cause_.empty()) cause_ = "lrmoe: " + left(rank);
    give_baton(next_after(rank));
  }

  /// "rank 2 returned while ranks 0, 1 wait for it in all_gather"
  std::string left(int rank) const {
    std::ostringstream message;
    message << "rank " << rank << " returned while ";
    const char* separator = "rank ";
    std::string_view name;
    for (int r = 0; r < size_; ++r) {
      if (of(r).state != position::waiting) continue;
      message << separator << r;
      separator = ", ";
      name = name_of(of(r).wants.kind);
    }
    message << " waits for it in " << name;
    return message.str();
  }

  /// The next rank in turn that can run: any that has not ended once the run has failed, else one
  /// that is not waiting.
  int next_after(int rank) const {
    for (int i = 1; i <= size_; ++i) {
      const int r = (rank + i) % size_;
      const position state = of(r).state;
      if (state == position::running || (state == position::waiting && !cause_.empty())) return r;
    }
    return nobody;
  }

  // The lock is free again when the woken thread asks for it.
  void give_baton(int rank) {
    if (rank == nobody) return;
    {
      const std::lock_guard lock(of(rank).mutex);
      of(rank).has_baton = true;
    }
    of(rank).turn.notify_one();
  }

  void await_baton(int rank) {
    member& self = of(rank);
    std::unique_lock lock(self.mutex);
    self.turn.wait(lock, [&] { return self.has_baton; });
    self.has_baton = false;
    self.since = clock::now();
  }

  /// Waits until all ranks have come. The last one runs transfer(); what differs between the ranks
  /// is found before.
  template <class Transfer>
  void join(int rank, const request& wants, const Transfer& transfer) {
    member& self = of(rank);
    self.busy += clock::now() - self.since;
    for (int r = 0; r < size_ && cause_.empty(); ++r)
      if (of(r).state == position::ended)
        cause_ = "lrmoe: rank " + std::to_string(r) + " returned and cannot take part in " +
                 std::string(name_of(wants.kind)) + ", to which rank " + std::to_string(rank) +
                 " came";
    if (cause_.empty()) {
      self.wants = wants;
      self.state = position::waiting;
      if (++arrived_ == size_) {
        cause_ = difference();
        if (cause_.empty()) {
          try {
            transfer();
          } catch (const std::exception& failure) {
            cause_ = "lrmoe: copying between logical ranks failed: " + std::string(failure.what());
          }
        }
        arrived_ = 0;
        for (int r = 0; r < size_; ++r) of(r).state = position::running;
      }
      // All start again at rank 0, or the next rank comes to this operation.
      give_baton(next_after(arrived_ == 0 ? size_ - 1 : rank));
      await_baton(rank);
    }
    self.state = position::running;
    self.since = clock::now();
    if (!cause_.empty()) throw rank_error(cause_);
  }

  static std::string_view name_of(operation kind) {
    return kind == operation::all_gather ? "all_gather" : "all_to_all";
  }

  /// Text on the first thing in which the ranks' requests differ, or none.
  std::string difference() const {
    std::ostringstream message;
    const request& first = of(0).wants;
    for (int r = 1; r < size_; ++r) {
      const request& other = of(r).wants;
      if (other.kind != first.kind)
        message << "rank 0 is in " << name_of(first.kind) << " and rank " << r << " in "
                << name_of(other.kind);
      else if (first.kind == operation::all_gather && other.bytes != first.bytes)
        message << "in all_gather, rank 0 passes " << first.bytes << " bytes and rank " << r << " "
                << other.bytes;
      else if (other.memory != first.memory)
        message << "in all_to_all, rank 0 passes memory of " << first.memory << " and rank " << r
                << " of " << other.memory;
      else
        continue;
      return "lrmoe: " + message.str() + ": all ranks must call the same operations";
    }
    if (first.kind == operation::all_gather) return {};
    for (int from = 0; from < size_; ++from) {
      for (int to = 0; to < size_; ++to) {
        const std::int64_t sent = part(of(from).wants.send_offsets, to);
        const std::int64_t expected = part(of(to).wants.receive_offsets, from);
        if (sent == expected) continue;
        message << "lrmoe: in all_to_all, rank " << from << " sends " << sent << " bytes to rank "
                << to << ", which expects " << expected;
        return message.str();
      }
    }
    return {};
  }

  static std::int64_t part(std::span<const std::int64_t> offsets, int rank) {
    const auto r = static_cast<std::size_t>(rank);
    return offsets[r + 1] - offsets[r];
  }

  void rethrow() const {
    std::exception_ptr first;
    for (int r = 0; r < size_; ++r) {
      if (!of(r).failure) continue;
      if (!first) first = of(r).failure;
      try {
        std::rethrow_exception(of(r).failure);
      } catch (const rank_error&) {
      } catch (...) {
        throw;
      }
    }
    if (first) std::rethrow_exception(first);
  }

  // Only the rank with the baton touches any of it, but for a member's mutex and what it guards.
  int size_;
  std::unique_ptr<member[]> members_;
  int arrived_ = 0;    ///< ranks that wait in an operation
  std::string cause_;  ///< why the run has failed
};

inline int communicator::size() const {
  return world_->size_;
}

inline std::int64_t communicator::bytes_sent() const {
  return world_->of(rank_).bytes_sent;
}

inline double communicator::busy_s() const {
  const world::member& self = world_->of(rank_);
  return std::chrono::duration<double>(self.busy + (world::clock::now() - self.since)).count();
}

inline void communicator::all_gather(const std::byte* mine, std::int64_t bytes, std::byte* all) {
  require(bytes >= 0, "all_gather: ", bytes, " bytes on rank ", rank_, " must not be negative");
  // The next rank is to have the device for itself.
  Kokkos::fence("lrmoe::logical::all_gather");
  const world::request wants{world::operation::all_gather, {}, mine, all, bytes, {}, {}};
  world_->join(rank_, wants, [&] {
    if (bytes == 0) return;
    for (int to = 0; to < size(); ++to)
      for (int from = 0; from < size(); ++from)
        std::memcpy(world_->of(to).wants.receive + from * bytes, world_->of(from).wants.send,
                    static_cast<std::size_t>(bytes));
  });
}

template <class ExecutionSpace>
void communicator::all_to_all(const ExecutionSpace& space, const std::byte* send,
                              std::span<const std::int64_t> send_offsets, std::byte* receive,
                              std::span<const std::int64_t> receive_offsets) {
  detail::require_offsets("send", rank_, size(), send_offsets);
  detail::require_offsets("receive", rank_, size(), receive_offsets);
  space.fence("lrmoe::logical::all_to_all");
  const world::request wants{world::operation::all_to_all,
                             ExecutionSpace::memory_space::name(),
                             send,
                             receive,
                             0,
                             send_offsets,
                             receive_offsets};
  world_->join(rank_, wants, [&] {
    for (int to = 0; to < size(); ++to) {
      const world::request& receiver = world_->of(to).wants;
      for (int from = 0; from < size(); ++from) {
        const world::request& sender = world_->of(from).wants;
        detail::copy_bytes(
            space, receiver.receive + receiver.receive_offsets[static_cast<std::size_t>(from)],
            sender.send + sender.send_offsets[static_cast<std::size_t>(to)],
            world::part(sender.send_offsets, to));
      }
    }
    space.fence("lrmoe::logical::all_to_all");
  });
  const std::int64_t whole = send_offsets.back() - send_offsets.front();
  world_->of(rank_).bytes_sent += whole - world::part(send_offsets, rank_);
}

static_assert(lrmoe::communicator<communicator>);

}  // namespace lrmoe::logical
