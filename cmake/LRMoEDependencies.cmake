# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Finds Kokkos (required), Kokkos Kernels and CBLAS (the host backend needs one of the two), MPI (for
# LRMoE::mpi), and CUDA and NCCL (for LRMoE::cuda and LRMoE::nccl).
#
# Order for Kokkos and for Kokkos Kernels: a target that the enclosing project has defined; the
# source folder given; an installed package; with LRMOE_FETCH_DEPENDENCIES the release archive.
# scripts/bootstrap installs both where the presets look.
include(FetchContent)

set(LRMOE_KOKKOS_SOURCE_DIR "" CACHE PATH "Kokkos source tree (4.5 or later) to build with LRMoE")
set(LRMOE_KOKKOS_KERNELS_SOURCE_DIR "" CACHE PATH
    "Kokkos Kernels source tree (4.5 or later) to build with LRMoE")
option(LRMOE_FETCH_DEPENDENCIES
       "Download Kokkos and Kokkos Kernels 4.5.1 if they are not found (with pinned hashes)" OFF)
set(lrmoe_used_CBLAS "Use CBLAS in the host backend")
set(lrmoe_used_KOKKOS_KERNELS "Use Kokkos Kernels in the host backend")
set(lrmoe_used_MPI "Build LRMoE::mpi")
set(lrmoe_used_CUDA "Build LRMoE::cuda")
set(lrmoe_used_NCCL "Build LRMoE::nccl")
foreach(name CBLAS KOKKOS_KERNELS MPI CUDA NCCL)
  set(LRMOE_WITH_${name} AUTO CACHE STRING "${lrmoe_used_${name}}: AUTO, ON or OFF")
  set_property(CACHE LRMOE_WITH_${name} PROPERTY STRINGS AUTO ON OFF)
  if(NOT LRMOE_WITH_${name} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "LRMOE_WITH_${name} is '${LRMOE_WITH_${name}}': use AUTO, ON or OFF")
  endif()
endforeach()

# The release archives' hashes, as the Spack package manager pins them too.
set(lrmoe_fetch_Kokkos
    URL https://github.com/kokkos/kokkos/releases/download/4.5.01/kokkos-4.5.01.tar.gz
    URL_HASH SHA256=52d003ffbbe05f30c89966e4009c017efb1662b02b2b73190670d3418719564c)
set(lrmoe_fetch_KokkosKernels
    URL https://github.com/kokkos/kokkos-kernels/releases/download/4.5.01/kokkos-kernels-4.5.01.tar.gz
    URL_HASH SHA256=c111a6561f23a85af9850d1df1e9015f37a586f1da0be4b6fb1e98001d75e074)

# An enclosing project that links LRMoE's targets has to see those they link in turn.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)

# Kokkos 4.5.1 does not compile with CUDA 13 as it is.
if(LRMOE_FETCH_DEPENDENCIES AND (Kokkos_ENABLE_CUDA OR LRMOE_WITH_CUDA STREQUAL ON))
  find_package(Patch REQUIRED)
  list(APPEND lrmoe_fetch_Kokkos PATCH_COMMAND "${Patch_EXECUTABLE}" -p1 --forward --batch --input
       "${CMAKE_CURRENT_LIST_DIR}/patches/kokkos-4.5.1-cuda-13.patch")
endif()

# What Kokkos and Kokkos Kernels are built with here; what the user has set stays.
function(lrmoe_configure_Kokkos)
  set(Kokkos_ENABLE_SERIAL ON CACHE BOOL "Kokkos' Serial backend")
  set(Kokkos_ENABLE_OPENMP ON CACHE BOOL "Kokkos' OpenMP backend")
  if(LRMOE_WITH_CUDA STREQUAL ON)
    set(Kokkos_ENABLE_CUDA ON CACHE BOOL "Kokkos' CUDA backend")
    set(Kokkos_ENABLE_CUDA_CONSTEXPR ON CACHE BOOL "Kokkos' use of constexpr functions on GPUs")
    set(Kokkos_ENABLE_COMPILE_AS_CMAKE_LANGUAGE ON CACHE BOOL "Kokkos without nvcc_wrapper")
    # nvcc gets Kokkos' own standard from this, but CMake 3.25 has no word for CUDA in C++20.
    set(CMAKE_CXX_STANDARD 20 PARENT_SCOPE)
    if(NOT CMAKE_CUDA_FLAGS MATCHES "-std=")
      set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} -std=c++20" CACHE STRING "Flags for nvcc" FORCE)
    endif()
  endif()
