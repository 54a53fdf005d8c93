// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <Kokkos_Core.hpp>

#include "harness.hpp"

namespace bench {

/// Time by label: the tree of Kokkos profiling regions and, below them, kernels and copies, as they
/// were entered while a recording was alive. Kokkos calls back at each begin and end, so nothing in
/// the library is changed and no tool has to be loaded.
class profile {
 public:
  struct node {
    std::string label;
    std::int64_t calls = 0;
    double seconds = 0;
    std::vector<std::unique_ptr<node>> children{};

    /// In none of the children.
    double own_seconds() const {
      double own = seconds;
      for (const auto& child : children) own -= child->seconds;
      return own;
    }
  };

  /// Adds to a profile while it is alive. One at a time, after Kokkos was initialised, and for work
  /// of the calling thread. On a GPU a kernel goes on after its launch returns: with `waits` every begin and
  /// end waits for the device, so that time is where it belongs, and the whole takes longer.
  class recording {
   public:
    explicit recording(profile& into, bool waits = false) {
      into.open_.assign(1, {&into.root_, stopwatch{}});
      into.waits_ = waits;
      current() = &into;
      install_callbacks();
    }
    recording(const recording&) = delete;
    recording& operator=(const recording&) = delete;
    ~recording() {
      remove_callbacks();
      current() = nullptr;
    }
  };

  const node& root() const { return root_; }
  void clear() { root_.children.clear(); }

  /// Seconds in all nodes with this label, wherever they are. On a GPU products are not Kokkos kernels: they
  /// are the part of a region that is in none of its children. Throws std::runtime_error when there
  /// is none: a label that was renamed must not read as work that takes no time.
  double seconds_in(std::string_view label) const {
    return sum_of(label, [](const node&) { return true; });
  }

  /// The same in the trees of the outermost nodes that are called `root_label`.
  double seconds_in(std::string_view label, std::string_view root_label) const {
    return sum_of(label, [&](const node& root) { return root.label == root_label; });
  }

  /// Calls visit(node, depth) for all nodes in order of entry.
  void visit(const std::function<void(const node&, int)>& visitor) const {
    for (const auto& child : root_.children) visit(*child, 0, visitor);
  }

 private:
  struct open_scope {
    node* where;
    stopwatch since;
  };

  static profile*& current() {
    static profile* recorded = nullptr;
    return recorded;
  }

  void enter(const char* label) {
    wait();
    node* parent = open_.back().where;
    const auto found = std::find_if(parent->children.begin(), parent->children.end(),
                                    [&](const auto& child) { return child->label == label; });
    node* where = found != parent->children.end()
                      ? found->get()
                      : parent->children.emplace_back(new node{label}).get();
    open_.push_back({where, stopwatch{}});
  }

  void leave() {
    if (open_.size() < 2) return;
    wait();
    const auto [where, since] = open_.back();
    where->seconds += since.seconds();
    ++where->calls;
    open_.pop_back();
  }

  void wait() const {
    if (waits_) Kokkos::fence("bench::profile: wait");
  }

  static void remove_callbacks() {
    namespace tools = Kokkos::Tools::Experimental;
    tools::set_begin_parallel_for_callback(nullptr);
    tools::set_end_parallel_for_callback(nullptr);
    tools::set_begin_parallel_reduce_callback(nullptr);
    tools::set_end_parallel_reduce_callback(nullptr);
    tools::set_begin_parallel_scan_callback(nullptr);
    tools::set_end_parallel_scan_callback(nullptr);
    tools::set_push_region_callback(nullptr);
    tools::set_pop_region_callback(nullptr);
    tools::set_begin_deep_copy_callback(nullptr);
    tools::set_end_deep_copy_callback(nullptr);
  }

  static void install_callbacks() {
    namespace tools = Kokkos::Tools::Experimental;
    const auto begin = [](const char* label, std::uint32_t /*device*/, std::uint64_t* /*id*/) {
      if (current()) current()->enter(label);
    };
    const auto end = [](std::uint64_t /*id*/) {
      if (current()) current()->leave();
    };
    tools::set_begin_parallel_for_callback(begin);
    tools::set_end_parallel_for_callback(end);
    tools::set_begin_parallel_reduce_callback(begin);
    tools::set_end_parallel_reduce_callback(end);
    tools::set_begin_parallel_scan_callback(begin);
    tools::set_end_parallel_scan_callback(end);
    tools::set_push_region_callback([](const char* label) {
      if (current()) current()->enter(label);
    });
    tools::set_pop_region_callback([]() {
      if (current()) current()->leave();
    });
    tools::set_begin_deep_copy_callback([](Kokkos::Profiling::SpaceHandle, const char*, const void*,
                                           Kokkos::Profiling::SpaceHandle, const char*, const void*,
                                           std::uint64_t) {
      if (current()) current()->enter("Kokkos::deep_copy");
    });
    tools::set_end_deep_copy_callback([]() {
      if (current()) current()->leave();
    });
  }

  template <class Chosen>
  double sum_of(std::string_view label, const Chosen& chosen) const {
    double sum = 0;
    bool found = false;
    for (const auto& child : root_.children) {
      if (!chosen(*child)) continue;
      visit(*child, 0, [&](const node& one, int /*depth*/) {
        if (one.label != label) return;
        found = true;
        sum += one.seconds;
      });
    }
    if (!found) {
      throw std::runtime_error("no kernel or region is called '" + std::string(label) +
                               "': the benchmark's list of labels is out of date");
    }
    return sum;
  }

  static void visit(const node& one, int depth,
                    const std::function<void(const node&, int)>& visitor) {
    visitor(one, depth);
    for (const auto& child : one.children) visit(*child, depth + 1, visitor);
  }

  node root_{};
  std::vector<open_scope> open_;
  bool waits_ = false;
};

}  // namespace bench
