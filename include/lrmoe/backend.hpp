// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/exchange/communicator.hpp>
#include <lrmoe/experts/operations.hpp>
#include <lrmoe/memory/workspace.hpp>
#include <lrmoe/types.hpp>

namespace lrmoe {

namespace detail {

template <class Backend>
inline constexpr bool makes_operations =
    std::is_constructible_v<typename Backend::expert_operations,
                            workspace<typename Backend::device_type>&>;

}  // namespace detail

/// A backend names where the library runs and which expert operations it runs with.
///   execution_space, device_type   Kokkos types; every view handed to a layer has this device
///   expert_operations              constructed from the workspace it may take scratch from; its
///                                  five operations are specified in experts/operations.hpp
///   communicator                   joins the ranks that share a layer's experts; single_rank for one
/// Row kernels (routing, order, selection, weighted sums) are Kokkos code and need nothing else.
/// Models: openmp::backend.
template <class Backend>
concept backend = Kokkos::is_execution_space_v<typename Backend::execution_space> &&
    Kokkos::is_device_v<typename Backend::device_type> && detail::makes_operations<Backend> &&
    communicator<typename Backend::communicator> &&
    expert_operations<typename Backend::expert_operations, typename Backend::execution_space,
                      typename Backend::device_type, float>;

/// A backend whose layers spread over the ranks of a communicator.
///   with_ranks<openmp::backend<>, mpi::communicator>
template <backend Backend, communicator Communicator>
struct with_ranks : Backend {
  using communicator = Communicator;
};

}  // namespace lrmoe
