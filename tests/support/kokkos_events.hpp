// What a piece of code asks of Kokkos that a steady state must not.
#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

namespace fixture {

/// Host synchronisations and allocations, heard from Kokkos while it lives.
class kokkos_events {
 public:
  kokkos_events() {
    fences = allocations = 0;
    Kokkos::Tools::Experimental::set_begin_fence_callback(
        [](const char*, std::uint32_t, std::uint64_t*) { ++fences; });
    // Kokkos asks for no bytes before it launches teams.
    Kokkos::Tools::Experimental::set_allocate_data_callback(
        [](Kokkos::Profiling::SpaceHandle, const char*, const void*, std::uint64_t bytes) {
          allocations += bytes > 0 ? 1 : 0;
        });
  }
  kokkos_events(const kokkos_events&) = delete;
  kokkos_events& operator=(const kokkos_events&) = delete;
  ~kokkos_events() {
    Kokkos::Tools::Experimental::set_begin_fence_callback(nullptr);
    Kokkos::Tools::Experimental::set_allocate_data_callback(nullptr);
  }
  static inline int fences = 0;
  static inline int allocations = 0;
};

}  // namespace fixture
