// The layer against Hugging Face's own Qwen3-MoE and GLM-4.5 blocks: output and every gradient.
#include <cstdio>
#include <functional>

#include "layer_harness.hpp"
#include "rounding.hpp"

using namespace huggingface_test;
using fixture::array;
using lrmoe::index_type;

namespace {

/// What the library makes of a block, values in the order of block_results.
struct library_results {
  std::vector<double> logits, out, dx, weights, d_router;
  std::vector<double> d_gate_up, d_down, d_shared_gate_up, d_shared_down;
  std::vector<double> experts;
};

template <class Element>
using sigmoid = lrmoe::sigmoid_top_k<lrmoe::accumulate_t<Element>, device>;

/// Forward and exact backward; the router's projection is the caller's part, done here in double.
template <class Element, class Router>
library_results run(const stored_case& in, const hf::moe_block<Element, device>& block,
                    const Router& router) {
  using real = lrmoe::accumulate_t<Element>;
  using policies = lrmoe::policies<Router, lrmoe::keep_all, lrmoe::lrm_score, lrmoe::exact>;
  const auto [T, D, F, E, K, F_shared] = in.shape;
  const auto at = [](const std::vector<double>& values, integer i) {
    return values[static_cast<std::size_t>(i)];
  };
  const auto projection = host_values(block.router);
  library_results result;
  for (integer t = 0; t < T; ++t)
    for (integer e = 0; e < E; ++e) {
      double sum = 0.0;
      for (integer d = 0; d < D; ++d) sum += at(in.x, t * D + d) * at(projection, e * D + d);
      result.logits.push_back(sum);
    }
  const array<Element> x(in.x), d_out(in.d_out), out(T * D), dx(T * D);
  const array<real> logits(result.logits), d_logits(T * E);
  const auto zeros = [](integer n) {
    return std::vector<double>(static_cast<std::size_t>(n), 0.0);
  };
  const array<real> d_gate_up(zeros(E * D * 2 * F)), d_down(zeros(E * F * D));
  const array<real> d_shared_gate_up(zeros(D * 2 * F_shared)), d_shared_down(zeros(F_shared * D));
  lrmoe::expert_gradients<real, device> gradients;
  gradients.gate_up = d_gate_up.tensor(E, D, 2 * F);
  gradients.down = d_down.tensor(E, F, D);
  if (F_shared > 0) {
    gradients.shared_gate_up = d_shared_gate_up.tensor(1, D, 2 * F_shared);
    gradients.shared_down = d_shared_down.tensor(1, F_shared, D);
  }
  lrmoe::context<layer_test::backend> context;
  lrmoe::moe_layer<Element, layer_test::backend, policies> layer(
      context, {.D = D, .F = F, .E = E, .K = K, .F_shared = F_shared}, {.router = router});
  layer.forward(0, fixture::constant(x.matrix(T, D)),
                lrmoe::router_logits<real, device>(logits.matrix(T, E)), block.weights(),
                out.matrix(T, D));
  layer.backward(fixture::constant(d_out.matrix(T, D)), block.weights(), dx.matrix(T, D),
                 d_logits.matrix(T, E), gradients);
  CHECK(layer.report().pairs_kept == T * K);

  result.out = out.values();
  result.dx = dx.values();
  result.experts = host_values(layer.last_routing().experts);
  result.weights = host_values(layer.last_routing().weights);
  result.d_gate_up = d_gate_up.values();
  result.d_down = d_down.values();
  result.d_shared_gate_up = d_shared_gate_up.values();
  result.d_shared_down = d_shared_down.values();
  result.d_router = zeros(E * D);
  const auto of_logits = d_logits.values();
  for (integer t = 0; t < T; ++t)
    for (integer e = 0; e < E; ++e)
      for (integer d = 0; d < D; ++d) {
        const double g = at(of_logits, t * E + e);
        result.dx[static_cast<std::size_t>(t * D + d)] += g * at(projection, e * D + d);
        result.d_router[static_cast<std::size_t>(e * D + d)] += g * at(in.x, t * D + d);
      }
  return result;
}

template <class Element>
library_results run(const stored_case& in, const hf::moe_block<Element, device>& block) {
  if (!in.chosen.sigmoid)
    return run<Element>(in, block, lrmoe::softmax_top_k{.renormalise = in.chosen.renormalise});
  sigmoid<Element> router;
  router.selection_bias = block.selection_bias;
  router.groups = static_cast<index_type>(in.chosen.options.groups);
  router.groups_kept = static_cast<index_type>(in.chosen.options.groups_kept);
  router.renormalise = in.chosen.renormalise;
  router.scaling = in.chosen.options.scaling;
  return run<Element>(in, block, router);
}

/// One tensor beside Hugging Face's: their values, and the sum of both bounds as allowed deviation.
struct compared {
  std::string name;
  std::vector<double> got;
  oracle::tensor expected;

