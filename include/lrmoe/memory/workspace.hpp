// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lrmoe/memory/buffer.hpp>

namespace lrmoe {

/// Scratch buffers by name, shared by all layers of a context: contents live no longer than one
/// forward or backward call, so a model of many layers holds one set. They lie on the device of the space.
template <class Device>
class workspace {
 public:
  using execution_space = typename Device::execution_space;

  workspace(const execution_space& space, ledger& account,
            memory_category category = memory_category::workspace)
      : space_(space), ledger_(&account), category_(category) {}

  /// The buffer of this name, made at its first use.
  buffer<Device>& operator[](std::string_view name) {
    for (auto& [key, value] : buffers_) {
      if (key == name) return *value;
    }
    auto made = std::make_unique<buffer<Device>>(space_, *ledger_, category_,
                                                 "workspace::" + std::string(name));
    return *buffers_.emplace_back(std::string(name), std::move(made)).second;
  }

  std::int64_t size_bytes() const {
    std::int64_t total = 0;
    for (const auto& entry : buffers_) total += entry.second->size_bytes();
    return total;
  }

  /// Set every byte of every buffer; see buffer::fill_bytes.
  template <class ExecutionSpace>
  void fill_bytes(const ExecutionSpace& space, unsigned char value) {
    for (auto& entry : buffers_) entry.second->fill_bytes(space, value);
  }

 private:
  execution_space space_;
  ledger* ledger_;
  memory_category category_;
  std::vector<std::pair<std::string, std::unique_ptr<buffer<Device>>>> buffers_;
};

}  // namespace lrmoe
