// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <array>
#include <chrono>
#include <deque>
#include <exception>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <mpi.h>

#include <lrmoe/exchange/communicator.hpp>
#include <lrmoe/exchange/pieces.hpp>

namespace lrmoe::mpi {

/// R processes over MPI, host memory. The only header that needs MPI (target LRMoE::mpi).
///
///   mpi::communicator ranks(MPI_COMM_WORLD);   // before MPI_Finalize it must be gone
///
/// MPI       The caller initialises it, with MPI_THREAD_FUNNELED if the main thread alone uses the
///           communicator, else with MPI_THREAD_SERIALIZED. The communicator is a duplicate of the one
///           given, so nothing else meets its messages. Making one is collective.
/// Messages  go from each rank to each other directly, in pieces of at most 1 GiB, so that no count
///           reaches MPI's 32 bits. Nothing is allocated once a call of as many messages was made.
/// Failures  Every wait ends after timeout_s without progress, with a rank_error that names the missing
///           ranks. The rank that gives up, or unwinds an exception through this object, tells all
///           others, so they fail at once and with the cause. After a rank_error end the program: until
///           then keep the buffers of the call that failed, as a late rank may still read them.
///           When a process dies by a signal, mpirun ends all others. An operation that sends and
///           receives nothing does not wait for anyone.
class communicator {
 public:
  /// Throws argument_error for a timeout that is not positive and an MPI that is not initialised with
  /// threads; rank_error when a rank does not come.
  explicit communicator(MPI_Comm parent, double timeout_s = 300.0) : link_(nullptr) {
    require(timeout_s > 0.0, "mpi::communicator: a timeout of ", timeout_s,
            " s must be positive: it ends the wait for a rank that is lost");
    int initialised = 0, level = 0;
    MPI_Initialized(&initialised);
    require(initialised != 0, "mpi::communicator: MPI is not initialised: call MPI_Init_thread");
    MPI_Query_thread(&level);
    require(level >= MPI_THREAD_FUNNELED,
            "mpi::communicator: MPI was initialised for programs without "
            "threads: call MPI_Init_thread with MPI_THREAD_FUNNELED or MPI_THREAD_SERIALIZED");
    link_ = std::make_unique<link>(parent, timeout_s);
  }

  int rank() const { return link_->rank; }
  int size() const { return link_->size; }
  std::int64_t bytes_sent() const { return link_->bytes_sent; }

  /// See lrmoe::communicator.
  void all_gather(const std::byte* mine, std::int64_t bytes, std::byte* all) {
    require(bytes >= 0, "all_gather: ", bytes, " bytes on rank ", rank(), " must not be negative");
    link_->begin(operation::all_gather);
    for (int i = 1; i < size(); ++i) {
      link_->receive(from(i), all + from(i) * bytes, bytes);
      link_->send(to(i), mine, bytes);
    }
    if (bytes > 0) std::memcpy(all + rank() * bytes, mine, static_cast<std::size_t>(bytes));
    link_->finish();
  }