  check::comparison verdict() const { return check::compare(name, got, expected); }
  /// The largest deviation, as a share of what is allowed there and of the tensor's largest value.
  std::pair<double, double> worst() const {
    double of_allowed = 0.0, deviation = 0.0, largest = 0.0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto& [value, allowed] = expected.data[i];
      const double apart = std::abs(got[i] - value);
      if (apart > 0.0) of_allowed = std::max(of_allowed, apart / allowed);
      deviation = std::max(deviation, apart);
      largest = std::max(largest, std::abs(value));
    }
    return {of_allowed, deviation / largest};
  }
};

/// Weights (T, K) in the order of the wanted experts; NaN for an expert that was not chosen.
template <class Expert>
std::vector<double> in_order_of(const std::vector<std::int32_t>& wanted,
                                const std::vector<Expert>& experts,
                                const std::vector<double>& weights, integer K) {
  std::vector<double> result(weights.size(), std::nan(""));
  for (std::size_t p = 0; p < weights.size(); ++p) {
    const std::size_t first = p - p % static_cast<std::size_t>(K);
    for (std::size_t other = first; other < first + static_cast<std::size_t>(K); ++other)
      if (static_cast<std::int32_t>(experts[other]) == wanted[p]) result[p] = weights[other];
  }
  return result;
}

/// Hugging Face's results of a case in a precision, and how far the library's may be from them when it
/// computes in a format.
class reference {
 public:
  reference(const std::string& name, const std::string& precision, oracle::format format)
      : in(name),
        truth_(stored_results(name, precision)),
        own_(bounds_of(in, format, steps::of_the_library)),
        theirs_(bounds_of(in, truth_.format, steps::of_autograd)) {}

  const stored_case in;

  std::vector<compared> compare(const library_results& got) const {
    const auto K = in.shape.K;
    std::vector<compared> result;
    const auto add = [&](const char* name, const std::vector<double>& values,
                         const std::vector<double>& expected, oracle::tensor bounds::*member) {
      compared one{name, values, own_.*member};
      const oracle::tensor& their_bound = theirs_.*member;
      for (std::size_t i = 0; i < one.expected.data.size(); ++i) {
        one.expected.data[i].value = expected.at(i);
        one.expected.data[i].error += their_bound.data.at(i).error;
      }
      result.push_back(std::move(one));
    };
    add("logits", got.logits, truth_.logits, &bounds::logits);
    add("weights", in_order_of(own_.experts, got.experts, got.weights, K),
        in_order_of(own_.experts, truth_.experts, truth_.weights, K), &bounds::weights);
    add("out", got.out, truth_.out, &bounds::out);
    add("dx", got.dx, truth_.dx, &bounds::dx);
    add("d_router", got.d_router, truth_.d_router, &bounds::d_router);
    add("d_gate_up", got.d_gate_up, truth_.d_gate_up, &bounds::d_gate_up);
    add("d_down", got.d_down, truth_.d_down, &bounds::d_down);
    if (in.shape.F_shared > 0) {
      add("d_shared_gate_up", got.d_shared_gate_up, truth_.d_shared_gate_up,
          &bounds::d_shared_gate_up);
      add("d_shared_down", got.d_shared_down, truth_.d_shared_down, &bounds::d_shared_down);
    }
    return result;
  }

  /// Names of the tensors that deviate.
  std::string deviating(const library_results& got) const {
    std::string result;
    for (const auto& one : compare(got))
      if (!one.verdict().passed) result += one.name + " ";
    return result;
  }

