// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

#include <lrmoe/cuda/product/hopper/instructions.hpp>
#include <lrmoe/types.hpp>

namespace lrmoe::cuda::hopper {

/// What is multiplied: rows times a matrix of their group, that matrix transposed, or rows of a group with each
/// other, summed over them.
enum class product_kind { rows, rows_transposed, gradient };

/// Extents of the part of a result that a block computes at a time, and of a step on the way. Two warpgroups
/// share a tile, 64 rows each; a third one copies.
inline constexpr int tile_m = 128, tile_n = 256, tile_k = 64;
inline constexpr int stages = 3;
inline constexpr int block_threads = 3 * 128;
inline constexpr int max_groups = 3072;

/// Operands of one product. Extents that belong to the groups are not among them: the kernel reads the
/// offsets where they are.
struct product_arguments {
  const index_type* offsets;  // (groups+1); rows count from offsets[0]
  void* result;               // bfloat16 (rows, n), or float (groups, m, n)
  int groups;
  int m;      ///< rows of a gradient; not used for rows
  int n;      ///< columns of the result
  int k;      ///< columns of the left rows; not used for gradients
  bool adds;  ///< a gradient is added to, not overwritten
};

namespace detail {

inline constexpr int swizzle_bytes = 128;  // of a row in shared memory: 64 values
inline constexpr int chunk_bytes = 64 * swizzle_bytes;
inline constexpr int a_bytes = tile_m * tile_k * 2, b_bytes = tile_n * tile_k * 2;
inline constexpr int stage_bytes = a_bytes + b_bytes;
// Results leave a warp through whole rows; what pads them keeps a warp's accesses in different banks.
inline constexpr int bfloat16_row_bytes = tile_n * 2 + 16, float_row_bytes = tile_n * 4 + 32;
inline constexpr int warp_staging_bytes = 16 * bfloat16_row_bytes;
inline constexpr int float_rows = warp_staging_bytes / float_row_bytes;
static_assert(float_rows == 8);
inline constexpr int staging_bytes = 8 * warp_staging_bytes;
inline constexpr int alignment = 1024;

}  // namespace detail

/// Dynamic shared memory of a block.
constexpr int shared_bytes(int groups) {
  return detail::alignment + stages * detail::stage_bytes + detail::staging_bytes +
         (groups + 1) * static_cast<int>(sizeof(int));
}

#if LRMOE_CUDA_HAS_WGMMA

namespace detail {

/// What wgmma is told of an operand in shared memory: 64 values of k in rows of 128 bytes (K-major), or k rows of
/// chunks of 64 values (its transpose).
template <bool Transposed>
__device__ inline std::uint64_t operand_descriptor(std::uint32_t address) {
  constexpr std::uint64_t between_chunks = Transposed ? chunk_bytes : 16;
  constexpr std::uint64_t between_eight_rows = 8 * swizzle_bytes;
  constexpr std::uint64_t swizzle_128 = 1;
  return ((address & 0x3ffff) >> 4) | (between_chunks >> 4) << 16 |
         (between_eight_rows >> 4) << 32 | swizzle_128 << 62;
}
/// How far the descriptor of the next 16 values of k lies, in its units.
template <bool Transposed>
constexpr std::uint64_t next_k = (Transposed ? 16 * swizzle_bytes : 32) >> 4;

/// Tiles of a group.
template <product_kind Kind>
__device__ inline int tiles_of(const product_arguments& of, int rows) {
  if (Kind == product_kind::gradient && rows == 0) return 0;
  const int m = Kind == product_kind::gradient ? of.m : rows;
  return (m + tile_m - 1) / tile_m * ((of.n + tile_n - 1) / tile_n);
}

struct tile {
  int group = 0;
  int first = 0, rows = 0;  // of the group
  int m = 0, n = 0;         // where it begins in the group's result
};

/// The tile of this number; groups are looked for from the last one on. Blocks that run side by side take
/// tiles side by side: of rows those that share a part of the matrix, of a gradient those that are one piece of
/// device memory.
template <product_kind Kind>
__device__ inline void find_tile(const product_arguments& of, const int* starts, int number,
                                 tile& at) {
  while (number >= starts[at.group + 1]) ++at.group;
  at.first = of.offsets[at.group] - of.offsets[0];
  at.rows = of.offsets[at.group + 1] - of.offsets[at.group];
  const int inside = number - starts[at.group];
  if constexpr (Kind == product_kind::gradient) {
    const int across = (of.n + tile_n - 1) / tile_n;
    at.m = inside / across * tile_m;
    at.n = inside % across * tile_n;
  } else {
    const int down = (at.rows + tile_m - 1) / tile_m;
    at.m = inside % down * tile_m;
    at.n = inside / down * tile_n;
  }
}

template <product_kind Kind>
__device__ inline int steps_of(const product_arguments& of, const tile& at) {
  return ((Kind == product_kind::gradient ? at.rows : of.k) + tile_k - 1) / tile_k;
}

/// Where each group's tiles begin, the groups' one behind the other; by one warp.
template <product_kind Kind>
__device__ inline void list_tiles(const product_arguments& of, int* starts) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int before = 0;
  if (lane == 0) starts[0] = 0;
  for (int g = 0; g < of.groups; g += 32) {
    const int own = g + lane;
    int sum = own < of.groups ? tiles_of<Kind>(of, of.offsets[own + 1] - of.offsets[own]) : 0;
    for (int distance = 1; distance < 32; distance *= 2) {
      const int lower = __shfl_up_sync(0xffffffffU, sum, distance);
      if (lane >= distance) sum += lower;
    }
    if (own < of.groups) starts[own + 1] = before + sum;
    before += __shfl_sync(0xffffffffU, sum, 31);
  }
}

/// Copies what a step of a tile needs.
template <product_kind Kind>
__device__ inline void copy_step(const CUtensorMap& left, const CUtensorMap& right, const tile& at,
                                 int step, unsigned char* a, std::uint64_t* arrived) {
  unsigned char* const b = a + a_bytes;
  const int k = step * tile_k;
  mbarrier_arrive_expect(arrived, stage_bytes);
  if constexpr (Kind == product_kind::gradient) {
    for (int i = 0; i < tile_m / 64; ++i)
      copy_box(a + i * chunk_bytes, left, at.m + 64 * i, at.first + k, arrived);
    for (int i = 0; i < tile_n / 64; ++i)
      copy_box(b + i * chunk_bytes, right, at.n + 64 * i, at.first + k, arrived);
  } else {
    copy_box(a, left, k, at.first + at.m, arrived);
    if constexpr (Kind == product_kind::rows_transposed)
      copy_box(b, right, k, at.n, at.group, arrived);
    else
      for (int i = 0; i < tile_n / 64; ++i)
        copy_box(b + i * chunk_bytes, right, at.n + 64 * i, k, at.group, arrived);
  }
}

/// Rows of the next group that a step copied with the last ones of its own: they count as zero. All consumers
/// come here; `thread` is of 256.
__device__ inline void clear_rows(unsigned char* a, int rows, int thread) {
  constexpr int chunks = stage_bytes / chunk_bytes, words = swizzle_bytes / 16;
  const int cleared = (tile_k - rows) * words;
  for (int chunk = 0; chunk < chunks; ++chunk)
    for (int i = thread; i < cleared; i += 256)
      *reinterpret_cast<uint4*>(a + chunk * chunk_bytes + rows * swizzle_bytes + i * 16) =
          uint4{0, 0, 0, 0};
  fence_proxy_async();
  named_barrier(3, 256);
}

/// 16 x 256 sums of a warp to rows of the result, through its part of the shared memory; lane i of the first 16
/// sends row i. The copies go on while the next tile is computed.
__device__ inline void store_rows(const float (&sums)[128], const product_arguments& of,
                                  const tile& at, int first_row, unsigned char* staging) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane < 16) bulk_wait_read();
  __syncwarp();
  const int matrix = lane / 8;
  const std::uint32_t from = shared_address(staging);
  const std::uint32_t to =
      from + static_cast<std::uint32_t>((matrix % 2 * 8 + lane % 8) * bfloat16_row_bytes +
                                        matrix / 2 * 16);
  const auto packed = [&](int i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(sums[i], sums[i + 1]);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  };
