// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <lrmoe/cuda/device.hpp>
#include <lrmoe/cuda/exchange/nccl_link.hpp>
#include <lrmoe/exchange/collectives.hpp>

namespace lrmoe::cuda {

/// Whether NCCL lets ranks share a GPU: version 2.30 or later, told so by the environment variable
/// NCCL_MULTI_RANK_GPU_ENABLE. For trying and testing: their kernels wait for each other in turns. NCCL calls
/// it experimental, and wants fewer channels (NCCL_MAX_CTAS) where more than two ranks share one.
inline bool nccl_shares_gpus() {
  constexpr int first_version = 23000;
  int version = 0;
  const char* const asked = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return asked != nullptr && std::strtoll(asked, nullptr, 0) != 0 &&
         ncclGetVersion(&version) == ncclSuccess && version >= first_version;
}

/// R processes with a GPU each, over NCCL: device memory. Small host values, and the start, go over a host
/// communicator with the same ranks.
///
///   cuda::nccl_communicator ranks(mpi::communicator(MPI_COMM_WORLD), space);
///
/// Device    that of the space. Making one is collective; it must be gone before Kokkos::finalize and
///           before the host communicator's library ends.
/// Messages  go from each rank to each other directly, in pieces of at most 1 GiB, by grouped sends and
///           receives; NCCL's buffers have a fixed size. Nothing is allocated once a call of as many
///           messages was made.
/// Order     all_to_all returns when its work is enqueued on the space's stream. The first call connects the
///           ranks that exchange something and waits for them.
/// Failures  Every wait ends after timeout_s. A thread of this object watches the operations under way;
///           when one takes longer, from the moment the stream reaches it, or NCCL reports an error, NCCL
///           is aborted: fences return, what was received is undefined, and the next operation, or
///           require_working() after a fence, throws a rank_error that names the operation, the seconds
///           and this rank. NCCL does not tell which rank is missing; a host communicator over MPI does,
///           at the next all_gather. After a rank_error end the program.
template <communicator Host>
class nccl_communicator {
 public:
  /// Throws argument_error for a timeout that is not positive, for ranks with another version of NCCL, and for
  /// ranks with one GPU unless each finds nccl_shares_gpus(); rank_error when NCCL does not start or a rank
  /// does not come.
  explicit nccl_communicator(Host host, const Kokkos::Cuda& space = Kokkos::Cuda(),
                             double timeout_s = 300.0)
      : host_(std::move(host)) {
    require_timeout(timeout_s);
    const int device = space.cuda_device();
    link_ = std::make_unique<nccl_link>(agreed_id(device), host_.rank(), host_.size(), device,
                                        timeout_s);
  }

  /// Uses the caller's NCCL communicator, which must outlive this object and whose ranks must be the host's.
  /// Make it with ncclConfig_t::blocking = 0: calls of a blocking one cannot be given up. Where this object
  /// fails it aborts the communicator (ncclCommAbort), which then must not be destroyed again.
  nccl_communicator(Host host, ncclComm_t adopted, double timeout_s = 300.0)
      : host_(std::move(host)) {
    require_timeout(timeout_s);
    int ranks = 0, rank = 0, device = 0;
    const bool known = ncclCommCount(adopted, &ranks) == ncclSuccess &&
                       ncclCommUserRank(adopted, &rank) == ncclSuccess &&
                       ncclCommCuDevice(adopted, &device) == ncclSuccess;
    require(known,
            "nccl_communicator: the NCCL communicator given is not valid: pass one that is ready");
    require(ranks == host_.size() && rank == host_.rank(), "nccl_communicator: rank ", rank, " of ",
            ranks, " in NCCL is rank ", host_.rank(), " of ", host_.size(),
            " on the host: both must agree");
    link_ = std::make_unique<nccl_link>(adopted, rank, ranks, device, timeout_s);
  }

  int rank() const { return link_->rank(); }
  int size() const { return link_->size(); }
  std::int64_t bytes_sent() const { return bytes_sent_; }
  const Host& host() const { return host_; }

  /// Throws rank_error if an earlier operation failed. After a fence it says whether all that was received
  /// before the fence is whole.
  void require_working() const { link_->require_working(); }

  /// See lrmoe::communicator.
  void all_gather(const std::byte* mine, std::int64_t bytes, std::byte* all) {
    require_working();
    host_.all_gather(mine, bytes, all);
  }

