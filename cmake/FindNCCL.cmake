# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Finds NVIDIA's NCCL.
#   NCCL::NCCL                   imported target
#   NCCL_FOUND, NCCL_VERSION
# Looks in NCCL_ROOT and NCCL_HOME (CMake or environment; nvidia/nccl of a Python environment's
# site-packages will do), in the CUDA toolkit, and in the system's folders. Python's packages have
# the library without its development link, so the versioned name counts as well. To choose another
# one, set NCCL_LIBRARY and NCCL_INCLUDE_DIR.
include(FindPackageHandleStandardArgs)

find_package(CUDAToolkit QUIET)
set(nccl_hints ${NCCL_HOME} $ENV{NCCL_HOME} ${CUDAToolkit_LIBRARY_ROOT} ${CUDAToolkit_TARGET_DIR})
find_path(
  NCCL_INCLUDE_DIR nccl.h
  HINTS ${nccl_hints} ${CUDAToolkit_INCLUDE_DIRS}
  PATH_SUFFIXES include
  DOC "Folder of nccl.h")
# The library that lies beside the header, not one by a preferred name elsewhere.
find_library(
  NCCL_LIBRARY
  NAMES nccl libnccl.so.2 NAMES_PER_DIR
  HINTS "${NCCL_INCLUDE_DIR}/../lib" ${nccl_hints} ${CUDAToolkit_LIBRARY_DIR}
  PATH_SUFFIXES lib lib64
  DOC "NCCL's library")
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

if(NCCL_INCLUDE_DIR)
  set(NCCL_VERSION "")
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" nccl_line REGEX "#define NCCL_${part} ")
    string(REGEX MATCH "[0-9]+" nccl_number "${nccl_line}")
    list(APPEND NCCL_VERSION "${nccl_number}")
  endforeach()
  list(JOIN NCCL_VERSION "." NCCL_VERSION)
endif()

find_package_handle_standard_args(
  NCCL
  REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR
  VERSION_VAR NCCL_VERSION)

if(NCCL_FOUND AND NOT TARGET NCCL::NCCL)
  add_library(NCCL::NCCL UNKNOWN IMPORTED)
  set_target_properties(
    NCCL::NCCL PROPERTIES IMPORTED_LOCATION "${NCCL_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES
                                                                "${NCCL_INCLUDE_DIR}")
endif()