endfunction()
function(lrmoe_configure_KokkosKernels)
  set(KokkosKernels_ENABLE_ALL_COMPONENTS OFF CACHE BOOL "All of Kokkos Kernels")
  set(KokkosKernels_ENABLE_COMPONENT_BATCHED ON CACHE BOOL "Kokkos Kernels' batched component")
  set(KokkosKernels_ENABLE_COMPONENT_BLAS ON CACHE BOOL "Kokkos Kernels' BLAS component")
  set(KokkosKernels_ADD_DEFAULT_ETI OFF CACHE BOOL "Kokkos Kernels' default instantiations")
endfunction()

# Enables CUDA as a language of this project. A macro, because languages belong to this scope.
macro(lrmoe_enable_cuda)
  if(NOT CMAKE_CUDA_COMPILER_LOADED)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
      set(CMAKE_CUDA_ARCHITECTURES "80;90a-real" CACHE STRING "GPUs to compile for")
    endif()
    find_package(CUDAToolkit QUIET)
    if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND CUDAToolkit_NVCC_EXECUTABLE)
      set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}" CACHE FILEPATH "CUDA compiler")
    endif()
    include(CheckLanguage)
    check_language(CUDA)
    if(NOT CMAKE_CUDA_COMPILER)
      message(FATAL_ERROR "Kokkos has its CUDA backend and no compiler for CUDA was found. Put nvcc on "
              "PATH or pass -DCMAKE_CUDA_COMPILER=<nvcc>, or choose a Kokkos without CUDA.")
    endif()
    enable_language(CUDA)
  endif()
endmacro()

# Makes PACKAGE's TARGET available and sets <PACKAGE>_WHERE and <PACKAGE>_VERSION; sets neither if
# it is not to be had. A macro, because an installed package's variables belong in this scope.
macro(lrmoe_find package target source_dir)
  set(lrmoe_imported TRUE)
  if(TARGET ${target})
    get_target_property(lrmoe_imported ${target} IMPORTED)
  elseif(NOT "${source_dir}" STREQUAL "")
    if(NOT EXISTS "${source_dir}/CMakeLists.txt")
      message(FATAL_ERROR "${package}: no CMakeLists.txt in the given folder '${source_dir}'")
    endif()
    cmake_language(CALL lrmoe_configure_${package})
    add_subdirectory("${source_dir}" "${PROJECT_BINARY_DIR}/_deps/${package}" SYSTEM)
    set(lrmoe_imported FALSE)
  endif()
  if(lrmoe_imported)
    # A package is compatible within its major version only, so each major is asked for.
    foreach(version 4.5 5.0)
      if(NOT ${package}_FOUND)
        find_package(${package} ${version} CONFIG QUIET)
      endif()
    endforeach()
    if(${package}_FOUND)
      set(${package}_WHERE "${${package}_DIR}")
    elseif(LRMOE_FETCH_DEPENDENCIES)
      cmake_language(CALL lrmoe_configure_${package})
      FetchContent_Declare(${package} ${lrmoe_fetch_${package}} SYSTEM)
      FetchContent_MakeAvailable(${package})
      set(lrmoe_imported FALSE)
    endif()
  endif()
  if(NOT lrmoe_imported)
    get_target_property(${package}_WHERE ${target} SOURCE_DIR)
    get_directory_property(${package}_VERSION DIRECTORY "${${package}_WHERE}"
                           DEFINITION ${package}_VERSION)
    if(${package}_VERSION VERSION_LESS 4.5)
      message(FATAL_ERROR "LRMoE needs ${package} 4.5 or later; ${${package}_WHERE} has "
                          "${${package}_VERSION}")
    endif()
  endif()
endmacro()

