# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Runs PROGRAM and lets CHECK compare what it printed, and the pages, with the sources.
execute_process(COMMAND "${PROGRAM}" OUTPUT_FILE "${OUTPUT}" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${PYTHON}" "${CHECK}" --printed "${OUTPUT}" COMMAND_ERROR_IS_FATAL ANY)
