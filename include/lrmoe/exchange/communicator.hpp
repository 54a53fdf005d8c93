// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include <lrmoe/error.hpp>

namespace lrmoe {

/// A communicator joins R ranks that run the same program: each calls the same operations in the same
/// order. It moves bytes and decides nothing.
///   rank(), size()      this rank in [0, R), and R
///   all_gather(mine, bytes, all)
///       small host values: all (R, bytes) receives every rank's bytes; equal `bytes` on all ranks
///   all_to_all(space, send, send_offsets (R+1), receive, receive_offsets (R+1))
///       bytes send_offsets[r] .. send_offsets[r+1] go to rank r, what rank s sent arrives at
///       receive_offsets[s] .. receive_offsets[s+1]. Both sides know all sizes beforehand: none are sent.
///       Sizes are 64 bits wide. Send and receive do not overlap. The part for this rank itself is copied.
///   bytes_sent()        bytes that all_to_all sent to other ranks since construction
/// Order     all_to_all is ordered after the work enqueued on `space` before it, and before what is
///           enqueued after it; send and receive may be used again then. all_gather is complete on return.
/// Throws    rank_error when a rank left, failed or did not come within the timeout, naming it; the
///           communicator then refuses further use. Nothing waits for ever.
/// Laws      what arrives depends on nothing but what was sent: bitwise the same from run to run
/// Models: single_rank, logical::communicator, mpi::communicator.
template <class Communicator>
concept communicator = std::movable<Communicator> &&
    requires(Communicator& c, const Communicator& constant,
             const Kokkos::DefaultHostExecutionSpace& space, const std::byte* send,
             std::byte* receive, std::span<const std::int64_t> offsets) {
  { constant.rank() } -> std::same_as<int>;
  { constant.size() } -> std::same_as<int>;
  { constant.bytes_sent() } -> std::same_as<std::int64_t>;
  c.all_gather(send, std::int64_t{}, receive);
  c.all_to_all(space, send, offsets, receive, offsets);
};

namespace detail {

/// Throws argument_error unless offsets (R+1) start at 0 or later and never fall.
inline void require_offsets(const char* name, int rank, int ranks,
                            std::span<const std::int64_t> offsets) {
  require(offsets.size() == static_cast<std::size_t>(ranks) + 1, "all_to_all: rank ", rank,
          " passes ", offsets.size(), " ", name, " offsets for ", ranks, " ranks: pass ",
          ranks + 1);
  require(offsets[0] >= 0, "all_to_all: rank ", rank, " passes a first ", name, " offset of ",
          offsets[0], " bytes: it must not be negative");
  for (std::size_t r = 0; r + 1 < offsets.size(); ++r)
    require(offsets[r] <= offsets[r + 1], "all_to_all: ", name, " offsets of rank ", rank,
            " fall from ", offsets[r], " to ", offsets[r + 1], " bytes at rank ", r,
            ": pass ascending offsets");
}

/// Copy on the space. Small pieces of host memory skip the launch of a parallel copy.
template <class ExecutionSpace>
void copy_bytes(const ExecutionSpace& space, std::byte* to, const std::byte* from,
                std::int64_t bytes) {
  using memory = typename ExecutionSpace::memory_space;
  if (bytes == 0) return;
  const auto count = static_cast<std::size_t>(bytes);
  if constexpr (Kokkos::SpaceAccessibility<Kokkos::HostSpace, memory>::accessible &&
                std::is_same_v<typename memory::execution_space, ExecutionSpace>) {
    if (bytes <= 1 << 16) {
      space.fence("lrmoe::copy_bytes");
      std::memcpy(to, from, count);
      return;
    }
  }
  Kokkos::deep_copy(space, Kokkos::View<std::byte*, memory, Kokkos::MemoryUnmanaged>(to, count),
                    Kokkos::View<const std::byte*, memory, Kokkos::MemoryUnmanaged>(from, count));
}

}  // namespace detail

/// The only rank of a program without others.
class single_rank {
 public:
  int rank() const { return 0; }
  int size() const { return 1; }
  std::int64_t bytes_sent() const { return 0; }

  void all_gather(const std::byte* mine, std::int64_t bytes, std::byte* all) {
    if (bytes > 0) std::memcpy(all, mine, static_cast<std::size_t>(bytes));
  }

  template <class ExecutionSpace>
  void all_to_all(const ExecutionSpace& space, const std::byte* send,
                  std::span<const std::int64_t> from, std::byte* receive,
                  std::span<const std::int64_t> to) {
    detail::require_offsets("send", 0, 1, from);
    detail::require_offsets("receive", 0, 1, to);
    require(from[1] - from[0] == to[1] - to[0], "all_to_all: rank 0 sends itself ",
            from[1] - from[0], " bytes and expects ", to[1] - to[0]);
    detail::copy_bytes(space, receive + to[0], send + from[0], from[1] - from[0]);
  }
};

}  // namespace lrmoe
