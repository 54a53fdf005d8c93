// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <lrmoe/cuda/product/cublas_handle.hpp>
#include <lrmoe/cuda/product/lanes.hpp>
#include <lrmoe/experts/grouped_product.hpp>

namespace lrmoe::cuda {

/// A grouped product (contract: lrmoe/experts/grouped_product.hpp) that calls cublasGemmEx once per group,
/// the groups spread over `Lanes` streams. Supports every element type, extent and alignment.
/// Order     asynchronous on the space's stream: the lanes start behind it and it waits for them
/// Laws      bitwise the same from run to run. cuBLAS promises that for one stream; with several it holds
///           when no stream shares a handle or a workspace with another, so each lane has its own. Which
///           lane a group goes to depends on the groups' sizes alone.
/// Cost      one launch per group with rows, a few microseconds of host time each
template <int Lanes>
class basic_cublas_loop : public typed_products<basic_cublas_loop<Lanes>> {
  static_assert(Lanes >= 1 && Lanes <= 64, "lrmoe::cuda::basic_cublas_loop: use 1 to 64 lanes");

 public:
  static constexpr const char* name = "loop";

  explicit basic_cublas_loop(workspace<device_type>& scratch) : scratch_(&scratch) {}

  static std::int64_t workspace_bytes(const Kokkos::Cuda& space) {
    return cublas_workspace::bytes(space, Lanes);
  }
  void reserve(const Kokkos::Cuda& space) {
    resources_of(space.cuda_device());
    const cublas_workspace taken(*scratch_, space, Lanes);
  }

  /// The products of all groups that have rows.
  void multiply(const Kokkos::Cuda& space, const grouped_gemm& gemm,
                const row_groups<device_type>& groups) {
    assign_lanes(groups);
    if (order_.empty()) return;
    resources& own = resources_of(space.cuda_device());
    const device_guard guard(space.cuda_device());
    const cublas_workspace memory(*scratch_, space, Lanes);
    const int used = static_cast<int>(std::min<std::size_t>(order_.size(), Lanes));
    lanes::fork side_by_side(own.streams, space.cuda_stream(), used);
    for (int i = 0; i < used; ++i)
      own.handles[static_cast<std::size_t>(i)].use(side_by_side.stream(i), memory.of(i),
                                                   memory.size_bytes());
    for (const assignment& next : order_)
      multiply_group(own.handles[static_cast<std::size_t>(next.lane)], gemm, groups, next.group);
    side_by_side.join();
  }

 private:
  struct assignment {
    index_type group = 0;
    index_type rows = 0;
    int lane = 0;
  };

  struct resources {
    explicit resources(int on) : device(on), streams(on, Lanes) {
      handles.reserve(Lanes);
      for (int i = 0; i < Lanes; ++i) handles.emplace_back(on);
    }
    int device;
    lanes streams;
    std::vector<cublas_handle> handles;
  };

  resources& resources_of(int device) {
    for (const auto& each : resources_)
      if (each->device == device) return *each;
    return *resources_.emplace_back(std::make_unique<resources>(device));
  }

  /// Largest group first, each to the lane with the fewest rows: no lane ends with a long product.
  void assign_lanes(const row_groups<device_type>& groups) {
    order_.clear();
    for (std::int64_t g = 0; g < groups.size(); ++g)
      if (groups.rows(g) > 0)
        order_.push_back({static_cast<index_type>(g), static_cast<index_type>(groups.rows(g)), 0});
    std::sort(order_.begin(), order_.end(), [](const assignment& a, const assignment& b) {
      return a.rows != b.rows ? a.rows > b.rows : a.group < b.group;
    });
    std::array<std::int64_t, Lanes> load{};
    for (assignment& each : order_) {
      const auto least = std::min_element(load.begin(), load.end());
      each.lane = static_cast<int>(least - load.begin());
      *least += each.rows;
    }
  }

  static void multiply_group(cublas_handle& handle, const grouped_gemm& gemm,
                             const row_groups<device_type>& groups, index_type g) {
    const auto rows = static_cast<int>(groups.rows(g));
    const std::int64_t row = groups.first(g) - groups.first();
    const double one64 = 1.0, beta64 = gemm.adds ? 1.0 : 0.0;
    const float one32 = 1.0F, beta32 = gemm.adds ? 1.0F : 0.0F;
    const bool wide = gemm.compute == CUBLAS_COMPUTE_64F;
    const void* alpha = wide ? static_cast<const void*>(&one64) : &one32;
    const void* beta = wide ? static_cast<const void*>(&beta64) : &beta32;
    check(cublasGemmEx(handle.get(), gemm.op_a, gemm.op_b, gemm.m, gemm.n(rows), gemm.k(rows),
                       alpha, gemm.a.at(row, g), gemm.in, gemm.a.leading, gemm.b.at(row, g),
                       gemm.in, gemm.b.leading, beta, gemm.c.at(row, g), gemm.out, gemm.c.leading,
                       gemm.compute, CUBLAS_GEMM_DEFAULT),
          "cublasGemmEx");
  }

  workspace<device_type>* scratch_;
  std::vector<std::unique_ptr<resources>> resources_;
  std::vector<assignment> order_;
};

using cublas_loop = basic_cublas_loop<4>;

static_assert(grouped_product<cublas_loop, Kokkos::Cuda, device_type, bfloat16>);

}  // namespace lrmoe::cuda
