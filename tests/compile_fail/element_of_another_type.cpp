// error: .*lrmoe::moe_layer: Element must be float, double or lrmoe::bfloat16
// Layers of integers.
#include <lrmoe/lrmoe.hpp>
#include <lrmoe/openmp/backend.hpp>

using wrong = lrmoe::moe_layer<int, lrmoe::openmp::backend<>>;
std::size_t size = sizeof(wrong);
