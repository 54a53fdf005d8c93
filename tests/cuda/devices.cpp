// A layer runs on any GPU of the process, not only on Kokkos' default one, and layers on several GPUs leave
// each other alone. With one GPU there is nothing to compare: these tests warn and end.
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <lrmoe/cuda/device.hpp>
#include <lrmoe/layer.hpp>

#include "layer_harness.hpp"

using namespace layer_test;

namespace {

using lrmoe::cuda::check;
using lrmoe::cuda::device_guard;
using policies_type = policies_of<lrmoe::softmax_top_k>;

/// The GPU furthest from Kokkos' default one, if there is one; warns if not.
std::optional<int> other_gpu() {
  const int count = lrmoe::cuda::device_count();
  if (count < 2) {
    WARN("one GPU: layers on others are not tested here");
    return {};
  }
  return Kokkos::Cuda().cuda_device() == count - 1 ? 0 : count - 1;
}

/// A stream of one GPU and the space on it. The thread's current device stays what it is.
class gpu {
 public:
  explicit gpu(int device) {
    const device_guard guard(device);
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    space = Kokkos::Cuda(stream_);
  }
  gpu(const gpu&) = delete;
  gpu& operator=(const gpu&) = delete;
  ~gpu() {
    space = Kokkos::Cuda();
    static_cast<void>(cudaStreamDestroy(stream_));
  }
  Kokkos::Cuda space;

 private:
  cudaStream_t stream_ = nullptr;
};

/// The GPU whose memory an address is in, -1 for memory of the host.
int device_of(const void* address) {
  cudaPointerAttributes found{};
  check(cudaPointerGetAttributes(&found, address), "asking where memory is");
  return found.type == cudaMemoryTypeDevice ? found.device : -1;
}

/// Devices of all device memory that is allocated through Kokkos while it lives.
class allocations {
 public:
  allocations() {
    heard_.clear();
    Kokkos::Tools::Experimental::set_allocate_data_callback(
        [](Kokkos::Profiling::SpaceHandle space, const char* label, const void* address,
           std::uint64_t bytes) {
          if (bytes > 0 && std::string(space.name) == Kokkos::CudaSpace::name())
            heard_.emplace_back(label, device_of(address));
        });
  }
  allocations(const allocations&) = delete;
  allocations& operator=(const allocations&) = delete;
  ~allocations() { Kokkos::Tools::Experimental::set_allocate_data_callback(nullptr); }

  /// Allocations, which all lie on this device.
  std::size_t count_on(int device) const {
    for (const auto& [label, where] : heard_) {
      INFO(label);
      CHECK(where == device);
    }
    return heard_.size();
  }

 private:
  static inline std::vector<std::pair<std::string, int>> heard_;
};

policies_type policies_with(const any_estimator& estimator) {
  policies_type policies;
  policies.router.renormalise = true;
  policies.quota.keep = 0.5;
  policies.estimator = estimator;
  return policies;
}

/// A problem's views and a layer for it, all on the device of one space.
template <class Element>
class placed_layer {
 public:
  placed_layer(const problem& p, const space_type& space, const any_estimator& estimator)
      : views(views_on(p, space)),
        context(space),
        layer(context, shape_of(p.in.shape), policies_with(estimator)) {}

  void forward() { layer_test::forward(layer, step_, views); }
  void backward() {
    layer_test::backward(layer, views);
    ++step_;
  }
  std::vector<fixture::byte_string> bits_after(int steps) {
    while (steps-- > 0) {
      forward();
      backward();
    }
    return views.bits();
  }

  const call<Element> views;
  lrmoe::context<backend> context;
  layer_of<policies_type, Element> layer;

 private:
  static call<Element> views_on(const problem& p, const space_type& space) {
    const fixture::arrays_on there(space);
    return call<Element>(p);
  }
  std::uint64_t step_ = 0;
};

template <class Element>
problem problem_of(fixture::random& draw, integer T) {
  return random_problem(draw, {T, 40, 24, 6, 2, 16}, fixture::format_of<Element>(),
                        routing_kind::softmax_renormalised);
}

bool same_model(int a, int b) {
  return lrmoe::cuda::describe_device(a).name == lrmoe::cuda::describe_device(b).name;
}

constexpr int steps = 4;

}  // namespace

