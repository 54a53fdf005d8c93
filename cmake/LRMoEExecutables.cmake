# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# What this project's own executables are compiled with. None of it reaches the exported targets.
include(CheckCXXCompilerFlag)

set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CUDA_EXTENSIONS OFF)

# In front of a flag for the compiler of C++: nvcc hands it on.
set(lrmoe_to_host $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-Xcompiler=>)
add_library(lrmoe_options INTERFACE)
target_compile_options(
  lrmoe_options
  INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang,AppleClang>:-Wall;-Wextra;-Wpedantic>
            # What nvcc generates for the host's compiler is not pedantic.
            $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-Xcompiler=-Wall,-Wextra>
            # GCC 12 and 13 see copies out of bounds where they inline Kokkos' std::string operations.
            $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,14>>:${lrmoe_to_host}-Wno-array-bounds>
            $<$<BOOL:${LRMOE_WARNINGS_AS_ERRORS}>:${lrmoe_to_host}-Werror>
            $<$<AND:$<BOOL:${LRMOE_WARNINGS_AS_ERRORS}>,$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>>:-Werror=all-warnings>)
# fmt takes nvcc for too old for constexpr, and then calls other functions in constant expressions.
target_compile_definitions(lrmoe_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
if(LRMOE_NATIVE)
  # Safe beside a Kokkos library without these flags: no type that crosses into it depends on them.
  check_cxx_compiler_flag(-march=native LRMOE_HAS_MARCH_NATIVE)
  if(NOT LRMOE_HAS_MARCH_NATIVE)
    message(FATAL_ERROR "LRMOE_NATIVE is ON and this compiler has no -march=native: pass "
                        "-DLRMOE_NATIVE=OFF and your own flags in CMAKE_CXX_FLAGS")
  endif()
  target_compile_options(lrmoe_options INTERFACE ${lrmoe_to_host}-march=native)
endif()

# lrmoe_require(PACKAGE DEBIAN_NAME): finds a package that only these executables need.
macro(lrmoe_require package debian_name)
  find_package(${package} QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "LRMoE's tests, examples and benchmarks need ${package}: run "
            "scripts/bootstrap or install it (Debian, Ubuntu: ${debian_name}), or turn off "
            "LRMOE_BUILD_TESTS, LRMOE_BUILD_EXAMPLES and LRMOE_BUILD_BENCHMARKS")
  endif()
endmacro()
lrmoe_require(CLI11 libcli11-dev)
lrmoe_require(fmt libfmt-dev)
lrmoe_require(nlohmann_json nlohmann-json3-dev)

# Programs run on the backends that are built.
target_compile_definitions(
  lrmoe_options INTERFACE $<$<TARGET_EXISTS:LRMoE::cuda>:LRMOE_HAS_CUDA_BACKEND=1>)
set(lrmoe_backends LRMoE::openmp)
foreach(target LRMoE::cuda LRMoE::nccl)
  if(TARGET ${target})
    list(APPEND lrmoe_backends ${target})
  endif()
endforeach()
if(lrmoe_have_CUDA)
  # CMake leaves the toolkit's folder out: the linker knows it without. The loader may not.
  set(CMAKE_BUILD_RPATH "${CUDAToolkit_LIBRARY_DIR}")
endif()

# For tests that mpirun starts: the machine may have fewer processors than they are, and the user may be root.
# These are Open MPI's words for it, which others do not mind.
set(lrmoe_mpi_environment
    OMPI_ALLOW_RUN_AS_ROOT=1
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1
    OMPI_MCA_mpi_yield_when_idle=1
    OMP_NUM_THREADS=1
    OMP_PROC_BIND=false
    OMP_WAIT_POLICY=passive)

# lrmoe_executable(NAME SOURCE...): a program of this project.
function(lrmoe_executable name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE ${lrmoe_backends} lrmoe_options)
  lrmoe_set_language(${name})
endfunction()

# lrmoe_tool(NAME SOURCE...): the same with the libraries for flags, text and JSON. Tools record the
# commit of LRMOE_SOURCE_DIR, which they ask for when they run.
function(lrmoe_tool name)
  lrmoe_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE CLI11::CLI11 fmt::fmt nlohmann_json::nlohmann_json)
  target_compile_definitions(${name} PRIVATE "LRMOE_SOURCE_DIR=\"${PROJECT_SOURCE_DIR}\"")
endfunction()
