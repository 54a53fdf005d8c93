// What the layer promises beside its numbers: determinism, cost, memory, labels, order of calls.
#include <map>
#include <set>

#include <lrmoe/layer.hpp>

#include "layer_harness.hpp"

using namespace layer_test;

namespace {

using softmax_policies = policies_of<lrmoe::softmax_top_k>;
using given_policies = policies_of<lrmoe::given_routing>;
constexpr routing_kind renormalised = routing_kind::softmax_renormalised;

softmax_policies reduced(double keep, const any_estimator& estimator) {
  softmax_policies policies;
  policies.router.renormalise = true;
  policies.quota.keep = keep;
  policies.estimator = estimator;
  return policies;
}

struct outcome {
  std::vector<fixture::byte_string> bits;
  lrmoe::backward_report report;
};

/// One step of a fresh layer on a space instance.
template <class Element>
outcome step_of(const problem& p, const softmax_policies& policies, const space_type& space,
                std::uint64_t step = 5, std::uint32_t layer_id = 1) {
  lrmoe::context<backend> context(space);
  layer_of<softmax_policies, Element> layer(context, shape_of(p.in.shape), policies, layer_id);
  const call<Element> views(p);
  forward(layer, step, views);
  const auto report = backward(layer, views);
  return {views.bits(), report};
}

}  // namespace

TEMPLATE_TEST_CASE("results are the same bit by bit over repeats and over one and two threads",
                   "[layer]", float, double, lrmoe::bfloat16) {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  // Enough pairs for several tiles and chunks.
  const oracle::extents shape{1500, 24, 20, 6, 2, 9};
  const problem p = random_problem(draw, shape, fixture::format_of<TestType>(), renormalised);
  const auto one = fixture::space_of_threads(1), two = fixture::space_of_threads(2);
  const std::vector<any_estimator> estimators{lrmoe::exact{}, lrmoe::pps{seed}, lrmoe::top{},
                                              lrmoe::uniform{seed, true}};
  for (const auto& estimator : estimators) {
    const auto policies = reduced(0.3, estimator);
    const outcome first = step_of<TestType>(p, policies, two);
    CHECK(step_of<TestType>(p, policies, two).bits == first.bits);
    const outcome other = step_of<TestType>(p, policies, one);
    CHECK(other.bits == first.bits);
    CHECK(other.report.certified.score_total == first.report.certified.score_total);
    CHECK(other.report.certified.added_variance == first.report.certified.added_variance);
    CHECK(other.report.routed.flops == first.report.routed.flops);
  }
}

TEST_CASE("draws change with step, layer and seed, and only the backward pass depends on them",
          "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const problem p =
      random_problem(draw, {200, 6, 5, 4, 2, 0}, oracle::format::binary32, renormalised);
  const space_type space;
  const std::vector<std::pair<any_estimator, any_estimator>> estimators{
      {lrmoe::pps{1}, lrmoe::pps{2}}, {lrmoe::uniform{1, true}, lrmoe::uniform{2, true}}};
  for (const auto& [one, other] : estimators) {
    const outcome first = step_of<float>(p, reduced(0.5, one), space, 5, 1);
    for (const outcome& changed : {step_of<float>(p, reduced(0.5, one), space, 6, 1),
                                   step_of<float>(p, reduced(0.5, one), space, 5, 2),
                                   step_of<float>(p, reduced(0.5, other), space, 5, 1)}) {
      CHECK(changed.bits[0] == first.bits[0]);  // out
      CHECK(changed.bits[1] != first.bits[1]);  // dx
      CHECK(changed.report.pairs_kept == first.report.pairs_kept);
    }
  }
}

