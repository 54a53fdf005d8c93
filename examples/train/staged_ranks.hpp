// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <span>
#include <vector>

#include "host.hpp"
#include "ranks.hpp"

namespace train {

/// The ranks of a run for a layer whose rows are in the memory of a device: they pass through host memory,
/// so every communicator of the host will do, MPI included. A model of lrmoe::communicator.
class staged_ranks {
 public:
  /// The host's communicator must outlive this object; both stand for the same rank.
  explicit staged_ranks(communicator& host) : host_(&host) {}

  int rank() const { return host_->rank(); }
  int size() const { return host_->size(); }
  std::int64_t bytes_sent() const { return host_->bytes_sent(); }

  void all_gather(const std::byte* mine, std::int64_t bytes, std::byte* all) {
    host_->all_gather(mine, bytes, all);
  }

  template <class ExecutionSpace>
  void all_to_all(const ExecutionSpace& space, const std::byte* send,
                  std::span<const std::int64_t> send_offsets, std::byte* receive,
                  std::span<const std::int64_t> receive_offsets) {
    lrmoe::detail::require_offsets("send", rank(), size(), send_offsets);
    lrmoe::detail::require_offsets("receive", rank(), size(), receive_offsets);
    using there = bytes_view<std::byte, typename ExecutionSpace::memory_space>;
    using const_there = bytes_view<const std::byte, typename ExecutionSpace::memory_space>;
    const auto resize = [](std::vector<std::byte>& here, std::int64_t size) {
      if (here.size() < static_cast<std::size_t>(size)) here.resize(static_cast<std::size_t>(size));
    };
    resize(sent_, send_offsets.back());
    resize(received_, receive_offsets.back());
    const auto [send_begin, send_size] = whole(send_offsets);
    if (send_size > 0) {
      Kokkos::deep_copy(space, host_bytes(sent_.data() + send_begin, send_size),
                        const_there(send + send_begin, send_size));
    }
    space.fence("train::staged_ranks: bytes to send");
    host_->all_to_all(train::space(), sent_.data(), send_offsets, received_.data(),
                      receive_offsets);
    train::space().fence("train::staged_ranks: bytes received");
    const auto [receive_begin, receive_size] = whole(receive_offsets);
    if (receive_size > 0) {
      Kokkos::deep_copy(space, there(receive + receive_begin, receive_size),
                        const_host_bytes(received_.data() + receive_begin, receive_size));
    }
    // The next call fills the host's bytes anew.
    space.fence("train::staged_ranks: bytes handed on");
  }

 private:
  template <class Byte, class Memory>
  using bytes_view = Kokkos::View<Byte*, Memory, Kokkos::MemoryUnmanaged>;
  using host_bytes = bytes_view<std::byte, Kokkos::HostSpace>;
  using const_host_bytes = bytes_view<const std::byte, Kokkos::HostSpace>;

  struct range {
    std::size_t begin, size;
  };
  static range whole(std::span<const std::int64_t> offsets) {
    return {static_cast<std::size_t>(offsets.front()),
            static_cast<std::size_t>(offsets.back() - offsets.front())};
  }

  communicator* host_;
  std::vector<std::byte> sent_, received_;
};

static_assert(lrmoe::communicator<staged_ranks>);

}  // namespace train
