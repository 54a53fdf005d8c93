# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# lrmoe_test(), lrmoe_mpi_test() and lrmoe_compile_fail().

lrmoe_require(Catch2 catch2)

# Main function, and the precompiled headers that every test starts with: Kokkos and Catch2
# are most of a test's compile time.
add_library(lrmoe_test_base OBJECT support/main.cpp)
target_include_directories(lrmoe_test_base PUBLIC support)
target_link_libraries(lrmoe_test_base PUBLIC ${lrmoe_backends} Catch2::Catch2 lrmoe_options)
if(Catch2_VERSION VERSION_GREATER_EQUAL 3)
  target_compile_definitions(lrmoe_test_base PUBLIC LRMOE_CATCH2_V3=1)
else()
  target_compile_definitions(lrmoe_test_base PUBLIC LRMOE_CATCH2_V3=0)
endif()
# CMake has none for CUDA, and builds them only for a target with a source that uses them.
if(lrmoe_language STREQUAL CXX)
  file(CONFIGURE OUTPUT precompiled.cpp CONTENT "")
  target_sources(lrmoe_test_base PRIVATE "${CMAKE_CURRENT_BINARY_DIR}/precompiled.cpp")
  target_precompile_headers(lrmoe_test_base PRIVATE <Kokkos_Core.hpp> <vector> <string>
                            "${CMAKE_CURRENT_SOURCE_DIR}/support/catch.hpp")
  # The main file configures Catch2 version 2 before it includes it, and most of it is Catch2 itself.
  set_source_files_properties(support/main.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS
                                                                                    -O1)
endif()
lrmoe_set_language(lrmoe_test_base)

# lrmoe_test(NAME SOURCES file... [LIBRARIES target...] [INCLUDES folder...])
# One executable and one CTest test for a folder of Catch2 files.
function(lrmoe_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBRARIES;INCLUDES")
  set(target lrmoe_test_${name})
  add_executable(${target} ${arg_SOURCES})
  # The test's own folders come before the shared one, which has headers of the same names.
  target_include_directories(${target} BEFORE PRIVATE ${arg_INCLUDES})
  target_link_libraries(${target} PRIVATE lrmoe_test_base ${arg_LIBRARIES})
  lrmoe_set_language(${target})
  if(lrmoe_language STREQUAL CXX)
    target_precompile_headers(${target} REUSE_FROM lrmoe_test_base)
  endif()
  add_test(NAME ${name} COMMAND ${target})
  set_tests_properties(${name} PROPERTIES TIMEOUT 900 ENVIRONMENT "OMP_PROC_BIND=false;OMP_WAIT_POLICY=passive" LABELS unit)
endfunction()

# lrmoe_mpi_test(NAME SOURCES file... PROCESSES n... KILLED n LIBRARIES target... [GPUS])
# One executable on tests/mpi/main.cpp, a CTest test NAME_n on each number of processes, and NAME_killed
# on KILLED processes; cases tagged [several] do not run on one. With GPUS each process takes one, so that
# these tests have the machine to themselves; with too few they are skipped.
function(lrmoe_mpi_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "GPUS" "KILLED" "SOURCES;PROCESSES;LIBRARIES")
  set(target lrmoe_test_${name})
  add_executable(${target} ${arg_SOURCES} "${CMAKE_CURRENT_SOURCE_DIR}/mpi/main.cpp")
  target_include_directories(${target} PRIVATE support)
  target_link_libraries(${target} PRIVATE ${arg_LIBRARIES} LRMoE::mpi Catch2::Catch2 lrmoe_options)
  target_compile_definitions(
    ${target} PRIVATE $<TARGET_PROPERTY:lrmoe_test_base,INTERFACE_COMPILE_DEFINITIONS>)
  lrmoe_set_language(${target})
  set(mpirun "${MPIEXEC_EXECUTABLE}" ${MPIEXEC_NUMPROC_FLAG})
  set(tests "")
  foreach(processes IN LISTS arg_PROCESSES)
    set(filter "")
    if(processes EQUAL 1)
      set(filter "~[several]~[killed]") # an exclusion alone would run hidden cases
    endif()
    add_test(NAME ${name}_${processes} COMMAND ${mpirun} ${processes} ${MPIEXEC_PREFLAGS}
                                               $<TARGET_FILE:${target}> ${filter}
                                               ${MPIEXEC_POSTFLAGS})
    set_tests_properties(${name}_${processes} PROPERTIES TIMEOUT 300 PROCESSORS ${processes})
    list(APPEND tests ${name}_${processes})
  endforeach()
  # One process dies and the others wait for it: mpirun ends them all, with an error.
  add_test(NAME ${name}_killed COMMAND ${mpirun} ${arg_KILLED} ${MPIEXEC_PREFLAGS}
                                       $<TARGET_FILE:${target}> "[killed]" ${MPIEXEC_POSTFLAGS})
  set_tests_properties(
    ${name}_killed
    PROPERTIES PASS_REGULAR_EXPRESSION "exited on signal 9|SIGNAL: 9|EXIT CODE: 9" TIMEOUT 100
               PROCESSORS ${arg_KILLED})
  list(APPEND tests ${name}_killed)
  set_tests_properties(${tests} PROPERTIES ENVIRONMENT "${lrmoe_mpi_environment}" LABELS mpi)
  if(arg_GPUS)
    set_tests_properties(${tests} PROPERTIES RUN_SERIAL ON SKIP_RETURN_CODE 77)
  endif()
endfunction()

# lrmoe_compile_fail(NAME SOURCE REGEX): SOURCE must not compile, with an error that matches REGEX.
function(lrmoe_compile_fail name source regex)
  set(target lrmoe_compile_fail_${name})
  add_library(${target} OBJECT EXCLUDE_FROM_ALL ${source})
  target_link_libraries(${target} PRIVATE LRMoE::openmp)
  add_test(NAME compile_fail.${name}
           COMMAND "${CMAKE_COMMAND}" --build "${CMAKE_BINARY_DIR}" --target ${target} --config
                   $<CONFIG>)
  set_tests_properties(
    compile_fail.${name} PROPERTIES PASS_REGULAR_EXPRESSION "error:[^\n]*${regex}"
                                    RESOURCE_LOCK build_tree LABELS compile_fail)
endfunction()