TEST_CASE("steps of different size reuse buffers without reading what they hold", "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const auto policies =
      reduced(0.5, GENERATE(any_estimator(lrmoe::pps{1}), any_estimator(lrmoe::exact{})));
  lrmoe::context<backend> context;
  layer_of<softmax_policies, float> layer(context, {6, 5, 4, 2, 3}, policies, 1);
  bool first = true;
  for (const integer T : {40, 7, 0, 1, 39, 40, 90}) {
    INFO("T = " << T);
    // A step of NaN fills every buffer, the saved activations too, with values that would show.
    problem poison =
        random_problem(draw, {T + 20, 6, 5, 4, 2, 3}, oracle::format::binary32, renormalised);
    std::fill(poison.in.x.begin(), poison.in.x.end(), std::nan(""));
    std::fill(poison.d_out.begin(), poison.d_out.end(), std::nan(""));
    const call<float> poison_views(poison);
    forward(layer, 0, poison_views);
    if (!first) backward(layer, poison_views);  // sometimes no backward follows a forward
    first = false;
    context.scratch.fill_bytes(context.space, 0xff);

    const problem p =
        random_problem(draw, {T, 6, 5, 4, 2, 3}, oracle::format::binary32, renormalised);
    const call<float> views(p);
    forward(layer, 3, views);
    context.scratch.fill_bytes(context.space, 0xff);
    backward(layer, views);
    check_step(p, views, coefficients(layer, p.in.shape.P()), renormalised);
  }
}

TEST_CASE("layers that share a context do not disturb each other", "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const auto policies = reduced(0.5, lrmoe::pps{seed});
  const problem a =
      random_problem(draw, {30, 6, 5, 4, 2, 3}, oracle::format::binary32, renormalised);
  const problem b =
      random_problem(draw, {50, 8, 7, 6, 3, 0}, oracle::format::binary32, renormalised);
  lrmoe::context<backend> context;
  layer_of<softmax_policies, float> first(context, shape_of(a.in.shape), policies, 1);
  layer_of<softmax_policies, float> second(context, shape_of(b.in.shape), policies, 2);
  const call<float> a_views(a), b_views(b);
  forward(first, 5, a_views);
  forward(second, 5, b_views);
  backward(second, b_views);
  backward(first, a_views);
  const space_type space;
  CHECK(a_views.bits() == step_of<float>(a, policies, space, 5, 1).bits);
  CHECK(b_views.bits() == step_of<float>(b, policies, space, 5, 2).bits);
}

TEST_CASE("the report's products and bytes to send are proportional to the kept pairs", "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const oracle::extents shape{512, 12, 10, 4, 2, 0};
  const problem p = random_problem(draw, shape, oracle::format::binary32, renormalised);
  const double D = 12, F = 10;
  const auto counts = oracle::pairs_by_expert(p.in.experts, shape.E);
  for (const double keep : {1.0, 0.5, 0.25, 0.125}) {
    INFO("keep " << keep);
    const auto report = step_of<float>(p, reduced(keep, lrmoe::pps{seed}), {}).report;
    double kept = 0.0, groups = 0.0;
    for (const auto& pairs : counts) {
      kept += std::ceil(keep * static_cast<double>(pairs.size()));
      groups += pairs.empty() ? 0.0 : 1.0;
    }
    CHECK(report.pairs == 1024);
    CHECK(static_cast<double>(report.pairs_kept) == kept);
    CHECK(report.kept_fraction() == kept / 1024.0);
    // Two products of D F and two of 2 D F multiply-adds a pair.
    CHECK(report.routed.flops == kept * 12.0 * D * F);
    // Rows: dO twice, x, c w h, [dg du] twice; weights and gradients once a group in use.
    const double weights = 3.0 * D * F * groups;
    CHECK(report.routed.bytes_read == 4.0 * (kept * (3 * D + 5 * F) + 2 * weights));
    // A composition writes dh' as well.
    const double hidden = backend::expert_operations::gathers ? 0.0 : F;
    CHECK(report.routed.bytes_written == Approx(4.0 * (kept * (D + hidden) + weights)));
    CHECK(static_cast<double>(report.bytes_sent) == kept * (2 * D * 4 + 16));
    CHECK(report.shared.flops == 0.0);
  }
}

TEST_CASE("a shared expert's backward is complete whatever is kept", "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const problem p =
      random_problem(draw, {100, 12, 10, 4, 2, 7}, oracle::format::binary32, renormalised);
  for (const double keep : {1.0, 0.1})
    CHECK(step_of<float>(p, reduced(keep, lrmoe::top{}), {}).report.shared.flops ==
          100.0 * 12.0 * 12.0 * 7.0);
}

