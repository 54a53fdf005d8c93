// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <lrmoe/cuda/product/cublas_handle.hpp>
#include <lrmoe/experts/grouped_product.hpp>

// cublasGemmGroupedBatchedEx came with CUDA 12.5.
#if CUBLAS_VER_MAJOR > 12 || (CUBLAS_VER_MAJOR == 12 && CUBLAS_VER_MINOR >= 5)
#define LRMOE_CUDA_HAS_CUBLAS_GROUPED 1
#else
#define LRMOE_CUDA_HAS_CUBLAS_GROUPED 0
#endif

namespace lrmoe::cuda {

namespace detail {

/// Device pointers of the three matrices of each group with rows: the used groups begin .. begin + capacity
/// of all, at a, b and c of pointers (3, capacity). A scan, as their places follow from the groups before.
struct write_group_pointers {
  using value_type = index_type;

  vector_view<const index_type, device_type> offsets;
  gemm_operand a, b, c;
  void** pointers;
  index_type begin, capacity;

  KOKKOS_FUNCTION void operator()(std::int64_t g, index_type& used, bool final) const {
    const auto at = static_cast<std::size_t>(g);
    if (offsets(at) == offsets(at + 1)) return;
    const index_type i = used - begin;
    if (final && i >= 0 && i < capacity) {
      const std::int64_t row = offsets(at) - offsets(0);
      pointers[i] = a.at(row, g);
      pointers[capacity + i] = b.at(row, g);
      pointers[2 * capacity + i] = c.at(row, g);
    }
    ++used;
  }
};

/// As above for one group without offsets.
struct write_pointers {
  gemm_operand a, b, c;
  void** pointers;
  index_type capacity;

  KOKKOS_FUNCTION void operator()(std::int64_t) const {
    pointers[0] = a.at(0, 0);
    pointers[capacity] = b.at(0, 0);
    pointers[2 * capacity] = c.at(0, 0);
  }
};

}  // namespace detail

/// A grouped product (contract: lrmoe/experts/grouped_product.hpp) of one cublasGemmGroupedBatchedEx.
/// Extents go to cuBLAS from the host's copy of the offsets, for groups with rows only; addresses are
/// written by a kernel from the device's copy.
/// Supports  what cuBLAS says when it is asked (supports()): a version may refuse a combination of types,
///           such as bfloat16 operands with a float result. For 16-bit elements cuBLAS asks for matrices
///           that are aligned to 16 bytes; as it cannot see the pointers, this class looks (aligned()).
/// Throws    error for a combination that is not supported, argument_error for matrices that are not
///           aligned; nothing was enqueued then. cublas_loop serves both.
class cublas_grouped : public typed_products<cublas_grouped> {
 public:
  static constexpr const char* name = "grouped";

  explicit cublas_grouped(workspace<device_type>& scratch) : scratch_(&scratch) {}

  static std::int64_t workspace_bytes(const Kokkos::Cuda& space) {
    return cublas_workspace::bytes(space, 1) + own_bytes;
  }
  void reserve(const Kokkos::Cuda& space) {
    handle_of(space.cuda_device());
    own_buffer();
    const cublas_workspace taken(*scratch_, space, 1);
  }

  /// Whether cuBLAS has this product: asked once per device and combination with a small product.
  template <class Element>
  bool supports(const Kokkos::Cuda& space, product_operation operation) {
    auto gemm = detail::typed_gemm<Element>(operation);
    if (gemm.sums_rows()) gemm.out = cublas_type<accumulate_t<Element>>::data;
    return supports(space, gemm);
  }
  bool supports(const Kokkos::Cuda& space, const grouped_gemm& gemm) {
    return answer_of(space, gemm) == CUBLAS_STATUS_SUCCESS;
  }

  /// Whether every matrix of the product begins where cuBLAS needs it to.
  static bool aligned(const grouped_gemm& gemm, const row_groups<device_type>& groups) {
    if (gemm.in != CUDA_R_16BF) return true;
    constexpr std::uintptr_t needed = 16;
    for (std::int64_t g = 0; g < groups.size(); ++g) {
      if (groups.rows(g) == 0) continue;
      const std::int64_t row = groups.first(g) - groups.first();
      for (const gemm_operand* each : {&gemm.a, &gemm.b, &gemm.c})
        if (reinterpret_cast<std::uintptr_t>(each->at(row, g)) % needed != 0) return false;
    }
    return true;
  }

