// error: .*(conversion|convert|initializ).*bfloat16
// Rounding to bfloat16 is written out.
#include <lrmoe/lrmoe.hpp>

lrmoe::bfloat16 rounded = 1.0f;
