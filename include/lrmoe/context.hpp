// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/backend.hpp>
#include <lrmoe/memory/ledger.hpp>
#include <lrmoe/memory/workspace.hpp>

namespace lrmoe {

/// What the layers of one model share: the execution space instance they run on, the backend's
/// expert operations, the memory ledger and the scratch space.
/// Work is enqueued on `space` in call order; two contexts are independent of each other. One host
/// thread at a time may use a context, and it must outlive its layers.
template <backend Backend>
class context {
 public:
  using backend_type = Backend;
  using execution_space = typename Backend::execution_space;
  using device_type = typename Backend::device_type;

  explicit context(const execution_space& instance = execution_space{})
      : space(instance), scratch(memory), operations(scratch) {}

  context(const context&) = delete;
  context& operator=(const context&) = delete;

  execution_space space;
  ledger memory;
  workspace<device_type> scratch;
  typename Backend::expert_operations operations;
};

}  // namespace lrmoe
