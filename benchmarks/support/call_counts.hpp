// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>

#include <Kokkos_Core.hpp>

namespace bench {

/// What Kokkos reports of a call besides kernels: allocations, times that the host waits for the device,
/// and copies from device memory to the host.
struct call_counts {
  std::int64_t allocations = 0;
  std::int64_t fences = 0;
  std::int64_t copies_to_host = 0;
  std::map<std::string, std::int64_t> fences_by_name{};

  call_counts& operator+=(const call_counts& other) {
    allocations += other.allocations;
    fences += other.fences;
    copies_to_host += other.copies_to_host;
    for (const auto& [name, count] : other.fences_by_name) fences_by_name[name] += count;
    return *this;
  }

  /// Adds to counts while it is alive. One at a time, and not beside profile::recording, whose callbacks
  /// wait for the device themselves.
  class recording {
   public:
    explicit recording(call_counts& into) {
      namespace tools = Kokkos::Tools::Experimental;
      using space = Kokkos::Profiling::SpaceHandle;
      current() = &into;
      // Kokkos asks for no bytes before it launches teams on a GPU.
      tools::set_allocate_data_callback(
          [](const space, const char*, const void*, const std::uint64_t bytes) {
            current()->allocations += bytes > 0 ? 1 : 0;
          });
      tools::set_begin_fence_callback(
          [](const char* name, const std::uint32_t, std::uint64_t* /*id*/) {
            ++current()->fences;
            ++current()->fences_by_name[name];
          });
      tools::set_begin_deep_copy_callback([](space to, const char*, const void*, space from,
                                             const char*, const void*, std::uint64_t) {
        current()->copies_to_host += on_host(to.name) && !on_host(from.name) ? 1 : 0;
      });
    }
    recording(const recording&) = delete;
    recording& operator=(const recording&) = delete;
    ~recording() {
      namespace tools = Kokkos::Tools::Experimental;
      tools::set_allocate_data_callback(nullptr);
      tools::set_begin_fence_callback(nullptr);
      tools::set_begin_deep_copy_callback(nullptr);
      current() = nullptr;
    }
  };

 private:
  static bool on_host(const char* space) { return std::strstr(space, "Host") != nullptr; }

  static call_counts*& current() {
    static call_counts* counted = nullptr;
    return counted;
  }
};

}  // namespace bench
