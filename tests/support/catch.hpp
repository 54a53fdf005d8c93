// Catch2 version 2 or 3, whichever the machine has.
#pragma once

#if LRMOE_CATCH2_V3
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif

#if defined(__CUDACC__)
// Under nvcc Catch2 3 silences, around its macros, a warning that our tests do not meet. At this pragma the
// front end of CUDA 13.0 (cudafe++ 13.0.88) computes for ever in files that assert before their first test.
#undef CATCH_INTERNAL_START_WARNINGS_SUPPRESSION
#undef CATCH_INTERNAL_STOP_WARNINGS_SUPPRESSION
#undef CATCH_INTERNAL_SUPPRESS_UNUSED_VARIABLE_WARNINGS
#define CATCH_INTERNAL_START_WARNINGS_SUPPRESSION
#define CATCH_INTERNAL_STOP_WARNINGS_SUPPRESSION
#define CATCH_INTERNAL_SUPPRESS_UNUSED_VARIABLE_WARNINGS
#endif