  template <class ExecutionSpace>
  void all_to_all(const ExecutionSpace& space, const std::byte* send,
                  std::span<const std::int64_t> send_offsets, std::byte* receive,
                  std::span<const std::int64_t> receive_offsets) {
    static_assert(
        std::is_same_v<ExecutionSpace, Kokkos::Cuda>,
        "cuda::nccl_communicator exchanges device memory: run the layer on Kokkos::Cuda, or "
        "use a communicator for host memory");
    require_working();
    const int R = size(), own = rank();
    lrmoe::detail::require_offsets("send", own, R, send_offsets);
    lrmoe::detail::require_offsets("receive", own, R, receive_offsets);
    require(space.cuda_device() == link_->device(), "all_to_all: rank ", own,
            " made its communicator on GPU ", link_->device(), " and exchanges on GPU ",
            space.cuda_device(), ": use a space of the same GPU");
    const std::int64_t own_bytes = bytes_of(send_offsets, own);
    require(own_bytes == bytes_of(receive_offsets, own), "all_to_all: rank ", own, " sends itself ",
            own_bytes, " bytes and expects ", bytes_of(receive_offsets, own));
    list_messages(send, send_offsets, receive, receive_offsets);
    link_->exchange(space.cuda_stream(), send + begin_of(send_offsets, own),
                    receive + begin_of(receive_offsets, own), own_bytes, messages_);
    for (const nccl_link::message& each : messages_)
      if (!each.received) bytes_sent_ += each.bytes;
  }

 private:
  /// What ranks tell each other before NCCL starts.
  struct introduction {
    ncclUniqueId id;
    cudaUUID_t gpu;
    int version;
    bool shares_gpus;
    ncclResult_t status;
  };

  static std::int64_t begin_of(std::span<const std::int64_t> offsets, int r) {
    return offsets[static_cast<std::size_t>(r)];
  }
  static std::int64_t bytes_of(std::span<const std::int64_t> offsets, int r) {
    return begin_of(offsets, r + 1) - begin_of(offsets, r);
  }

  static void require_timeout(double timeout_s) {
    require(timeout_s > 0.0, "cuda::nccl_communicator: a timeout of ", timeout_s,
            " s must be positive: it ends the wait for a rank that is lost");
  }

  /// The id of rank 0. Every rank sees what all say, so that they go on or fail together.
  ncclUniqueId agreed_id(int device) {
    introduction mine{};
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device), "reading the properties of a GPU");
    mine.gpu = properties.uuid;
    mine.status = ncclGetVersion(&mine.version);
    mine.shares_gpus = nccl_shares_gpus();
    if (host_.rank() == 0 && mine.status == ncclSuccess) mine.status = ncclGetUniqueId(&mine.id);
    std::vector<introduction> all(static_cast<std::size_t>(host_.size()));
    lrmoe::all_gather(host_, mine, std::span(all));
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (all[r].status != ncclSuccess)
        throw rank_error("lrmoe: nccl_communicator: NCCL does not start on rank " +
                         std::to_string(r) + ": " + ncclGetErrorString(all[r].status) +
                         "; NCCL_DEBUG=WARN prints more");
      require(all[r].version == all[0].version, "nccl_communicator: NCCL has version ",
              library_version_text(all[r].version), " on rank ", r, " and ",
              library_version_text(all[0].version), " on rank 0: use one version on all ranks");
      for (std::size_t s = 0; s < r; ++s)
        require(std::memcmp(&all[r].gpu, &all[s].gpu, sizeof(cudaUUID_t)) != 0 ||
                    (all[r].shares_gpus && all[s].shares_gpus),
                "nccl_communicator: ranks ", s, " and ", r,
                " use the same GPU: give each its own, or run them as logical::world in one "
                "process; to try several processes on one GPU, set NCCL_MULTI_RANK_GPU_ENABLE=1 "
                "on all with NCCL 2.30 or later (here: ",
                library_version_text(all[r].version), ")");
    }
    return all[0].id;
  }

  /// Each rank starts with another neighbour, so that not all send to rank 0 first. Pieces between two
  /// ranks match by their order alone.
  void list_messages(const std::byte* send, std::span<const std::int64_t> send_offsets,
                     std::byte* receive, std::span<const std::int64_t> receive_offsets) {
    messages_.clear();
    const int R = size(), own = rank();
    for (int i = 1; i < R; ++i) {
      const int to = (own + i) % R, from = (own + R - i) % R;
      // NCCL's messages have one type of pointer here; those that are sent are only read.
      if (bytes_of(send_offsets, to) > 0)
        messages_.push_back({const_cast<std::byte*>(send) + begin_of(send_offsets, to),
                             bytes_of(send_offsets, to), to, false});
      if (bytes_of(receive_offsets, from) > 0)
        messages_.push_back({receive + begin_of(receive_offsets, from),
                             bytes_of(receive_offsets, from), from, true});
    }
  }

  // The link goes first at the end, while the host can still tell others of a failure.
  Host host_;
  std::int64_t bytes_sent_ = 0;
  std::vector<nccl_link::message> messages_;
  std::unique_ptr<nccl_link> link_;
};

static_assert(communicator<nccl_communicator<single_rank>>);

}  // namespace lrmoe::cuda
