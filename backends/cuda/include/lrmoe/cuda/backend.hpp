// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/backend.hpp>
#include <lrmoe/cuda/product/measured_product.hpp>
#include <lrmoe/experts/composed_operations.hpp>

namespace lrmoe::cuda {

using device_type = Kokkos::Device<Kokkos::Cuda, Kokkos::CudaSpace>;

/// The backend for NVIDIA GPUs: Kokkos CUDA, with the expert operations composed of row kernels and the
/// products of a library (lrmoe/experts/grouped_product.hpp): cublas_loop, cublas_grouped, or
/// measured_product, which chooses between them. Every view handed to a layer is in the memory of
/// the GPU that the context's space belongs to, which need not be Kokkos' default one, and work runs on the
/// space's stream. The stream must outlive the context and its layers. Layers of one process on different
/// GPUs may run from different host threads, once every kind of step has run on each GPU from one thread:
/// Kokkos records what it knows of a kernel at its first launch on a device, without a lock.
template <class Product = measured_product>
struct backend {
  using execution_space = Kokkos::Cuda;
  using device_type = cuda::device_type;
  using communicator = single_rank;
  using expert_operations = composed_operations<Product, execution_space, device_type>;
};

}  // namespace lrmoe::cuda