  /// One line for each combination that was asked for and refused; empty if there is none.
  std::string refusals() const {
    std::string text;
    for (const answer& each : answers_)
      if (each.status != CUBLAS_STATUS_SUCCESS)
        text += std::string(each.element) + " " + std::string(name_of(each.operation)) + ": " +
                refusal(each.status) + "\n";
    return text;
  }

  /// The products of all groups that have rows.
  void multiply(const Kokkos::Cuda& space, const grouped_gemm& gemm,
                const row_groups<device_type>& groups) {
    const cublasStatus_t status = answer_of(space, gemm);
    if (status != CUBLAS_STATUS_SUCCESS)
      throw error("lrmoe: cuda::cublas_grouped: " + std::string(name_of(gemm.operation)) + " of " +
                  std::string(gemm.element) + " is not supported here (" + refusal(status) +
                  "): use cuda::cublas_loop or cuda::measured_product");
    require(
        aligned(gemm, groups), "cuda::cublas_grouped: ", name_of(gemm.operation), " of ",
        gemm.element,
        " needs every matrix to begin at a multiple of 16 bytes: align the views and use extents "
        "that are multiples of 8, or use cuda::cublas_loop or cuda::measured_product");
    const device_guard guard(space.cuda_device());
    sizes_.clear();
    index_type begun = 0;
    for (std::int64_t g = 0; g < groups.size(); ++g) {
      if (groups.rows(g) > 0) sizes_.push_back(static_cast<int>(groups.rows(g)));
      const bool full = static_cast<index_type>(sizes_.size()) == capacity;
      if (sizes_.empty() || !(full || g + 1 == groups.size())) continue;
      Kokkos::parallel_scan("lrmoe::cuda::group_pointers",
                            Kokkos::RangePolicy<Kokkos::Cuda, Kokkos::IndexType<std::int64_t>>(
                                space, 0, groups.size()),
                            detail::write_group_pointers{groups.offsets, gemm.a, gemm.b, gemm.c,
                                                         own_buffer(), begun, capacity});
      check(call(space, gemm), "cublasGemmGroupedBatchedEx");
      begun += static_cast<index_type>(sizes_.size());
      sizes_.clear();
    }
  }

 private:
  /// Groups of one call; more go in several.
  static constexpr index_type capacity = 1024;
  static constexpr int probe_extent = 16;
  static constexpr std::int64_t pointer_bytes = std::int64_t{3} * capacity * sizeof(void*);
  static constexpr std::int64_t probe_bytes =
      std::int64_t{probe_extent} * probe_extent * sizeof(double);
  static constexpr std::int64_t own_bytes = pointer_bytes + 3 * probe_bytes;

  struct answer {
    int device;
    std::string_view element;
    product_operation operation;
    cublasStatus_t status;
  };

  static std::string refusal(cublasStatus_t status) {
#if LRMOE_CUDA_HAS_CUBLAS_GROUPED
    return std::string("cublasGemmGroupedBatchedEx answers ") + cublasGetStatusName(status);
#else
    static_cast<void>(status);
    return "the program was built with a cuBLAS before 12.5, which has no grouped product";
#endif
  }

  cublas_handle& handle_of(int device) {
    for (cublas_handle& each : handles_)
      if (each.device() == device) return each;
    return handles_.emplace_back(device);
  }

  void** own_buffer() {
    return reinterpret_cast<void**>(
        (*scratch_)["cuda::cublas_grouped"].template vector<std::byte>(own_bytes).data());
  }

  cublasStatus_t answer_of(const Kokkos::Cuda& space, const grouped_gemm& gemm) {
    const int device = space.cuda_device();
    for (const answer& known : answers_)
      if (known.device == device && known.element == gemm.element &&
          known.operation == gemm.operation)
        return known.status;
    const cublasStatus_t status = ask(space, gemm);
    answers_.push_back({device, gemm.element, gemm.operation, status});
    return status;
  }