  template <class ExecutionSpace>
  void all_to_all(const ExecutionSpace& space, const std::byte* send,
                  std::span<const std::int64_t> send_offsets, std::byte* receive,
                  std::span<const std::int64_t> receive_offsets) {
    static_assert(
        Kokkos::SpaceAccessibility<Kokkos::HostSpace,
                                   typename ExecutionSpace::memory_space>::accessible,
        "mpi::communicator exchanges host memory: run the layer on a host space, or use a "
        "communicator for device memory");
    detail::require_offsets("send", rank(), size(), send_offsets);
    detail::require_offsets("receive", rank(), size(), receive_offsets);
    const auto begin = [](std::span<const std::int64_t> offsets, int r) {
      return offsets[static_cast<std::size_t>(r)];
    };
    const auto bytes = [&](std::span<const std::int64_t> offsets, int r) {
      return begin(offsets, r + 1) - begin(offsets, r);
    };
    require(bytes(send_offsets, rank()) == bytes(receive_offsets, rank()), "all_to_all: rank ",
            rank(), " sends itself ", bytes(send_offsets, rank()), " bytes and expects ",
            bytes(receive_offsets, rank()));
    link_->begin(operation::all_to_all);
    for (int i = 1; i < size(); ++i)
      link_->receive(from(i), receive + begin(receive_offsets, from(i)),
                     bytes(receive_offsets, from(i)));
    space.fence("lrmoe::mpi::all_to_all");
    for (int i = 1; i < size(); ++i) {
      link_->send(to(i), send + begin(send_offsets, to(i)), bytes(send_offsets, to(i)));
      link_->bytes_sent += bytes(send_offsets, to(i));
    }
    detail::copy_bytes(space, receive + begin(receive_offsets, rank()),
                       send + begin(send_offsets, rank()), bytes(send_offsets, rank()));
    space.fence("lrmoe::mpi::all_to_all");
    link_->finish();
  }

 private:
  using clock = std::chrono::steady_clock;
  enum class operation { all_gather, all_to_all };

  // Each rank starts with another neighbour, so that not all write to rank 0 first.
  int to(int i) const { return (rank() + i) % size(); }
  int from(int i) const { return (rank() + size() - i) % size(); }

  /// A duplicate of MPI's communicator with the messages under way. It keeps its address when the
  /// communicator moves, since MPI writes into it.
  struct link {
    link(MPI_Comm parent, double timeout) : timeout_s(timeout) {
      MPI_Request request = MPI_REQUEST_NULL;
      check("MPI_Comm_idup", MPI_Comm_idup(parent, &comm, &request));
      const auto start = clock::now();
      for (int done = 0; done == 0;) {
        check("MPI_Test", MPI_Test(&request, &done, MPI_STATUS_IGNORE));
        if (done == 0 && seconds_since(start) > timeout_s)
          throw rank_error("lrmoe: mpi::communicator: not all ranks came within " +
                           text(timeout_s) + " s to make the communicator");
        if (done == 0) std::this_thread::yield();
      }
      MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
      check("MPI_Comm_rank", MPI_Comm_rank(comm, &rank));
      check("MPI_Comm_size", MPI_Comm_size(comm, &size));
      requests.assign(1, MPI_REQUEST_NULL);
      messages.resize(1);
      check("MPI_Irecv", MPI_Irecv(notice.data(), static_cast<int>(notice.size()), MPI_CHAR,
                                   MPI_ANY_SOURCE, notice_tag, comm, &requests[0]));
    }

    link(const link&) = delete;
    link& operator=(const link&) = delete;

    ~link() {
      int finalised = 0;
      MPI_Finalized(&finalised);
      if (finalised != 0) return;
      if (!broken && std::uncaught_exceptions() > exceptions)
        give_up("rank " + std::to_string(rank) + " left with an exception");
      // Freeing is collective, and a rank that failed may be without partners.
      if (broken) return;
      MPI_Cancel(&requests[0]);
      MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
      MPI_Comm_free(&comm);
    }

    void begin(operation next) {
      if (broken) throw rank_error(cause + " (before: this communicator takes no more calls)");
      kind = next;
      ++sequence;
      requests.resize(1);
      messages.resize(1);
      int done = 0;
      MPI_Status status;
      check("MPI_Test", MPI_Test(&requests[0], &done, &status));
      if (done != 0) hear(status);
    }

    void receive(int peer, std::byte* to, std::int64_t bytes) {
      for (std::int64_t i = 0; i < num_pieces(bytes); ++i) {
        const auto [offset, size] = piece_of(bytes, i);
        MPI_Request& request = add(peer, true, size);
        check("MPI_Irecv", MPI_Irecv(to + offset, size, MPI_BYTE, peer, tag(kind), comm, &request));
      }
    }