 private:
  block_results truth_;
  bounds own_, theirs_;
};

template <class Element>
std::vector<compared> parity(const std::string& name, const std::string& precision) {
  const reference to(name, precision, fixture::format_of<Element>());
  return to.compare(run(to.in, to.in.block<Element>()));
}

// Products in double are the host's alone.
using widest = std::conditional_t<fixture::on_host, double, float>;
using block_views = hf::moe_block<widest, device>;
constexpr oracle::format widest_format = fixture::format_of<widest>();

/// The same storage read with other indices.
lrmoe::tensor_view<widest, device> rearranged(
    const lrmoe::tensor_view<widest, device>& from,
    const std::function<std::size_t(std::size_t, std::size_t, std::size_t)>& source) {
  const lrmoe::tensor_view<widest, device> to("lrmoe_test::rearranged", from.extent(0),
                                              from.extent(1), from.extent(2));
  const auto host_from = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), from);
  const auto host_to = Kokkos::create_mirror_view(Kokkos::HostSpace(), to);
  for (std::size_t e = 0; e < to.extent(0); ++e)
    for (std::size_t r = 0; r < to.extent(1); ++r)
      for (std::size_t c = 0; c < to.extent(2); ++c)
        host_to(e, r, c) = host_from.data()[source(e, r, c)];
  Kokkos::deep_copy(to, host_to);
  return to;
}

}  // namespace

TEST_CASE("the layer computes Hugging Face's output, input gradient and weight gradients",
          "[huggingface]") {
  const std::string name = GENERATE(from_range(case_names));
  const stored_case in(name);
  CHECK(in.shape.E == 8);
  CHECK(in.shape.K == 2);
  CHECK(in.shape.D == 64);
  CHECK(in.shape.F == 32);
  CHECK((in.shape.F_shared > 0) == in.chosen.sigmoid);
  const auto check_all = [&](const char* what, const std::vector<compared>& all) {
    INFO(name << ", " << what);
    CHECK(all.size() == (in.chosen.sigmoid ? 9u : 7u));
    for (const auto& one : all) {
      const auto verdict = one.verdict();
      INFO(verdict.message);
      CHECK(verdict.passed);
    }
  };
  if constexpr (fixture::on_host) check_all("double against float64", parity<double>(name, "f64"));
  check_all("float against float32", parity<float>(name, "f32"));
  check_all("float against float64", parity<float>(name, "f64"));
  check_all("bfloat16 against float64", parity<lrmoe::bfloat16>(name, "f64"));
}

TEST_CASE("Hugging Face's own float32 results lie within their bounds of its float64 results",
          "[huggingface]") {
  const std::string name = GENERATE(from_range(case_names));
  const stored_case in(name);
  const auto narrow = stored_results(name, "f32"), wide = stored_results(name, "f64");
  const auto bound = bounds_of(in, narrow.format, steps::of_autograd);
  const auto check_one = [&](const char* what, const std::vector<double>& a,
                             const std::vector<double>& b, oracle::tensor allowed) {
    INFO(name);
    for (std::size_t i = 0; i < allowed.data.size(); ++i) allowed.data[i].value = b.at(i);
    check::check_close(what, a, allowed);
  };
  check_one("out", narrow.out, wide.out, bound.out);
  check_one("dx", narrow.dx, wide.dx, bound.dx);
  check_one("d_router", narrow.d_router, wide.d_router, bound.d_router);
  check_one("d_gate_up", narrow.d_gate_up, wide.d_gate_up, bound.d_gate_up);
  check_one("d_down", narrow.d_down, wide.d_down, bound.d_down);
  CHECK(narrow.experts == wide.experts);
}

