# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Finds a BLAS with the C interface cblas.h.
#   CBLAS::CBLAS         imported target
#   CBLAS_FOUND, CBLAS_VERSION (OpenBLAS only), CBLAS_FLAVOUR (text for people)
#   CBLAS_IS_OPENBLAS    true if openblas_set_num_threads exists
# To choose another one, set CBLAS_LIBRARY and CBLAS_INCLUDE_DIR.
#
# OpenBLAS' OpenMP flavour comes first: it shares its threads with Kokkos' OpenMP backend and is
# serial inside a parallel region, where the pthread flavour would run a second pool of threads.
include(CheckCXXSymbolExists)
include(FindPackageHandleStandardArgs)

set(cblas_suffixes openblas-openmp openblas-pthread openblas-serial openblas)
find_library(
  CBLAS_LIBRARY
  NAMES openblaso openblas openblasp blis cblas blas
  PATH_SUFFIXES ${cblas_suffixes}
  DOC "BLAS library with the C interface")
get_filename_component(cblas_library_dir "${CBLAS_LIBRARY}" DIRECTORY)
get_filename_component(cblas_flavour_dir "${cblas_library_dir}" NAME)
# The header that belongs to the library: distributions keep one per flavour in a like-named folder.
find_path(
  CBLAS_INCLUDE_DIR cblas.h
  HINTS "${cblas_library_dir}/../include"
  PATH_SUFFIXES "${cblas_flavour_dir}" ${cblas_suffixes} cblas blis
  DOC "Folder of cblas.h")
mark_as_advanced(CBLAS_LIBRARY CBLAS_INCLUDE_DIR)

if(CBLAS_LIBRARY AND CBLAS_INCLUDE_DIR)
  # Checked again whenever another library is chosen.
  if(NOT CBLAS_CHECKED STREQUAL "${CBLAS_LIBRARY}")
    unset(CBLAS_HAS_SGEMM CACHE)
    unset(CBLAS_IS_OPENBLAS CACHE)
    set(CBLAS_CHECKED "${CBLAS_LIBRARY}" CACHE INTERNAL "")
  endif()
  set(CMAKE_REQUIRED_INCLUDES "${CBLAS_INCLUDE_DIR}")
  set(CMAKE_REQUIRED_LIBRARIES "${CBLAS_LIBRARY}")
  check_cxx_symbol_exists(cblas_sgemm cblas.h CBLAS_HAS_SGEMM)
  check_cxx_symbol_exists(openblas_set_num_threads cblas.h CBLAS_IS_OPENBLAS)
  unset(CMAKE_REQUIRED_INCLUDES)
  unset(CMAKE_REQUIRED_LIBRARIES)

  set(CBLAS_FLAVOUR "BLAS")
  if(CBLAS_IS_OPENBLAS)
    set(CBLAS_FLAVOUR "OpenBLAS")
    if(CBLAS_LIBRARY MATCHES "openblas-(openmp|pthread|serial)")
      string(APPEND CBLAS_FLAVOUR " (${CMAKE_MATCH_1})")
    elseif(CBLAS_LIBRARY MATCHES "openblaso")
      string(APPEND CBLAS_FLAVOUR " (openmp)")
    elseif(CBLAS_LIBRARY MATCHES "openblasp")
      string(APPEND CBLAS_FLAVOUR " (pthread)")
    endif()
    if(EXISTS "${CBLAS_INCLUDE_DIR}/openblas_config.h")
      file(STRINGS "${CBLAS_INCLUDE_DIR}/openblas_config.h" cblas_version_line
           REGEX "define OPENBLAS_VERSION ")
      if(cblas_version_line MATCHES "([0-9]+\\.[0-9.]+)")
        set(CBLAS_VERSION "${CMAKE_MATCH_1}")
      endif()
    endif()
  endif()
endif()

find_package_handle_standard_args(
  CBLAS
  REQUIRED_VARS CBLAS_LIBRARY CBLAS_INCLUDE_DIR CBLAS_HAS_SGEMM
  VERSION_VAR CBLAS_VERSION)

if(CBLAS_FOUND AND NOT TARGET CBLAS::CBLAS)
  add_library(CBLAS::CBLAS UNKNOWN IMPORTED)
  set_target_properties(
    CBLAS::CBLAS PROPERTIES IMPORTED_LOCATION "${CBLAS_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES
                                                                  "${CBLAS_INCLUDE_DIR}")
endif()
