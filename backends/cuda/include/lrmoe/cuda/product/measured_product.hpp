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
#include <lrmoe/cuda/product/product_choices.hpp>

namespace lrmoe::cuda {

/// How measured_product chooses; see there.
enum class product_mode { rule, loop, grouped, measured };

constexpr std::string_view name_of(product_mode mode) {
  constexpr std::array<std::string_view, 4> names{"rule", "loop", "grouped", "measured"};
  return names[static_cast<std::size_t>(mode)];
}

/// Throws argument_error for a text that is no mode's name.
inline product_mode product_mode_of(std::string_view text) {
  for (const auto mode :
       {product_mode::rule, product_mode::loop, product_mode::grouped, product_mode::measured})
    if (text == name_of(mode)) return mode;
  require(false, "LRMOE_CUDA_PRODUCT = '", text, "': use rule, loop, grouped or measured");
  return product_mode::rule;
}

/// A grouped product (contract: lrmoe/experts/grouped_product.hpp) that holds cublas_loop and
/// cublas_grouped and gives every call to one of them. The environment variable LRMOE_CUDA_PRODUCT, or
/// set_mode(), says how:
///   rule      the default. What choices() has, measured before and loaded, else a fixed rule on extents.
///   measured  the same, but a class of shapes that choices() lacks is measured: its first four calls go to
///             the two in turn, once to warm each up and once to time it, and the faster one has the
///             class from then on. Each call computes its product once, whoever does it, so gradients are
///             added once. Times are taken by events and read when the next measured call comes.
///   loop, grouped   that one alone; grouped refuses what it does not support.
/// Laws      The two round differently. In the modes rule, loop and grouped the choice depends on the
///           extents, the alignment and the loaded choices alone, so results are bitwise the same from run
///           to run; in the mode measured it depends on times, so they need not be: measure once, save
///           the choices, load them.
/// Supports  everything: what cublas_grouped does not is computed by cublas_loop, in each mode but grouped;
///           report() lists it.
class measured_product : public typed_products<measured_product> {
 public:
  explicit measured_product(workspace<device_type>& scratch) : loop_(scratch), grouped_(scratch) {
    if (const char* text = std::getenv("LRMOE_CUDA_PRODUCT")) mode_ = product_mode_of(text);
  }
  measured_product(const measured_product&) = delete;
  measured_product& operator=(const measured_product&) = delete;
  ~measured_product() {
    for (cudaEvent_t each : {begun_, ended_})
      if (each != nullptr) static_cast<void>(cudaEventDestroy(each));
  }

  /// The providers share the workspace of cuBLAS, of which the loop takes more.
  static std::int64_t workspace_bytes(const Kokkos::Cuda& space) {
    return cublas_loop::workspace_bytes(space) + cublas_grouped::workspace_bytes(space) -
           cublas_workspace::bytes(space, 1);
  }
  void reserve(const Kokkos::Cuda& space) {
    loop_.reserve(space);
    grouped_.reserve(space);
  }

  /// The products of all groups that have rows.
  void multiply(const Kokkos::Cuda& space, const grouped_gemm& gemm,
                const row_groups<device_type>& groups) {
    if (groups.rows() == 0) return;
    if (mode_ == product_mode::loop || mode_ == product_mode::grouped)
      return run(mode_ == product_mode::loop ? product_provider::loop : product_provider::grouped,
                 space, gemm, groups);
    if (!grouped_.supports(space, gemm) || !grouped_.aligned(gemm, groups))
      return run(product_provider::loop, space, gemm, groups);
    const std::int64_t used = groups.used();
    entry* known = entry_of(gemm, used, groups.rows() / used);
    if (known != nullptr && known->decided()) return run(known->faster(), space, gemm, groups);
    if (mode_ == product_mode::rule)
      return run(by_rule(gemm, groups.rows(), used), space, gemm, groups);
    measure(known != nullptr ? *known : add_entry(gemm, used, groups.rows() / used), space, gemm,
            groups);
  }

  product_mode mode() const { return mode_; }
  void set_mode(product_mode mode) { mode_ = mode; }

  /// What was measured or loaded; save() and load() make it last.
  product_choices& choices() { return choices_; }

  /// The provider of the latest call.
  product_provider latest() const { return latest_; }

  /// Mode, choices, and what cublas_grouped does not support, for people.
  std::string report() {
    read_times();
    std::string text = "products: mode " + std::string(name_of(mode_)) + "\n" + choices_.text();
    if (const std::string refused = grouped_.refusals(); !refused.empty())
      text += "not supported by the grouped product, so computed by the loop:\n" + refused;
    return text;
  }

 private:
  using entry = product_choices::entry;

  struct timing {
    shape_class shape;
    product_provider provider;
    double flops;
  };

  static constexpr int calls_to_measure = 4;

  /// The loop's cost is the host's, 8 microseconds per group where it was measured, until a group's
  /// product takes the device as long; the grouped kernel has the lower rate, about 280 TFLOP/s for
  /// bfloat16 on an H200. The limits are its work of that time.
  static product_provider by_rule(const grouped_gemm& gemm, std::int64_t rows, std::int64_t used) {
    const double few_flops = gemm.in == CUDA_R_16BF ? 2.2e9 : 1.5e8;
    constexpr std::int64_t few_groups = 4;
    const bool launches_dominate =
        used > few_groups && gemm.flops(rows) < few_flops * static_cast<double>(used);
    return launches_dominate ? product_provider::grouped : product_provider::loop;
  }

  entry* entry_of(const grouped_gemm& gemm, std::int64_t used, std::int64_t rows) {
    return choices_.find(gemm.element, name_of(gemm.operation), gemm.m, gemm.other,
                         power_of_two_below(used), power_of_two_below(rows));
  }
  entry& add_entry(const grouped_gemm& gemm, std::int64_t used, std::int64_t rows) {
    return choices_.add({std::string(gemm.element), std::string(name_of(gemm.operation)), gemm.m,
                         gemm.other, power_of_two_below(used), power_of_two_below(rows)});
  }

  /// One call of the measurement.
  void measure(entry& of, const Kokkos::Cuda& space, const grouped_gemm& gemm,
               const row_groups<device_type>& groups) {
    const int call = of.calls++;
    const auto provider = call % 2 == 0 ? product_provider::loop : product_provider::grouped;
    if (call < calls_to_measure - 2) return run(provider, space, gemm, groups);
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
    if (call + 1 >= calls_to_measure) read_times();
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
    if (provider == product_provider::loop)
      loop_.multiply(space, gemm, groups);
    else
      grouped_.multiply(space, gemm, groups);
  }

  cublas_loop loop_;
  cublas_grouped grouped_;
  product_mode mode_ = product_mode::rule;
  product_provider latest_ = product_provider::loop;
  product_choices choices_;
  std::optional<timing> pending_;
  cudaEvent_t begun_ = nullptr, ended_ = nullptr;
};

static_assert(grouped_product<measured_product, Kokkos::Cuda, device_type, bfloat16>);

}  // namespace lrmoe::cuda
