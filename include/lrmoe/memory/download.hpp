// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <type_traits>

#include <lrmoe/detail/row_parallel.hpp>
#include <lrmoe/memory/buffer.hpp>

namespace lrmoe {

/// Where a GPU puts numbers for the host by itself, which reads them there: what it copies into other memory of
/// the host goes through the driver, which holds the caller and takes longer.
template <class Device>
using landing_device =
    Kokkos::Device<typename Device::execution_space,
                   std::conditional_t<detail::on_gpu<typename Device::execution_space>,
                                      Kokkos::SharedHostPinnedSpace, Kokkos::HostSpace>>;

/// Copy a contiguous view of the device for the host.
/// Returns   the copy, to be read after the next fence of the space; what an earlier call left in `storage` is
///           overwritten
/// Throws    memory_error
/// Order     asynchronous on the space
template <class ExecutionSpace, class View, class Landing>
vector_view<const typename View::non_const_value_type, Landing> download(
    const ExecutionSpace& space, const View& from, buffer<Landing>& storage) {
  using value = typename View::non_const_value_type;
  const auto to = storage.template vector<value>(static_cast<std::int64_t>(from.size()));
  if (from.size() > 0) {
    Kokkos::deep_copy(
        space, to, vector_view<const value, typename View::device_type>(from.data(), from.size()));
  }
  return to;
}

}  // namespace lrmoe
