# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# lrmoe_set_language(TARGET...): has the C++ sources of TARGETs, which this folder has added,
# compiled in the language that Kokkos' headers ask for. That is CUDA if Kokkos was built with its
# CUDA backend as a CMake language: the project has to enable it. Otherwise nothing changes.
function(lrmoe_set_language)
  get_target_property(language LRMoE::lrmoe LRMOE_LANGUAGE)
  if(NOT language STREQUAL CUDA)
    return()
  endif()
  foreach(target IN LISTS ARGN)
    get_target_property(sources ${target} SOURCES)
    list(FILTER sources INCLUDE REGEX "\\.(cpp|cc|cxx|C)$")
    if(sources)
      set_source_files_properties(${sources} PROPERTIES LANGUAGE CUDA)
    endif()
  endforeach()
endfunction()
