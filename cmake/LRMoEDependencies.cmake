# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Finds Kokkos (required), Kokkos Kernels and CBLAS (the host backend needs one of the two), and MPI
# (for LRMoE::mpi).
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
foreach(name CBLAS KOKKOS_KERNELS MPI)
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

# What Kokkos and Kokkos Kernels are built with here; what the user has set stays.
function(lrmoe_configure_Kokkos)
  set(Kokkos_ENABLE_SERIAL ON CACHE BOOL "Kokkos' Serial backend")
  set(Kokkos_ENABLE_OPENMP ON CACHE BOOL "Kokkos' OpenMP backend")
endfunction()
function(lrmoe_configure_KokkosKernels)
  set(KokkosKernels_ENABLE_ALL_COMPONENTS OFF CACHE BOOL "All of Kokkos Kernels")
  set(KokkosKernels_ENABLE_COMPONENT_BATCHED ON CACHE BOOL "Kokkos Kernels' batched component")
  set(KokkosKernels_ENABLE_COMPONENT_BLAS ON CACHE BOOL "Kokkos Kernels' BLAS component")
  set(KokkosKernels_ADD_DEFAULT_ETI OFF CACHE BOOL "Kokkos Kernels' default instantiations")
endfunction()

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
if(lrmoe_imported)
  set(lrmoe_kokkos_has_openmp FALSE)
  if("OPENMP" IN_LIST Kokkos_DEVICES)
    set(lrmoe_kokkos_has_openmp TRUE)
  endif()
else()
  set(lrmoe_kokkos_has_openmp ${Kokkos_ENABLE_OPENMP})
endif()
lrmoe_summary("Kokkos" "found" "${Kokkos_VERSION}" "${Kokkos_WHERE}")

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
