// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include <lrmoe/cuda/product/cublas_grouped.hpp>
#include <lrmoe/cuda/product/cublas_loop.hpp>
#include <lrmoe/cuda/product/hopper_grouped.hpp>
#include <lrmoe/cuda/product/product_choices.hpp>

namespace lrmoe::cuda {

/// How measured_product chooses; see there.
enum class product_mode { rule, loop, grouped, hopper, measured };

constexpr std::string_view name_of(product_mode mode) {
  constexpr std::array<std::string_view, 5> names{"rule", "loop", "grouped", "hopper", "measured"};
  return names[static_cast<std::size_t>(mode)];
}

/// Throws argument_error for a text that is no mode's name.
inline product_mode product_mode_of(std::string_view text) {
  for (const auto mode : {product_mode::rule, product_mode::loop, product_mode::grouped,
                          product_mode::hopper, product_mode::measured})
    if (text == name_of(mode)) return mode;
  require(false, "LRMOE_CUDA_PRODUCT = '", text, "': use rule, loop, grouped, hopper or measured");
  return product_mode::rule;
}

/// A grouped product (contract: lrmoe/experts/grouped_product.hpp) that holds cublas_loop, cublas_grouped and
/// hopper_grouped and gives every call to one of them. The environment variable LRMOE_CUDA_PRODUCT, or
/// set_mode(), says how:
///   rule      the default. What choices() has, measured before and loaded, else a fixed rule on extents.
///   measured  the same, but a class of shapes that choices() lacks is measured: its first calls go to
///             those that support it in turn, once to warm each up and once to time it, and the fastest one
///             has the class from then on. Each call computes its product once, whoever does it, so
///             gradients are added once. A class of gradients is measured on calls that add, or on calls that
///             overwrite, as its first one does; the rule has the others until it is decided. Times are
///             taken by events and read when the next measured call comes.
///   loop, grouped, hopper   that one alone; the last two refuse what they do not support.
/// Laws      They round differently. In all modes but `measured` the choice depends on the extents, the
///           alignment, the device and the loaded choices alone, so results are bitwise the same from run
///           to run; in the mode measured it depends on times, so they need not be: measure once, save
///           the choices, load them.
/// Supports  everything: what the others do not is computed by cublas_loop, in the modes rule and measured;
///           report() lists what they refused, and why.
class measured_product : public typed_products<measured_product> {
 public:
  explicit measured_product(workspace<device_type>& scratch)
      : loop_(scratch), grouped_(scratch), hopper_(scratch) {
    if (const char* text = std::getenv("LRMOE_CUDA_PRODUCT")) mode_ = product_mode_of(text);
  }
  measured_product(const measured_product&) = delete;
  measured_product& operator=(const measured_product&) = delete;
  ~measured_product() {
    for (cudaEvent_t each : {begun_, ended_})
      if (each != nullptr) static_cast<void>(cudaEventDestroy(each));
  }

  /// Loop and grouped share the workspace of cuBLAS, of which the loop takes more.
  static std::int64_t workspace_bytes(const Kokkos::Cuda& space) {
    return cublas_loop::workspace_bytes(space) + cublas_grouped::workspace_bytes(space) -
           cublas_workspace::bytes(space, 1);
  }
  void reserve(const Kokkos::Cuda& space) {
    loop_.reserve(space);
    grouped_.reserve(space);
    hopper_.reserve(space);
  }

  /// The products of all groups that have rows.
  void multiply(const Kokkos::Cuda& space, const grouped_gemm& gemm,
                const row_groups<device_type>& groups) {
    if (groups.rows() == 0) return;
    switch (mode_) {
      case product_mode::loop:
        return run(product_provider::loop, space, gemm, groups);
      case product_mode::grouped:
        return run(product_provider::grouped, space, gemm, groups);
      case product_mode::hopper:
        return run(product_provider::hopper, space, gemm, groups);
      default:
        break;
    }
    const std::int64_t used = groups.used();
    entry* known = entry_of(gemm, used, groups.rows() / used);
    if (known != nullptr && known->decided) {
      const product_provider fastest = known->fastest();
      // A call of the class may be aligned otherwise than those that were measured.
      return run(supports(fastest, space, gemm, groups) ? fastest : product_provider::loop, space,
                 gemm, groups);
    }
    if (mode_ == product_mode::rule || (known != nullptr && known->adds != gemm.adds))
      return run(by_rule(space, gemm, groups), space, gemm, groups);
    measure(known != nullptr ? *known : add_entry(gemm, used, groups.rows() / used), space, gemm,
            groups);
  }

  product_mode mode() const { return mode_; }
  void set_mode(product_mode mode) { mode_ = mode; }

  /// What was measured or loaded; save() and load() make it last.
  product_choices& choices() { return choices_; }

  /// The provider of the latest call.
  product_provider latest() const { return latest_; }

  /// Mode, choices, and what the others left to the loop, for people.
  std::string report() {
    read_times();
    std::string text = "products: mode " + std::string(name_of(mode_)) + "\n" + choices_.text();
    if (const std::string refused = grouped_.refusals(); !refused.empty())
      text += "not supported by the grouped product of cuBLAS:\n" + refused;
    if (const std::string refused = hopper_.refusals(); !refused.empty())
      text += "some calls were not given to the own product:\n" + refused;
    return text;
  }