TEST_CASE("scratch of the backward pass shrinks with the kept pairs", "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const oracle::extents shape{4096, 16, 64, 4, 4, 0};
  problem p;  // only sizes matter
  p.in = fixture::random_layer(draw, shape, oracle::format::binary32);
  p.logits = draw.normal(shape.T * shape.E, 1.0, oracle::format::binary32);
  p.d_out = draw.normal(shape.T * shape.D, 1.0, oracle::format::binary32);
  p.gate_up_before.resize(p.in.gate_up.size());
  p.down_before.resize(p.in.down.size());
  const auto growth = [&](double keep) {
    lrmoe::context<backend> context(fixture::space_of_threads(1));
    layer_of<softmax_policies, float> layer(context, shape_of(shape), reduced(keep, lrmoe::top{}));
    const call<float> views(p);
    forward(layer, 0, views);
    const auto before = context.memory.live_bytes();
    backward(layer, views);
    return static_cast<double>(context.memory.live_bytes() - before);
  };
  // [dg du] of the kept rows dominates; some per-pair vectors do not shrink.
  const double all = growth(1.0);
  CHECK(growth(0.5) < 0.6 * all);
  CHECK(growth(0.25) < 0.35 * all);
}

TEST_CASE("the memory that the report states is what the ledger saw, at its peak", "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const problem p =
      random_problem(draw, {300, 12, 10, 4, 2, 7}, oracle::format::binary32, renormalised);
  const any_estimator estimator =
      GENERATE(any_estimator(lrmoe::pps{1}), any_estimator(lrmoe::exact{}));
  lrmoe::context<backend> context;
  {
    layer_of<softmax_policies, float> layer(context, shape_of(p.in.shape), reduced(0.5, estimator));
    CHECK(context.memory.live_bytes() == 0);
    const call<float> views(p);
    forward(layer, 0, views);
    const auto report = backward(layer, views);
    using lrmoe::memory_category;
    const auto& memory = context.memory;
    CHECK(report.held_bytes() == memory.peak_bytes());
    CHECK(report.held_bytes() == memory.live_bytes());
    CHECK(report.token_buffer_bytes == memory.live_bytes(memory_category::token_buffers));
    CHECK(report.saved_activation_bytes == memory.live_bytes(memory_category::saved_activations));
    CHECK(report.workspace_bytes == memory.live_bytes(memory_category::workspace));
    // Saved: g and u of every pair and of the shared expert's tokens, and a norm a pair.
    CHECK(report.saved_activation_bytes >= 4 * (600 * 20 + 300 * 14));
  }
  // Only the workspace outlives its layers.
  CHECK(context.memory.live_bytes() ==
        context.memory.live_bytes(lrmoe::memory_category::workspace));
}

namespace {

/// What Kokkos reports while one of these lives: allocations, kernels, regions.
class recorder {
 public:
  static inline std::vector<std::string> allocations, kernels, regions;
  static inline std::int64_t allocated_bytes = 0;

  recorder() {
    namespace tools = Kokkos::Tools::Experimental;
    allocations.clear();
    kernels.clear();
    regions.clear();
    allocated_bytes = 0;
    tools::set_allocate_data_callback(
        [](Kokkos_Profiling_SpaceHandle, const char* label, const void*, std::uint64_t bytes) {
          if (bytes == 0) return;  // Kokkos asks for none before it launches teams on a GPU
          allocations.emplace_back(label);
          allocated_bytes += static_cast<std::int64_t>(bytes);
        });
    const auto kernel = [](const char* label, std::uint32_t, std::uint64_t*) {
      kernels.emplace_back(label);
    };
    tools::set_begin_parallel_for_callback(kernel);
    tools::set_begin_parallel_reduce_callback(kernel);
    tools::set_begin_parallel_scan_callback(kernel);
    tools::set_push_region_callback([](const char* label) { regions.emplace_back(label); });
  }
  ~recorder() {
    namespace tools = Kokkos::Tools::Experimental;
    tools::set_allocate_data_callback(nullptr);
    tools::set_begin_parallel_for_callback(nullptr);
    tools::set_begin_parallel_reduce_callback(nullptr);
    tools::set_begin_parallel_scan_callback(nullptr);
    tools::set_push_region_callback(nullptr);
  }
  recorder(const recorder&) = delete;
  recorder& operator=(const recorder&) = delete;
};

bool starts_with(const std::string& text, const std::string& start) {
  return text.rfind(start, 0) == 0;
}

}  // namespace

