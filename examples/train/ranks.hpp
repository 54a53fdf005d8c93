// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <chrono>
#include <type_traits>
#include <variant>

#include <lrmoe/exchange/agreement.hpp>
#include <lrmoe/exchange/any_communicator.hpp>
#include <lrmoe/exchange/collectives.hpp>
#include <lrmoe/exchange/logical.hpp>
#if LRMOE_TRAIN_HAS_MPI
#include <lrmoe/exchange/mpi.hpp>
#endif

namespace train {

/// The ranks of a run: one, several in this process, or the processes of mpirun. Every rank has its
/// share of each batch and all parameters but the experts', which the ranks divide among themselves.
#if LRMOE_TRAIN_HAS_MPI
using communicator = lrmoe::any_communicator<lrmoe::single_rank, lrmoe::logical::communicator,
                                             lrmoe::mpi::communicator>;
#else
using communicator = lrmoe::any_communicator<lrmoe::single_rank, lrmoe::logical::communicator>;
#endif

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Time that this rank has worked. Ranks of one process take turns: what others do meanwhile does not
/// count.
inline double rank_seconds_now(const communicator& ranks) {
  if (const auto* logical = std::get_if<lrmoe::logical::communicator>(&ranks.model()))
    return logical->busy_s();
  return seconds_now();
}

/// First of n things that rank r gets; r = R gives n.
inline std::int64_t share_begin(std::int64_t n, std::int64_t rank, std::int64_t ranks) {
  return n * rank / ranks;
}

}  // namespace train