    void send(int peer, const std::byte* from, std::int64_t bytes) {
      for (std::int64_t i = 0; i < num_pieces(bytes); ++i) {
        const auto [offset, size] = piece_of(bytes, i);
        MPI_Request& request = add(peer, false, size);
        check("MPI_Isend",
              MPI_Isend(from + offset, size, MPI_BYTE, peer, tag(kind), comm, &request));
      }
    }

    /// Waits for all messages. Time counts from the last one that ended.
    void finish() {
      std::size_t open = requests.size() - 1;
      completed.resize(requests.size());
      statuses.resize(requests.size());
      auto progress = clock::now();
      double probed_s = 0.0;
      for (std::int64_t idle = 0; open > 0;) {
        int count = 0;
        const int code = MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &count,
                                      completed.data(), statuses.data());
        if (code != MPI_ERR_IN_STATUS) check("MPI_Testsome", code);
        for (int i = 0; i < count; ++i) {
          const auto which = static_cast<std::size_t>(completed[static_cast<std::size_t>(i)]);
          const MPI_Status& status = statuses[static_cast<std::size_t>(i)];
          if (which == 0) hear(status);
          end(messages[which], status, code == MPI_ERR_IN_STATUS);
          --open;
        }
        if (count > 0) {
          progress = clock::now();
          idle = probed_s = 0;
          continue;
        }
        if (++idle < polls_before_yield) continue;
        std::this_thread::yield();
        const double waited_s = seconds_since(progress);
        if (waited_s > timeout_s) fail(missing());
        if (waited_s > probed_s + probe_interval_s) {
          probed_s = waited_s;
          find_other_operation();
        }
      }
    }

    int rank = 0;
    int size = 1;
    std::int64_t bytes_sent = 0;

   private:
    struct message {
      int peer = 0;
      bool received = false;
      bool ended = false;
      int bytes = 0;
    };
    using notice_text = std::array<char, 512>;
    static constexpr int notice_tag = 0;
    static constexpr int polls_before_yield = 100;
    static constexpr double probe_interval_s = 0.25;

    /// Calls take turns with 16,383 numbers, as MPI promises tags up to 32,767 only. Numbers that
    /// come again are safe: messages between two ranks arrive in the order of sending.
    int tag(operation of) const {
      return 1 + 2 * static_cast<int>(sequence % 16383) + (of == operation::all_to_all ? 1 : 0);
    }

    MPI_Request& add(int peer, bool received, int bytes) {
      messages.push_back({peer, received, false, bytes});
      return requests.emplace_back(MPI_REQUEST_NULL);
    }

    void end(message& ended, const MPI_Status& status, bool has_error) {
      ended.ended = true;
      if (has_error && status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING) {
        int error_class = 0;
        MPI_Error_class(status.MPI_ERROR, &error_class);
        fail(error_class == MPI_ERR_TRUNCATE
                 ? "rank " + std::to_string(ended.peer) + " sends more than the " +
                       std::to_string(ended.bytes) + " bytes that rank " + std::to_string(rank) +
                       " expects of it in " + where()
                 : std::string(ended.received ? "receiving from" : "sending to") + " rank " +
                       std::to_string(ended.peer) + " in " + where() +
                       " failed: " + error_text(status.MPI_ERROR));
      }
      if (!ended.received) return;
      int bytes = 0;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      if (bytes != ended.bytes)
        fail("rank " + std::to_string(ended.peer) + " sends " + std::to_string(bytes) +
             " bytes where rank " + std::to_string(rank) + " expects " +
             std::to_string(ended.bytes) + " in " + where());
    }

    /// A rank that has come to another operation never sends what this one waits for.
    void find_other_operation() {
      const operation other =
          kind == operation::all_gather ? operation::all_to_all : operation::all_gather;
      int found = 0;
      MPI_Status status;
      check("MPI_Iprobe", MPI_Iprobe(MPI_ANY_SOURCE, tag(other), comm, &found, &status));
      if (found != 0)
        fail("rank " + std::to_string(status.MPI_SOURCE) + " is in " + name_of(other) +
             " while rank " + std::to_string(rank) + " is in " + where() +
             ": all ranks must call the same operations");
    }