#pragma unroll
  for (int j = 0; j < 32; j += 2)
    stmatrix(to + static_cast<std::uint32_t>(j * 16), packed(4 * j), packed(4 * j + 2),
             packed(4 * j + 4), packed(4 * j + 6));
  fence_proxy_async();
  __syncwarp();
  const int row = first_row + lane;
  if (lane < 16 && row < at.rows) {
    const int columns = min(tile_n, of.n - at.n);
    bulk_store(static_cast<__nv_bfloat16*>(of.result) +
                   static_cast<std::int64_t>(at.first + row) * of.n + at.n,
               from + static_cast<std::uint32_t>(lane * bfloat16_row_bytes), columns * 2);
    bulk_commit();
  }
}

/// Where a row of a tile of a gradient begins.
__device__ inline float* gradient_row(const product_arguments& of, const tile& at, int row) {
  return static_cast<float*>(of.result) +
         (static_cast<std::int64_t>(at.group) * of.m + row) * of.n + at.n;
}

/// 16 x 256 sums of a warp to the gradient by the copy engine, added or not, 8 rows at a time: a gradient's tile is
/// 128 KiB of float and does not fit beside the steps on their way.
__device__ inline void store_gradient(const float (&sums)[128], const product_arguments& of,
                                      const tile& at, int first_row, unsigned char* staging) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (lane < float_rows) bulk_wait_read();
    __syncwarp();
    unsigned char* const to = staging + lane / 4 * float_row_bytes + lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < tile_n / 8; ++j)
      *reinterpret_cast<float2*>(to + j * 32) =
          float2{sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]};
    fence_proxy_async();
    __syncwarp();
    const int row = first_row + float_rows * half + lane;
    if (lane < float_rows && row < of.m) {
      const std::uint32_t from =
          shared_address(staging) + static_cast<std::uint32_t>(lane * float_row_bytes);
      const int bytes = min(tile_n, of.n - at.n) * static_cast<int>(sizeof(float));
      if (of.adds)
        bulk_add(gradient_row(of, at, row), from, bytes);
      else
        bulk_store(gradient_row(of, at, row), from, bytes);
      bulk_commit();
    }
  }
}

}  // namespace detail