  /// The status of a small product of this kind in the own buffer. What is no answer is thrown.
  cublasStatus_t ask(const Kokkos::Cuda& space, grouped_gemm gemm) {
    const device_guard guard(space.cuda_device());
    void** const pointers = own_buffer();
    const auto first = reinterpret_cast<std::uintptr_t>(pointers) + pointer_bytes;
    gemm.m = gemm.other = probe_extent;
    gemm.op_a =
        gemm.operation == product_operation::multiply_rows_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    gemm.op_b = gemm.sums_rows() ? CUBLAS_OP_T : CUBLAS_OP_N;
    gemm.a = {first, 0, 0, probe_extent};
    gemm.b = {first + probe_bytes, 0, 0, probe_extent};
    gemm.c = {first + 2 * probe_bytes, 0, 0, probe_extent};
    Kokkos::parallel_for(
        "lrmoe::cuda::probe_pointers",
        Kokkos::RangePolicy<Kokkos::Cuda, Kokkos::IndexType<std::int64_t>>(space, 0, 1),
        detail::write_pointers{gemm.a, gemm.b, gemm.c, pointers, capacity});
    sizes_.assign(1, probe_extent);
    const cublasStatus_t status = call(space, gemm);
    sizes_.clear();
    switch (status) {
      case CUBLAS_STATUS_SUCCESS:
      case CUBLAS_STATUS_NOT_SUPPORTED:
      case CUBLAS_STATUS_INVALID_VALUE:
      case CUBLAS_STATUS_ARCH_MISMATCH:
        return status;
      default:
        check(status, "asking cuBLAS for a grouped product");
        return status;
    }
  }

  /// One cuBLAS call for the groups of sizes_ and the pointers in the own buffer.
  cublasStatus_t call(const Kokkos::Cuda& space, const grouped_gemm& gemm) {
#if LRMOE_CUDA_HAS_CUBLAS_GROUPED
    const std::size_t count = sizes_.size();
    fill(count, gemm);
    cublas_handle& handle = handle_of(space.cuda_device());
    const cublas_workspace memory(*scratch_, space, 1);
    handle.use(space.cuda_stream(), memory.of(0), memory.size_bytes());
    void** const pointers = own_buffer();
    const bool wide = gemm.compute == CUBLAS_COMPUTE_64F;
    const void* alpha = wide ? static_cast<const void*>(ones64_.data()) : ones32_.data();
    const void* zero = wide ? static_cast<const void*>(zeros64_.data()) : zeros32_.data();
    const int* const rows = sizes_.data();
    return cublasGemmGroupedBatchedEx(
        handle.get(), op_a_.data(), op_b_.data(), m_.data(),
        gemm.sums_rows() ? other_.data() : rows, gemm.sums_rows() ? rows : other_.data(), alpha,
        pointers, gemm.in, lda_.data(), pointers + capacity, gemm.in, ldb_.data(),
        gemm.adds ? alpha : zero, pointers + 2 * capacity, gemm.out, ldc_.data(),
        static_cast<int>(count), each_one_.data(), gemm.compute);
#else
    static_cast<void>(space), static_cast<void>(gemm);
    return CUBLAS_STATUS_NOT_SUPPORTED;
#endif
  }

  /// What is the same for every group, once per group as cuBLAS reads it.
  void fill(std::size_t count, const grouped_gemm& gemm) {
    op_a_.assign(count, gemm.op_a);
    op_b_.assign(count, gemm.op_b);
    m_.assign(count, gemm.m);
    other_.assign(count, gemm.other);
    lda_.assign(count, gemm.a.leading);
    ldb_.assign(count, gemm.b.leading);
    ldc_.assign(count, gemm.c.leading);
    each_one_.assign(count, 1);
    ones32_.assign(count, 1.0F);
    zeros32_.assign(count, 0.0F);
    ones64_.assign(count, 1.0);
    zeros64_.assign(count, 0.0);
  }

  workspace<device_type>* scratch_;
  std::vector<cublas_handle> handles_;
  std::vector<answer> answers_;
  std::vector<int> sizes_, m_, other_, lda_, ldb_, ldc_, each_one_;
  std::vector<cublasOperation_t> op_a_, op_b_;
  std::vector<float> ones32_, zeros32_;
  std::vector<double> ones64_, zeros64_;
};

static_assert(grouped_product<cublas_grouped, Kokkos::Cuda, device_type, bfloat16>);

}  // namespace lrmoe::cuda