# Kokkos ---------------------------------------------------------------------------------------
lrmoe_find(Kokkos Kokkos::kokkos "${LRMOE_KOKKOS_SOURCE_DIR}")
if(NOT TARGET Kokkos::kokkos)
  set(lrmoe_text "LRMoE needs Kokkos 4.5 or later and found none")
  if(Kokkos_CONSIDERED_CONFIGS)
    string(APPEND lrmoe_text " (unsuitable: ${Kokkos_CONSIDERED_CONFIGS},"
           " version ${Kokkos_CONSIDERED_VERSIONS})")
  endif()
  message(FATAL_ERROR "${lrmoe_text}. Run scripts/bootstrap and configure with a preset, or pass "
          "-DCMAKE_PREFIX_PATH=<where Kokkos is installed>, or -DLRMOE_KOKKOS_SOURCE_DIR=<source "
          "tree>, or -DLRMOE_FETCH_DEPENDENCIES=ON to download it.")
endif()
if(NOT lrmoe_imported)
  get_directory_property(Kokkos_COMPILE_LANGUAGE DIRECTORY "${Kokkos_WHERE}"
                         DEFINITION KOKKOS_COMPILE_LANGUAGE)
endif()
foreach(device OPENMP CUDA)
  string(TOLOWER ${device} name)
  set(lrmoe_kokkos_has_${name} FALSE)
  if((lrmoe_imported AND device IN_LIST Kokkos_DEVICES)
     OR (NOT lrmoe_imported AND Kokkos_ENABLE_${device}))
    set(lrmoe_kokkos_has_${name} TRUE)
  endif()
endforeach()
lrmoe_summary("Kokkos" "found" "${Kokkos_VERSION}" "${Kokkos_WHERE}")

# CUDA -----------------------------------------------------------------------------------------
# Kokkos decides: with its CUDA backend, its headers refuse a compiler for C++ alone, in every source
# that includes them.
set(lrmoe_language CXX)
if(lrmoe_kokkos_has_cuda AND Kokkos_COMPILE_LANGUAGE STREQUAL CUDA)
  set(lrmoe_language CUDA)
  lrmoe_enable_cuda()
endif()
set(lrmoe_have_CUDA FALSE)
if(LRMOE_WITH_CUDA STREQUAL OFF)
  set(lrmoe_cuda_missing "LRMOE_WITH_CUDA=OFF")
elseif(NOT lrmoe_kokkos_has_cuda)
  set(lrmoe_cuda_missing "this Kokkos has no CUDA backend")
else()
  find_package(CUDAToolkit QUIET)
  if(TARGET CUDA::cublas)
    set(lrmoe_have_CUDA TRUE)
    list(JOIN CMAKE_CUDA_ARCHITECTURES ", " lrmoe_cuda_where)
    lrmoe_summary("CUDA" "found" "${CUDAToolkit_VERSION}"
                  "${CUDAToolkit_NVCC_EXECUTABLE}: ${lrmoe_cuda_where}")
  else()
    set(lrmoe_cuda_missing "no CUDA toolkit with cuBLAS was found")
  endif()
endif()
if(LRMOE_WITH_CUDA STREQUAL ON AND NOT lrmoe_have_CUDA)
  message(FATAL_ERROR "LRMOE_WITH_CUDA is ON and ${lrmoe_cuda_missing} (${Kokkos_WHERE}). Run "
          "scripts/bootstrap --cuda and configure with the preset cuda-release, or pass "
          "-DKokkos_DIR=<a Kokkos with CUDA> and -DCUDAToolkit_ROOT=<where CUDA is installed>.")
endif()

# NCCL -----------------------------------------------------------------------------------------
set(lrmoe_have_NCCL FALSE)
if(lrmoe_have_CUDA AND NOT LRMOE_WITH_NCCL STREQUAL OFF)
  find_package(NCCL QUIET MODULE)
  if(NCCL_FOUND)
    set(lrmoe_have_NCCL TRUE)
    lrmoe_summary("NCCL" "found" "${NCCL_VERSION}" "${NCCL_LIBRARY}")
  else()
    lrmoe_summary("NCCL" "not found" "" "")
  endif()
elseif(lrmoe_have_CUDA)
  lrmoe_summary("NCCL" "off" "" "LRMOE_WITH_NCCL=OFF")