TEMPLATE_TEST_CASE("nothing is allocated for calls of a size already seen", "[layer]", float,
                   lrmoe::bfloat16) {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const problem p =
      random_problem(draw, {300, 12, 10, 4, 2, 7}, fixture::format_of<TestType>(), renormalised);
  const problem smaller =
      random_problem(draw, {100, 12, 10, 4, 2, 7}, fixture::format_of<TestType>(), renormalised);
  const call<TestType> views(p), small_views(smaller);
  const std::vector<any_estimator> estimators{lrmoe::pps{1}, lrmoe::top{}, lrmoe::uniform{1, true},
                                              lrmoe::exact{}};
  lrmoe::context<backend> context;
  layer_of<softmax_policies, TestType> layer(context, shape_of(p.in.shape),
                                             reduced(0.5, lrmoe::pps{1}));
  for (const auto& estimator : estimators) {
    layer.policies().estimator = estimator;
    forward(layer, 0, views);
    backward(layer, views);
  }
  const auto before = context.memory.allocations();
  const recorder heard;
  for (std::uint64_t step = 1; step < 4; ++step)
    for (const auto& estimator : estimators) {
      layer.policies().estimator = estimator;
      forward(layer, step, views);
      backward(layer, views);
      forward(layer, step, small_views);
      backward(layer, small_views, lrmoe::gradient_update::overwrite);
    }
  CHECK(context.memory.allocations() == before);
  INFO((recorder::allocations.empty() ? std::string() : recorder::allocations[0]));
  CHECK(recorder::allocations.empty());
}

TEST_CASE("every byte that Kokkos allocates for a step is in the ledger", "[layer]") {
  fixture::random draw(3);
  const problem p =
      random_problem(draw, {50, 6, 5, 4, 2, 3}, oracle::format::binary32, renormalised);
  const call<float> views(p);
  lrmoe::context<backend> context;
  // A first step of another layer makes Kokkos allocate its own scratch.
  step_of<float>(p, reduced(0.5, lrmoe::pps{1}), context.space);
  layer_of<softmax_policies, float> layer(context, shape_of(p.in.shape),
                                          reduced(0.5, lrmoe::pps{1}));
  const recorder heard;
  forward(layer, 0, views);
  backward(layer, views);
  CHECK(static_cast<std::int64_t>(recorder::allocations.size()) == context.memory.allocations());
  // Growing frees before it allocates, so the sum of allocations may exceed the peak.
  CHECK(recorder::allocated_bytes >= context.memory.peak_bytes());
  for (const auto& label : recorder::allocations) {
    INFO(label);
    CHECK(starts_with(label, "lrmoe::"));
  }
}