    std::string missing() const {
      std::ostringstream result;
      const char* separator = "rank ";
      int last = -1;
      const auto list = [&](bool received) {
        for (int r = 0; r < size; ++r)
          for (std::size_t i = 1; i < messages.size(); ++i) {
            const message& m = messages[i];
            if (m.ended || m.received != received || m.peer != r || last == r) continue;
            result << separator << r;
            separator = ", rank ";
            last = r;
          }
      };
      list(true);
      const bool receives = last >= 0;
      if (!receives) list(false);
      result << (receives ? " did not come to " : " did not take its bytes in ") << where()
             << " within " << timeout_s << " s; rank " << rank << " waited";
      return result.str();
    }

    std::string where() const {
      return std::string(name_of(kind)) + " (call " + std::to_string(sequence) + ")";
    }

    /// Another rank has given up.
    [[noreturn]] void hear(const MPI_Status& status) {
      broken = true;
      cause = "lrmoe: rank " + std::to_string(status.MPI_SOURCE) + " gave up: " + notice.data();
      abandon();
      throw rank_error(cause);
    }

    [[noreturn]] void fail(const std::string& reason) {
      give_up(reason);
      throw rank_error(cause);
    }

    void check(const char* call, int code) {
      if (code != MPI_SUCCESS) fail(std::string(call) + " failed: " + error_text(code));
    }

    /// Tells the others and lets go of what is under way.
    void give_up(const std::string& reason) noexcept {
      broken = true;
      cause = "lrmoe: " + reason;
      abandon();
      // Read whenever the others come, which may be after this communicator is gone.
      static std::deque<notice_text> kept;
      notice_text& outgoing = kept.emplace_back();
      reason.copy(outgoing.data(), outgoing.size() - 1);
      for (int r = 0; r < size; ++r) {
        if (r == rank) continue;
        MPI_Request request = MPI_REQUEST_NULL;
        int done = 0;
        MPI_Isend(outgoing.data(), static_cast<int>(outgoing.size()), MPI_CHAR, r, notice_tag, comm,
                  &request);
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
      }
    }

    /// Receives that nothing has come for are withdrawn; sends cannot be.
    void abandon() noexcept {
      for (std::size_t i = 0; i < requests.size(); ++i) {
        if (requests[i] == MPI_REQUEST_NULL) continue;
        int done = 0;
        if (i == 0 || messages[i].received) MPI_Cancel(&requests[i]);
        MPI_Test(&requests[i], &done, MPI_STATUS_IGNORE);
        if (requests[i] != MPI_REQUEST_NULL) MPI_Request_free(&requests[i]);
      }
    }

    static const char* name_of(operation kind) {
      return kind == operation::all_gather ? "all_gather" : "all_to_all";
    }
    static double seconds_since(clock::time_point start) {
      return std::chrono::duration<double>(clock::now() - start).count();
    }
    static std::string text(double value) {
      std::ostringstream result;
      result << value;
      return result.str();
    }
    static std::string error_text(int code) {
      std::array<char, MPI_MAX_ERROR_STRING> buffer{};
      int length = 0;
      MPI_Error_string(code, buffer.data(), &length);
      return {buffer.data(), static_cast<std::size_t>(length)};
    }

    MPI_Comm comm = MPI_COMM_NULL;
    double timeout_s;
    operation kind = operation::all_gather;
    std::int64_t sequence = 0;
    std::vector<MPI_Request> requests;  // the first receives notices, the others are the call's
    std::vector<message> messages;      // one per request
    std::vector<int> completed;
    std::vector<MPI_Status> statuses;
    notice_text notice{};
    bool broken = false;
    std::string cause;
    int exceptions = std::uncaught_exceptions();
  };

  std::unique_ptr<link> link_;
};

static_assert(lrmoe::communicator<communicator>);

}  // namespace lrmoe::mpi
