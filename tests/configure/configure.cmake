# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Runs CMake in the empty folder BUILD with the arguments after --, and checks its result against
# EXPECTED (success or failure) and its text against REGEX.
set(arguments "")
set(seen FALSE)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(index RANGE ${last})
  if(seen)
    list(APPEND arguments "${CMAKE_ARGV${index}}")
  elseif(CMAKE_ARGV${index} STREQUAL "--")
    set(seen TRUE)
  endif()
endforeach()
file(REMOVE_RECURSE "${BUILD}")
execute_process(
  COMMAND "${CMAKE_COMMAND}" ${arguments} -B "${BUILD}"
  RESULT_VARIABLE result
  OUTPUT_VARIABLE text
  ERROR_VARIABLE text)
message("${text}")
if((EXPECTED STREQUAL "success" AND NOT result EQUAL 0) OR (EXPECTED STREQUAL "failure" AND result
                                                                                            EQUAL 0))
  message(FATAL_ERROR "expected ${EXPECTED}, but CMake's exit status is ${result}")
endif()
# CMake wraps the text of an error message.
string(REGEX REPLACE "[ \n]+" " " text "${text}")
if(NOT text MATCHES "${REGEX}")
  message(FATAL_ERROR "the text above does not match ${REGEX}")
endif()
