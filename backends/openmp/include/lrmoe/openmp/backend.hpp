// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <lrmoe/backend.hpp>
#include <lrmoe/openmp/config.hpp>
#include <lrmoe/openmp/experts/operations.hpp>
#if LRMOE_OPENMP_HAS_CBLAS
#include <lrmoe/openmp/product/cblas.hpp>
#endif
#if LRMOE_OPENMP_HAS_KOKKOS_KERNELS
#include <lrmoe/openmp/product/kokkos_kernels.hpp>
#endif

namespace lrmoe::openmp {

/// The product chosen when LRMoE was configured: CBLAS where there is one, else Kokkos Kernels.
#if LRMOE_OPENMP_HAS_CBLAS
using default_product = cblas_product;
#else
using default_product = kokkos_kernels_product;
#endif

/// Host backend: Kokkos OpenMP, one matrix product per thread. Of one rank; see with_ranks for more.
template <class Product = default_product>
struct backend {
  using execution_space = Kokkos::OpenMP;
  using device_type = Kokkos::Device<Kokkos::OpenMP, Kokkos::HostSpace>;
  using expert_operations = openmp::expert_operations<Product>;
  using communicator = single_rank;
};

}  // namespace lrmoe::openmp