 private:
  using entry = product_choices::entry;

  struct timing {
    shape_class shape;
    product_provider provider;
    double flops;
  };

  bool supports(product_provider provider, const Kokkos::Cuda& space, const grouped_gemm& gemm,
                const row_groups<device_type>& groups) {
    switch (provider) {
      case product_provider::grouped:
        return grouped_.supports(space, gemm) && grouped_.aligned(gemm, groups);
      case product_provider::hopper:
        return hopper_.supports(space, gemm, groups);
      default:
        return true;
    }
  }

  /// Large products keep the device busy one by one, and cuBLAS' are the fastest. Others are limited by what
  /// a launch costs the host in the loop, 8 microseconds per group where it was measured (an H200): the own
  /// kernels take one for all. Where they are not, the grouped kernel of cuBLAS is worth its lower rate,
  /// about 280 TFLOP/s for bfloat16, as long as a group's product takes the device less than a launch. The
  /// limits are the work of a group from which on the loop was faster.
  product_provider by_rule(const Kokkos::Cuda& space, const grouped_gemm& gemm,
                           const row_groups<device_type>& groups) {
    constexpr std::int64_t few_groups = 4;
    const std::int64_t used = groups.used();
    const double flops = gemm.flops(groups.rows()) / static_cast<double>(used);
    if (used <= few_groups) return product_provider::loop;
    const double own_flops = !gemm.sums_rows() ? 3e10 : gemm.adds ? 1e10 : 1e11;
    if (flops < own_flops && supports(product_provider::hopper, space, gemm, groups))
      return product_provider::hopper;
    const double few_flops = gemm.in == CUDA_R_16BF ? 2.2e9 : 1.5e8;
    return flops < few_flops && supports(product_provider::grouped, space, gemm, groups)
               ? product_provider::grouped
               : product_provider::loop;
  }

  entry* entry_of(const grouped_gemm& gemm, std::int64_t used, std::int64_t rows) {
    return choices_.find(gemm.element, name_of(gemm.operation), gemm.m, gemm.other,
                         power_of_two_below(used), power_of_two_below(rows));
  }
  entry& add_entry(const grouped_gemm& gemm, std::int64_t used, std::int64_t rows) {
    entry& added =
        choices_.add({std::string(gemm.element), std::string(name_of(gemm.operation)), gemm.m,
                      gemm.other, power_of_two_below(used), power_of_two_below(rows)});
    added.adds = gemm.adds;
    return added;
  }

  /// One call of the measurement.
  void measure(entry& of, const Kokkos::Cuda& space, const grouped_gemm& gemm,
               const row_groups<device_type>& groups) {
    std::array<product_provider, product_providers.size()> able{};
    int count = 0;
    for (const auto each : product_providers)
      if (supports(each, space, gemm, groups)) able[static_cast<std::size_t>(count++)] = each;
    const int call = of.calls++;
    const auto provider = able[static_cast<std::size_t>(call % count)];
    if (call < count) return run(provider, space, gemm, groups);
    const shape_class shape = of.shape;
    read_times();
    const device_guard guard(space.cuda_device());
    for (cudaEvent_t* each : {&begun_, &ended_})
      if (*each == nullptr) check(cudaEventCreate(each), "making a CUDA event");
    check(cudaEventRecord(begun_, space.cuda_stream()), "recording a CUDA event");
    run(provider, space, gemm, groups);
    check(cudaEventRecord(ended_, space.cuda_stream()), "recording a CUDA event");
    pending_ = timing{shape, provider, gemm.flops(groups.rows())};
    // The one wait of a class: from here on its choice is known.
    if (call + 1 < 2 * count) return;
    read_times();
    if (entry* done = entry_of(gemm, groups.used(), groups.rows() / groups.used()))
      done->decided = true;
  }

  void read_times() {
    if (!pending_) return;
    float milliseconds = 0.0F;
    check(cudaEventSynchronize(ended_), "waiting for a measured product");
    check(cudaEventElapsedTime(&milliseconds, begun_, ended_), "reading the time of a product");
    const shape_class& s = pending_->shape;
    if (entry* of = choices_.find(s.element, s.operation, s.n, s.k, s.groups, s.rows))
      of->rate(pending_->provider) =
          pending_->flops / (1e6 * std::max(static_cast<double>(milliseconds), 1e-6));
    pending_.reset();
  }

  void run(product_provider provider, const Kokkos::Cuda& space, const grouped_gemm& gemm,
           const row_groups<device_type>& groups) {
    latest_ = provider;
    switch (provider) {
      case product_provider::loop:
        return loop_.multiply(space, gemm, groups);
      case product_provider::grouped:
        return grouped_.multiply(space, gemm, groups);
      case product_provider::hopper:
        return hopper_.multiply(space, gemm, groups);
    }
  }

  cublas_loop loop_;
  cublas_grouped grouped_;
  hopper_grouped hopper_;
  product_mode mode_ = product_mode::rule;
  product_provider latest_ = product_provider::loop;
  product_choices choices_;
  std::optional<timing> pending_;
  cudaEvent_t begun_ = nullptr, ended_ = nullptr;
};

static_assert(grouped_product<measured_product, Kokkos::Cuda, device_type, bfloat16>);

}  // namespace lrmoe::cuda
