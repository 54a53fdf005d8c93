// error: (use of deleted function|call to deleted constructor).*context
// A context owns the memory of its layers and cannot be copied.
#include <lrmoe/lrmoe.hpp>
#include <lrmoe/openmp/backend.hpp>

using context = lrmoe::context<lrmoe::openmp::backend<>>;
context copy(const context& original) {
  return original;
}
