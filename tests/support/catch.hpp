// Catch2 version 2 or 3, whichever the machine has.
#pragma once

#if LRMOE_CATCH2_V3
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