TEST_CASE("kernels carry the library's labels and the steps of a pass are profiling regions",
          "[layer]") {
  fixture::random draw(3);
  const problem p =
      random_problem(draw, {50, 6, 5, 4, 2, 3}, oracle::format::binary32, renormalised);
  const call<float> views(p);
  lrmoe::context<backend> context;
  layer_of<softmax_policies, float> layer(context, shape_of(p.in.shape),
                                          reduced(0.5, lrmoe::pps{1}));
  forward(layer, 0, views);
  backward(layer, views);
  const recorder heard;
  forward(layer, 1, views);
  backward(layer, views);
  std::set<std::string> own;
  for (const auto& label : recorder::kernels) {
    if (starts_with(label, "Kokkos::")) continue;  // fills and copies
    INFO(label);
    CHECK(starts_with(label, "lrmoe::"));
    CHECK(std::count(label.begin(), label.end(), ':') >= 4);  // lrmoe::<entity>::<step>
    own.insert(label);
  }
  for (const char* expected : {
         "lrmoe::softmax_top_k::route", "lrmoe::softmax_top_k::backward",
#if LRMOE_HAS_CUDA_BACKEND
             "lrmoe::spread_rows::copy", "lrmoe::swiglu_rows::forward",
             "lrmoe::swiglu_rows::backward",
#else
        "lrmoe::gate_up::tile", "lrmoe::down::tile", "lrmoe::down_backward::tile",
        "lrmoe::gate_up_backward::tile", "lrmoe::weight_gradient::tile",
#endif
             "lrmoe::pps::select", "lrmoe::score_pairs::score", "lrmoe::combine::sum"
       }) {
    INFO(expected);
    CHECK(own.count(expected) == 1);
  }
  const std::vector<std::string> regions{"lrmoe::moe_layer::forward", "lrmoe::moe_layer::route",
                                         "lrmoe::moe_layer::plan",    "lrmoe::moe_layer::experts",
                                         "lrmoe::moe_layer::combine", "lrmoe::moe_layer::backward",
                                         "lrmoe::moe_layer::select",  "lrmoe::moe_layer::experts",
                                         "lrmoe::moe_layer::certify", "lrmoe::moe_layer::combine"};
  CHECK(recorder::regions == regions);
}

TEST_CASE("an unwanted gradient is left alone and its product skipped", "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const oracle::extents shape{40, 6, 5, 4, 2, 3};
  const problem p = random_problem(draw, shape, oracle::format::binary32, renormalised);
  const auto policies = reduced(0.5, lrmoe::pps{seed});
  const outcome full = step_of<float>(p, policies, {}, 0, 0);
  const double pair = 2.0 * 6.0 * 5.0, token = 2.0 * 6.0 * 3.0;  // FLOPs of a D x F product
  const double kept = static_cast<double>(full.report.pairs_kept);
  REQUIRE(full.report.routed.flops == 6 * pair * kept);
  REQUIRE(full.report.shared.flops == 6 * token * 40);
  for (unsigned wanted = 0; wanted < 16; ++wanted) {
    INFO("wanted " << wanted);
    lrmoe::context<backend> context;
    layer_of<softmax_policies, float> layer(context, shape_of(shape), policies);
    const call<float> views(p);
    forward(layer, 0, views);
    auto gradients = views.gradients();
    if (!(wanted & 1)) gradients.gate_up = {};
    if (!(wanted & 2)) gradients.down = {};
    if (!(wanted & 4)) gradients.shared_gate_up = {};
    if (!(wanted & 8)) gradients.shared_down = {};
    layer.backward(views.d_out_view(), views.weights(), views.dx_view(),
                   views.router_gradient<lrmoe::softmax_top_k>(), gradients);
    const auto report = layer.report();
    const call<float> untouched(p);
    auto expected = full.bits;
    if (!(wanted & 1)) expected[4] = untouched.bits()[4];
    if (!(wanted & 2)) expected[5] = untouched.bits()[5];
    if (!(wanted & 4)) expected[6] = untouched.bits()[6];
    if (!(wanted & 8)) expected[7] = untouched.bits()[7];
    CHECK(views.bits() == expected);
    CHECK(report.routed.flops == pair * kept * (3 + (wanted & 1 ? 2 : 0) + (wanted & 2 ? 1 : 0)));
    CHECK(report.shared.flops == token * 40 * (3 + (wanted & 4 ? 2 : 0) + (wanted & 8 ? 1 : 0)));
  }
}

TEST_CASE("a forward pass that no backward follows saves nothing and gives the same output",
          "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const problem p =
      random_problem(draw, {40, 6, 5, 4, 2, 3}, oracle::format::binary32, renormalised);
  const auto policies = reduced(0.5, lrmoe::pps{seed});
  lrmoe::context<backend> context;
  layer_of<softmax_policies, float> layer(context, shape_of(p.in.shape), policies);
  const call<float> views(p);
  layer.forward(0, views.x_view(), views.router_input<lrmoe::softmax_top_k>(), views.weights(),
                views.out_view(), false);
  context.space.fence("lrmoe_test::forward");
  CHECK(views.out.bits() == step_of<float>(p, policies, {}).bits[0]);
  CHECK(context.memory.peak_bytes(lrmoe::memory_category::saved_activations) == 0);
  CHECK_THROWS_AS(backward(layer, views), lrmoe::error);
  CHECK(views.dx.untouched());
}