endif()
if(LRMOE_WITH_NCCL STREQUAL ON AND NOT lrmoe_have_NCCL)
  message(FATAL_ERROR "LRMOE_WITH_NCCL is ON and NCCL or LRMoE::cuda, which it serves, is missing. "
          "Configure with LRMOE_WITH_CUDA=ON, and pass -DNCCL_ROOT=<where include/nccl.h and "
          "lib/libnccl.so are>, such as nvidia/nccl in a Python environment's site-packages.")
endif()

# Kokkos Kernels -------------------------------------------------------------------------------
set(lrmoe_have_KOKKOS_KERNELS FALSE)
if(NOT LRMOE_WITH_KOKKOS_KERNELS STREQUAL OFF)
  lrmoe_find(KokkosKernels Kokkos::kokkoskernels "${LRMOE_KOKKOS_KERNELS_SOURCE_DIR}")
  if(TARGET Kokkos::kokkoskernels)
    set(lrmoe_have_KOKKOS_KERNELS TRUE)
    lrmoe_summary("Kokkos Kernels" "found" "${KokkosKernels_VERSION}" "${KokkosKernels_WHERE}")
  elseif(LRMOE_WITH_KOKKOS_KERNELS STREQUAL ON)
    message(FATAL_ERROR "LRMOE_WITH_KOKKOS_KERNELS is ON and Kokkos Kernels 4.5 or later was not "
            "found. Run scripts/bootstrap and configure with a preset, or pass "
            "-DLRMOE_KOKKOS_KERNELS_SOURCE_DIR=<source tree>, or -DLRMOE_FETCH_DEPENDENCIES=ON.")
  else()
    lrmoe_summary("Kokkos Kernels" "not found" "" "")
  endif()
else()
  lrmoe_summary("Kokkos Kernels" "off" "" "LRMOE_WITH_KOKKOS_KERNELS=OFF")
endif()

# CBLAS ----------------------------------------------------------------------------------------
set(lrmoe_have_CBLAS FALSE)
if(NOT LRMOE_WITH_CBLAS STREQUAL OFF)
  find_package(CBLAS QUIET MODULE)
  if(CBLAS_FOUND)
    set(lrmoe_have_CBLAS TRUE)
    lrmoe_summary("CBLAS" "found" "${CBLAS_VERSION}" "${CBLAS_FLAVOUR}: ${CBLAS_LIBRARY}")
  elseif(LRMOE_WITH_CBLAS STREQUAL ON)
    message(FATAL_ERROR "LRMOE_WITH_CBLAS is ON and no BLAS with the C interface was found. "
            "Install one (Debian, Ubuntu: libopenblas-openmp-dev; scripts/bootstrap does), or pass "
            "-DCBLAS_LIBRARY=<library> -DCBLAS_INCLUDE_DIR=<folder of cblas.h>.")
  else()
    lrmoe_summary("CBLAS" "not found" "" "")
  endif()
else()
  lrmoe_summary("CBLAS" "off" "" "LRMOE_WITH_CBLAS=OFF")
endif()

# MPI ------------------------------------------------------------------------------------------
set(lrmoe_have_MPI FALSE)
if(NOT LRMOE_WITH_MPI STREQUAL OFF)
  # Without the C++ bindings that MPI has dropped; this library calls the C interface.
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    set(lrmoe_have_MPI TRUE)
    list(GET MPI_CXX_LIBRARIES -1 lrmoe_mpi_where)
    lrmoe_summary("MPI" "found" "${MPI_CXX_VERSION}" "${lrmoe_mpi_where}")
  elseif(LRMOE_WITH_MPI STREQUAL ON)
    message(FATAL_ERROR "LRMOE_WITH_MPI is ON and no MPI for C++ was found. Install one (Debian, "
            "Ubuntu: libopenmpi-dev openmpi-bin; scripts/bootstrap does), or pass "
            "-DMPI_HOME=<where it is installed>.")
  else()
    lrmoe_summary("MPI" "not found" "" "")
  endif()
else()
  lrmoe_summary("MPI" "off" "" "LRMOE_WITH_MPI=OFF")
endif()

# Logical ranks are threads.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