TEST_CASE("weights in another layout than Hugging Face's are noticed", "[huggingface]") {
  using fixture::names;
  const std::string name = GENERATE(from_range(case_names));
  INFO(name);
  const reference to(name, "f64", widest_format);
  const auto D = static_cast<std::size_t>(to.in.shape.D),
             F = static_cast<std::size_t>(to.in.shape.F);
  const auto E = static_cast<std::size_t>(to.in.shape.E);
  const auto deviating = [&](const std::function<void(block_views&)>& fault) {
    auto block = to.in.block<widest>();
    fault(block);
    return to.deviating(run(to.in, block));
  };
  CHECK(deviating([](block_views&) {}).empty());
  const std::string swapped = deviating([&](block_views& block) {
    block.gate_up = rearranged(block.gate_up, [=](std::size_t e, std::size_t d, std::size_t c) {
      return (e * D + d) * 2 * F + (c + F) % (2 * F);
    });
  });
  CHECK(names(swapped, {"out", "dx", "d_router", "d_gate_up", "d_down"}));
  // (2F, D) and (D, F) as they are in the file, not transposed.
  const std::string gate_up = deviating([&](block_views& block) {
    block.gate_up = rearranged(block.gate_up, [=](std::size_t e, std::size_t d, std::size_t c) {
      const std::size_t flat = d * 2 * F + c;
      return e * D * 2 * F + (flat % D) * 2 * F + flat / D;
    });
  });
  CHECK(names(gate_up, {"out", "dx", "d_router", "d_gate_up", "d_down"}));
  const std::string down = deviating([&](block_views& block) {
    block.down = rearranged(block.down, [=](std::size_t e, std::size_t f, std::size_t d) {
      const std::size_t flat = f * D + d;
      return e * F * D + (flat % F) * D + flat / F;
    });
  });
  CHECK(names(down, {"out", "dx", "d_router", "d_gate_up"}));
  const std::string experts = deviating([&](block_views& block) {
    block.down = rearranged(block.down, [=](std::size_t e, std::size_t f, std::size_t d) {
      return ((e + 1) % E) * F * D + f * D + d;
    });
  });
  CHECK(names(experts, {"out", "dx", "d_router", "d_gate_up"}));
  const std::string one_weight = deviating([&](block_views& block) {
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), block.down);
    const auto off = static_cast<widest>(0x1p20 * oracle::unit_roundoff(widest_format));
    for (std::size_t e = 0; e < E; ++e) host(e, 0, 0) *= 1 + off;
    Kokkos::deep_copy(block.down, host);
  });
  CHECK(names(one_weight, {"out"}));
}

TEST_CASE("router settings other than the block's are noticed", "[huggingface]") {
  const std::string name = GENERATE(from_range(case_names));
  INFO(name);
  const reference to(name, "f64", widest_format);
  const auto is_noticed = [&](const std::function<void(settings&)>& change) {
    stored_case other = to.in;
    change(other.chosen);
    const auto deviating = to.deviating(run(other, other.block<widest>()));
    return deviating.find("out") != std::string::npos;
  };
  CHECK_FALSE(is_noticed([](settings&) {}));
  CHECK(is_noticed([](settings& of) { of.renormalise = !of.renormalise; }));
  if (!to.in.chosen.sigmoid) return;
  CHECK(is_noticed([](settings& of) { of.options.scaling = 1.0; }));
  CHECK(is_noticed([](settings& of) {
    of.options.groups = of.options.groups == 1 ? 4 : 1;
    of.options.groups_kept = 1;
  }));
  auto unbiased = to.in.block<widest>();
  unbiased.selection_bias = {};
  CHECK(to.deviating(run(to.in, unbiased)).find("out") != std::string::npos);
}

/// What docs/huggingface.md quotes.
TEST_CASE("print the largest deviations from Hugging Face's results", "[.table]") {
  const auto print = [](const char* what, const auto& of) {
    for (const auto& name : case_names)
      for (const auto& one : of(name)) {
        const auto [of_allowed, of_largest] = one.worst();
        std::printf("%s %s %s: %.4f of what is allowed, %.1e of the largest value\n", what,
                    name.c_str(), one.name.c_str(), of_allowed, of_largest);
        CHECK(of_allowed <= 1.0);
      }
  };
  if constexpr (fixture::on_host)
    print("double/float64", [](const std::string& name) { return parity<double>(name, "f64"); });
  print("float/float32", [](const std::string& name) { return parity<float>(name, "f32"); });
  print("float/float64", [](const std::string& name) { return parity<float>(name, "f64"); });
  print("bfloat16/float64",
        [](const std::string& name) { return parity<lrmoe::bfloat16>(name, "f64"); });
}
