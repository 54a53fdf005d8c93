// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <vector>

#include <lrmoe/memory/buffer.hpp>

namespace lrmoe {

/// Numbers of the host in a buffer of the device. Throws memory_error.
/// Order     as Kokkos::deep_copy on the space: the host's numbers must stay until it is done
template <class ExecutionSpace, class Device>
vector_view<index_type, Device> upload(const ExecutionSpace& space,
                                       const std::vector<index_type>& values,
                                       buffer<Device>& storage) {
  const auto view = storage.template vector<index_type>(static_cast<std::int64_t>(values.size()));
  Kokkos::deep_copy(space, view,
                    Kokkos::View<const index_type*, Kokkos::LayoutRight, Kokkos::HostSpace,
                                 Kokkos::MemoryUnmanaged>(values.data(), values.size()));
  return view;
}

}  // namespace lrmoe