TEST_CASE("backward goes with exactly one forward", "[layer]") {
  fixture::random draw(3);
  const problem p =
      random_problem(draw, {10, 6, 5, 4, 2, 0}, oracle::format::binary32, renormalised);
  lrmoe::context<backend> context;
  layer_of<softmax_policies, float> layer(context, shape_of(p.in.shape),
                                          reduced(0.5, lrmoe::pps{1}));
  const call<float> views(p);
  const auto message = [&] {
    try {
      backward(layer, views);
    } catch (const lrmoe::error& failure) {
      return std::string(failure.what());
    }
    return std::string();
  };
  CHECK(fixture::names(message(), {"backward needs a forward"}));
  forward(layer, 0, views);
  CHECK(message().empty());
  CHECK(fixture::names(message(), {"each forward allows one backward"}));
}

TEST_CASE("policies may change between steps and take effect with the next forward", "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const problem p =
      random_problem(draw, {60, 6, 5, 4, 2, 0}, oracle::format::binary32, renormalised);
  const auto half = reduced(0.5, lrmoe::pps{seed});
  lrmoe::context<backend> context;
  layer_of<softmax_policies, float> layer(context, shape_of(p.in.shape), half, 1);
  {
    // A change between forward and backward does not reach that backward.
    const call<float> views(p);
    forward(layer, 5, views);
    layer.policies() = reduced(0.25, lrmoe::top{});
    layer.policies().router.renormalise = false;
    backward(layer, views);
    CHECK(views.bits() == step_of<float>(p, half, {}).bits);
  }
  const auto quarter = reduced(0.25, lrmoe::top{});
  layer.policies() = quarter;
  const call<float> views(p);
  forward(layer, 5, views);
  backward(layer, views);
  CHECK(views.bits() == step_of<float>(p, quarter, {}).bits);
}

TEST_CASE("a budget that is too small is refused before outputs change, and names the bytes",
          "[layer]") {
  fixture::random draw(3);
  const problem p =
      random_problem(draw, {64, 6, 5, 4, 2, 3}, oracle::format::binary32, renormalised);
  const auto policies = reduced(0.5, lrmoe::pps{1});
  const outcome expected = step_of<float>(p, policies, {});
  // Every budget between nothing and enough: wherever the refusal falls, nothing is half done.
  integer refused = 0;
  const std::int64_t enough = expected.report.held_bytes();
  const std::int64_t stride = std::max<std::int64_t>(500, enough / 150);
  for (std::int64_t budget = 500; budget < enough; budget += stride) {
    INFO("budget " << budget);
    lrmoe::context<backend> context;
    context.memory.set_budget_bytes(budget);
    layer_of<softmax_policies, float> layer(context, shape_of(p.in.shape), policies, 1);
    const call<float> views(p), untouched(p);
    std::string message;
    bool forward_done = false;
    try {
      forward(layer, 5, views);
      forward_done = true;
      backward(layer, views);
    } catch (const lrmoe::memory_error& failure) {
      message = failure.what();
    }
    CHECK(fixture::names(message, {"budget of " + std::to_string(budget), "What fits: "}));
    CHECK(context.memory.peak_bytes() <= budget);
    // Forward asks for backward's memory too, so that no step stops half way.
    CHECK_FALSE(forward_done);
    ++refused;
    CHECK(views.bits() == untouched.bits());
    // With the budget raised, the same layer works.
    context.memory.set_budget_bytes(0);
    forward(layer, 5, views);
    backward(layer, views);
    CHECK(views.bits() == expected.bits);
  }
  CHECK(refused > 0);
}

