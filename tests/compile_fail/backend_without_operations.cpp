// error: (template constraint failure|constraints not satisfied).*(moe_layer|context)
// A backend whose operations lack all five operations.
#include <lrmoe/lrmoe.hpp>

struct incomplete {
  using execution_space = Kokkos::DefaultHostExecutionSpace;
  using device_type = execution_space::device_type;
  struct expert_operations {
    explicit expert_operations(lrmoe::workspace<device_type>&) {}
  };
};

using wrong = lrmoe::moe_layer<float, incomplete>;
std::size_t size = sizeof(wrong);
