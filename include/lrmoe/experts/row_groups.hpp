// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <span>

#include <lrmoe/types.hpp>

namespace lrmoe {

/// Rows of G groups, one behind the other: group g owns rows offsets(g) .. offsets(g+1).
/// The same numbers twice: kernels read them on the device, and what is launched group by group takes its
/// extents from the host. The plan knows them there, so that no operation has to ask the device.
template <class Device>
struct row_groups {
  vector_view<const index_type, Device> offsets;  // (G+1)
  std::span<const index_type> host;               // (G+1), must outlive the operations that use it

  std::int64_t size() const { return static_cast<std::int64_t>(host.size()) - 1; }
  std::int64_t first() const { return host.front(); }
  std::int64_t end() const { return host.back(); }
  std::int64_t rows() const { return end() - first(); }
  std::int64_t first(std::int64_t g) const { return host[static_cast<std::size_t>(g)]; }
  std::int64_t rows(std::int64_t g) const { return first(g + 1) - first(g); }

  /// Groups that have rows.
  std::int64_t used() const {
    std::int64_t count = 0;
    for (std::int64_t g = 0; g < size(); ++g) count += rows(g) > 0 ? 1 : 0;
    return count;
  }
};

}  // namespace lrmoe