TEST_CASE("a buffer lies on the GPU of its space, after it has grown as well", "[memory]") {
  const auto other = other_gpu();
  if (!other) return;
  const gpu there(*other);
  lrmoe::ledger account;
  lrmoe::workspace<device> scratch(there.space, account);
  for (const std::int64_t n : {1, 1000, 1 << 20, 3})
    CHECK(device_of(scratch["rows"].vector<float>(n).data()) == *other);
  scratch.fill_bytes(there.space, 0xff);
  there.space.fence("lrmoe_test::fill");
  CHECK(fixture::host_copy(scratch["rows"].vector<index_type>(7)) ==
        std::vector<index_type>(7, -1));
}

TEMPLATE_TEST_CASE("a layer on another GPU than the default one equals the oracle and lies there",
                   "[layer]", float, lrmoe::bfloat16) {
  const auto other = other_gpu();
  if (!other) return;
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const problem p = problem_of<TestType>(draw, 200);
  const any_estimator estimator = GENERATE(
      any_estimator(lrmoe::exact{}), any_estimator(lrmoe::pps{1}), any_estimator(lrmoe::top{}));
  const gpu there(*other);
  const allocations heard;
  placed_layer<TestType> on(p, there.space, estimator);
  on.forward();
  on.backward();
  check_step(p, on.views, coefficients(on.layer, p.in.shape.T * p.in.shape.K),
             routing_kind::softmax_renormalised);

  // Eighteen are arrays of the test.
  CHECK(heard.count_on(*other) > 30);
  CHECK(device_of(on.views.out_view().data()) == *other);
  CHECK(device_of(on.layer.last_order().offsets.data()) == *other);
  CHECK(device_of(on.layer.last_selection().factors.data()) == *other);
  CHECK(device_of(on.context.scratch["cuda::cublas"].template vector<float>(1).data()) == *other);

  const gpu here(Kokkos::Cuda().cuda_device());
  if (!same_model(*other, here.space.cuda_device())) return;
  CHECK(on.bits_after(steps - 1) ==
        placed_layer<TestType>(p, here.space, estimator).bits_after(steps));
}

TEST_CASE("layers on two GPUs, their calls in turn, give the bits of each alone", "[layer]") {
  const auto other = other_gpu();
  if (!other) return;
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const any_estimator estimator = lrmoe::pps{seed};
  using element = lrmoe::bfloat16;
  const problem a = problem_of<element>(draw, 150), b = problem_of<element>(draw, 260);
  const gpu here(Kokkos::Cuda().cuda_device()), there(*other);
  const auto a_alone = placed_layer<element>(a, here.space, estimator).bits_after(steps);
  const auto b_alone = placed_layer<element>(b, there.space, estimator).bits_after(steps);

  placed_layer<element> first(a, here.space, estimator), second(b, there.space, estimator);
  for (int step = 0; step < steps; ++step) {
    // Which device the thread has selected does not matter.
    const device_guard selected(step % 2 == 0 ? *other : here.space.cuda_device());
    first.forward();
    second.forward();
    first.backward();
    second.backward();
  }
  CHECK(first.views.bits() == a_alone);
  CHECK(second.views.bits() == b_alone);
}

TEST_CASE("layers on two GPUs, each with a host thread, give the bits of each alone", "[layer]") {
  const auto other = other_gpu();
  if (!other) return;
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const any_estimator estimator = lrmoe::pps{seed};
  using element = lrmoe::bfloat16;
  const problem a = problem_of<element>(draw, 150), b = problem_of<element>(draw, 260);
  const gpu here(Kokkos::Cuda().cuda_device()), there(*other);
  // These runs also launch every kernel on each device once, which Kokkos wants of one thread at a time.
  const auto a_alone = placed_layer<element>(a, here.space, estimator).bits_after(steps);
  const auto b_alone = placed_layer<element>(b, there.space, estimator).bits_after(steps);
  for (int round = 0; round < 3; ++round) {
    INFO("round " << round);
    placed_layer<element> first(a, here.space, estimator), second(b, there.space, estimator);
    const auto run = [](placed_layer<element>& on) {
      for (int step = 0; step < steps; ++step) {
        on.forward();
        on.backward();
      }
      on.context.space.fence("lrmoe_test::thread");
    };
    std::exception_ptr failure;
    std::jthread on_the_other([&] {
      try {
        run(second);
      } catch (...) {
        failure = std::current_exception();
      }
    });
    run(first);
    on_the_other.join();
    if (failure) std::rethrow_exception(failure);
    CHECK(first.views.bits() == a_alone);
    CHECK(second.views.bits() == b_alone);
  }
}
