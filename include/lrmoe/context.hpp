// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <utility>

#include <lrmoe/backend.hpp>
#include <lrmoe/control/cost_model.hpp>
#include <lrmoe/memory/ledger.hpp>
#include <lrmoe/memory/workspace.hpp>

namespace lrmoe {

/// What the layers of one model share: the execution space instance they run on, the backend's
/// expert operations, the memory ledger, the scratch space, the rates of the machine, and the ranks that
/// share the layers' experts. With several ranks each has a context of its own, and the calls of its
/// layers are collective.
/// Work is enqueued on `space` in call order, and memory of the context and its layers lies on the device of
/// `space`; two contexts are independent of each other, on one device or on two. One host thread at a time
/// may use a context, and it must outlive its layers.
template <backend Backend>
class context {
 public:
  using backend_type = Backend;
  using execution_space = typename Backend::execution_space;
  using device_type = typename Backend::device_type;
  using communicator = typename Backend::communicator;

  explicit context(const execution_space& instance = execution_space{})
      : space(instance), scratch(space, memory), operations(scratch) {}

  explicit context(communicator joined, const execution_space& instance = execution_space{})
      : space(instance), ranks(std::move(joined)), scratch(space, memory), operations(scratch) {}

  context(const context&) = delete;
  context& operator=(const context&) = delete;

  /// Layers that live on this context. They share its budget, so plans count with so many alike.
  std::int64_t layers() const { return layers_; }

  /// Counts a layer for as long as it lives.
  class registration {
   public:
    explicit registration(context& on) : layers_(&on.layers_) { ++*layers_; }
    registration(registration&& other) noexcept : layers_(other.layers_) { ++*layers_; }
    registration& operator=(registration&&) = delete;
    ~registration() { --*layers_; }

   private:
    std::int64_t* layers_;
  };

  execution_space space;
  communicator ranks;
  ledger memory;
  machine_rates rates;  ///< what predictions of time go by; set them before the first call
  workspace<device_type> scratch;
  typename Backend::expert_operations operations;

 private:
  std::int64_t layers_ = 0;
};

}  // namespace lrmoe