#endif

/// One product of all groups. Persistent: a block for each multiprocessor, which takes every so many-th tile.
/// One thread keeps `stages` steps on their way through the copy engine; two warpgroups multiply them.
/// Launch   block_threads threads, shared_bytes(groups) bytes
template <product_kind Kind>
__global__ void __launch_bounds__(block_threads, 1)
    grouped_product_kernel(const __grid_constant__ CUtensorMap left,
                           const __grid_constant__ CUtensorMap right,
                           const __grid_constant__ product_arguments of) {
#if LRMOE_CUDA_HAS_WGMMA
  using namespace detail;
  constexpr bool transpose_a = Kind == product_kind::gradient;
  constexpr bool transpose_b = Kind != product_kind::rows_transposed;
  extern __shared__ unsigned char dynamic[];
  __shared__ std::uint64_t arrived[stages], read[stages];
  unsigned char* const buffers =
      dynamic + (alignment - shared_address(dynamic) % alignment) % alignment;
  unsigned char* const staging = buffers + stages * stage_bytes;
  int* const starts = reinterpret_cast<int*>(staging + staging_bytes);

  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int i = 0; i < stages; ++i) {
      mbarrier_init(&arrived[i], 1);
      mbarrier_init(&read[i], 2);
    }
    fence_mbarrier_init();
  }
  if (thread / 32 == 1) list_tiles<Kind>(of, starts);
  __syncthreads();
  const int tiles = starts[of.groups];

  int stage = 0, parity = 0;
  const auto next_stage = [&] {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  };
  tile at;
  if (thread < 128) {
    setmaxnreg_dec<40>();
    if (thread == 0) {
      for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
        find_tile<Kind>(of, starts, number, at);
        const int steps = steps_of<Kind>(of, at);
        for (int step = 0; step < steps; ++step) {
          mbarrier_wait(&read[stage], parity ^ 1);
          copy_step<Kind>(left, right, at, step, buffers + stage * stage_bytes, &arrived[stage]);
          next_stage();
        }
      }
    }
  } else {
    setmaxnreg_inc<232>();
    const int warpgroup = thread / 128 - 1, own = thread % 128;
    const int own_row = 64 * warpgroup + own / 32 * 16;  // of the warp's part of a tile
    unsigned char* const own_staging = staging + (thread / 32 - 4) * warp_staging_bytes;
    float sums[128];
    for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
      find_tile<Kind>(of, starts, number, at);
      const int steps = steps_of<Kind>(of, at);
      const int tail = at.rows % tile_k;  // of a gradient's last step
      const auto clear_tail = [&](int step) {
        if (Kind == product_kind::gradient && step + 1 == steps && tail != 0)
          clear_rows(buffers + stage * stage_bytes, tail, thread - 128);
      };
      const bool empty = at.m + 64 * warpgroup >= (Kind == product_kind::gradient ? of.m : at.rows);
      if (empty) {
        for (int step = 0; step < steps; ++step) {
          mbarrier_wait(&arrived[stage], parity);
          clear_tail(step);
          if (own == 0) mbarrier_arrive(&read[stage]);
          next_stage();
        }
        continue;
      }
      int before = stage;
      for (int step = 0; step < steps; ++step) {
        mbarrier_wait(&arrived[stage], parity);
        clear_tail(step);
        const std::uint32_t buffer =
            shared_address(buffers) + static_cast<std::uint32_t>(stage * stage_bytes);
        const std::uint64_t a = operand_descriptor<transpose_a>(
            buffer + static_cast<std::uint32_t>(warpgroup * chunk_bytes));
        const std::uint64_t b = operand_descriptor<transpose_b>(buffer + a_bytes);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < tile_k / 16; ++i)
          wgmma_m64n256k16<transpose_a, transpose_b>(
              sums, a + i * next_k<transpose_a>, b + i * next_k<transpose_b>, step > 0 || i > 0);
        wgmma_commit();
        if (step > 0) {
          wgmma_wait<1>();
          if (own == 0) mbarrier_arrive(&read[before]);
        }
        before = stage;
        next_stage();
      }
      wgmma_wait<0>();
      if (own == 0) mbarrier_arrive(&read[before]);
      if constexpr (Kind == product_kind::gradient)
        store_gradient(sums, of, at, at.m + own_row, own_staging);
      else
        store_rows(sums, of, at, at.m + own_row, own_staging);
    }
    bulk_wait();
  }
#else
  static_cast<void>(left), static_cast<void>(right), static_cast<void>(of);
#endif
}

}  // namespace lrmoe::cuda::hopper