TEST_CASE("the report's ratios are their formulas", "[layer]") {
  lrmoe::backward_report report;
  CHECK(report.kept_fraction() == 1.0);
  CHECK(report.noise_ratio() == 0.0);
  CHECK(report.worst_case_time_ratio() == 1.0);
  report.pairs = 200;
  report.pairs_kept = 50;
  report.certified.score_total = 8.0;
  report.certified.added_variance = 2.0;
  CHECK(report.kept_fraction() == 0.25);
  CHECK(report.noise_ratio() == 0.25);
  CHECK(report.worst_case_time_ratio() == Approx(1.25 * 1.5 / 3.0));
  lrmoe::backward_report sum = report;
  sum.workspace_bytes = 5;
  report.workspace_bytes = 9;
  sum += report;
  CHECK(sum.pairs == 400);
  CHECK(sum.certified.score_total == 16.0);
  CHECK(sum.workspace_bytes == 9);
  // A biased rule adds no noise: its error has no such number.
  report.unbiased = false;
  CHECK(std::isnan(report.noise_ratio()));
  CHECK(std::isnan(report.worst_case_time_ratio()));
}

TEST_CASE(
    "a report that nobody asks for reaches the history with the next forward, or when that is read",
    "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const problem p =
      random_problem(draw, {80, 6, 5, 4, 2, 0}, oracle::format::binary32, renormalised);
  using policies =
      lrmoe::policies<lrmoe::softmax_top_k, lrmoe::shared_threshold, lrmoe::lrm_score, lrmoe::pps>;
  struct remembered {
    std::vector<fixture::byte_string> bits;
    std::vector<index_type> quotas;
    std::vector<std::vector<float>> shares;
    double correction;
    bool operator==(const remembered&) const = default;
  };
  const auto run = [&](bool ask) {
    lrmoe::context<backend> context;
    layer_of<policies, float> layer(context, shape_of(p.in.shape), {.estimator = {.seed = seed}});
    CHECK_THROWS_AS(layer.report(), lrmoe::error);
    const call<float> views(p);
    for (std::uint64_t step = 0; step < 3; ++step) {
      forward(layer, step, views);
      enqueue_backward(layer, views);
      if (ask) CHECK(layer.report().certified.score_total > 0.0);
    }
    remembered result{views.bits(), layer.last_plan().quotas, {}, 0.0};
    for (integer e = 0; e < layer.history().E(); ++e) {
      const auto shares = layer.history().shares(e);
      result.shares.emplace_back(shares.begin(), shares.end());
    }
    result.correction = layer.history().noise_correction();
    CHECK(layer.report().certified.score_total > 0.0);
    // What is put back replaces what was still on its way.
    forward(layer, 3, views);
    enqueue_backward(layer, views);
    layer.set_history(lrmoe::score_history());
    layer.report();
    CHECK(layer.history().empty());
    return result;
  };
  const remembered asked = run(true);
  CHECK(asked.shares.size() == 4);
  CHECK(run(false) == asked);
}

TEST_CASE("the report says whether its estimator was unbiased, and certifies accordingly",
          "[layer]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const problem p =
      random_problem(draw, {80, 6, 5, 4, 2, 0}, oracle::format::binary32, renormalised);
  const auto report = [&](const any_estimator& estimator) {
    return step_of<float>(p, reduced(0.5, estimator), {}).report;
  };
  const auto pps = report(lrmoe::pps{1});
  CHECK(pps.unbiased);
  CHECK(pps.certified.added_variance > 0.0);
  CHECK(pps.certified.bias_bound == 0.0);
  CHECK(pps.noise_ratio() > 0.0);
  const auto top = report(lrmoe::top{});
  CHECK_FALSE(top.unbiased);
  CHECK(top.certified.added_variance == 0.0);
  CHECK(top.certified.bias_bound > 0.0);
  CHECK(top.certified.score_kept >= pps.certified.score_kept);
  CHECK(top.certified.score_total == pps.certified.score_total);
  // Uniform draws pay more noise for the same number of pairs.
  CHECK(report(lrmoe::uniform{1, true}).noise_ratio() > pps.noise_ratio());
  const auto exact = report(lrmoe::exact{});
  CHECK(exact.unbiased);
  CHECK(exact.noise_ratio() == 0.0);
}
