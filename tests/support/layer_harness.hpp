// One MoE layer with random inputs beside its oracle: runs steps on poisoned outputs, reads back
// which pairs were kept and with which weight, and compares every tensor.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <lrmoe/lrmoe.hpp>
#if LRMOE_HAS_CUDA_BACKEND
#include <lrmoe/cuda/backend.hpp>
#else
#include <lrmoe/openmp/backend.hpp>
#endif

#include "catch.hpp"
#include "fixture.hpp"

namespace layer_test {

using fixture::array;
using fixture::device;
using fixture::space_type;
using lrmoe::index_type;
using oracle::integer;

#if LRMOE_HAS_CUDA_BACKEND
using backend = lrmoe::cuda::backend<>;
#else
using backend = lrmoe::openmp::backend<>;
#endif
using any_estimator = lrmoe::any_estimator<lrmoe::pps, lrmoe::top, lrmoe::top_plus_sampled,
                                           lrmoe::uniform, lrmoe::exact>;

template <class Router>
using policies_of =
    lrmoe::policies<Router, lrmoe::fixed_fraction, lrmoe::any_scorer, any_estimator>;

/// Inputs of one call: expert weights and routing in the oracle's layer, logits where the router
/// starts from them.
struct problem {
  oracle::layer in;
  std::vector<double> logits;         // (T, E) or empty for given routing
  std::vector<std::uint8_t> padding;  // (T) or empty
  oracle::routing routed;             // by the oracle's router
  std::vector<double> d_out;          // (T, D)
  std::vector<double> gate_up_before, down_before, shared_gate_up_before, shared_down_before;
};

enum class routing_kind { softmax, softmax_renormalised, sigmoid, given };

inline constexpr double sigmoid_scaling = 1.75;

inline oracle::sigmoid_options sigmoid_options_for(integer E) {
  oracle::sigmoid_options options;
  options.scaling = sigmoid_scaling;
  if (E % 4 == 0 && E > 4) options.groups = 4, options.groups_kept = 3;
  return options;
}

/// Route with the oracle; tokens marked as padding choose nothing.
inline void route(problem& p, routing_kind kind) {
  const auto& shape = p.in.shape;
  if (kind == routing_kind::given) return;
  std::vector<double> logits = p.logits;
  for (integer t = 0; t < shape.T; ++t)
    if (!p.padding.empty() && p.padding[static_cast<std::size_t>(t)] != 0)
      std::fill_n(logits.begin() + t * shape.E, shape.E, 0.0);
  p.routed = kind == routing_kind::sigmoid
                 ? oracle::sigmoid_top_k(p.in.rules, logits, {}, shape.T, shape.E, shape.K,
                                         sigmoid_options_for(shape.E))
                 : oracle::softmax_top_k(p.in.rules, logits, shape.T, shape.E, shape.K,
                                         kind == routing_kind::softmax_renormalised);
  for (integer t = 0; t < shape.T; ++t)
    if (!p.padding.empty() && p.padding[static_cast<std::size_t>(t)] != 0) {
      std::fill_n(p.routed.experts.begin() + t * shape.K, shape.K, oracle::no_expert);
      std::fill_n(p.routed.weights.begin() + t * shape.K, shape.K, oracle::number{});
      for (integer e = 0; e < shape.E; ++e) p.routed.probabilities(t, e) = {};
    }
  p.in.experts = p.routed.experts;
  p.in.weights = p.routed.weights;
}

inline problem random_problem(fixture::random& draw, const oracle::extents& shape,
                              oracle::format format, routing_kind kind) {
  problem p;
  p.in = fixture::random_layer(draw, shape, format);
  const auto accumulation = p.in.rules.accumulation();
  // Distinct places with gaps: no rounding can change which experts are chosen.
  for (integer t = 0; kind != routing_kind::given && t < shape.T; ++t)
    for (const auto place : draw.routes(1, shape.E, shape.E))
      p.logits.push_back(oracle::round_to(
          accumulation,
          4.0 * (place + draw.uniform(0.1, 0.4)) / static_cast<double>(shape.E) - 2.0));
  route(p, kind);
  p.d_out = draw.normal(shape.T * shape.D, 1.0, format);
  p.gate_up_before = draw.normal(static_cast<integer>(p.in.gate_up.size()), 1.0, accumulation);
  p.down_before = draw.normal(static_cast<integer>(p.in.down.size()), 1.0, accumulation);
  p.shared_gate_up_before =
      draw.normal(static_cast<integer>(p.in.shared_gate_up.size()), 1.0, accumulation);
  p.shared_down_before =
      draw.normal(static_cast<integer>(p.in.shared_down.size()), 1.0, accumulation);
  return p;
}

/// The same problem with gradients that start at zero.
inline problem from_zero(problem p) {
  for (auto* before :
       {&p.gate_up_before, &p.down_before, &p.shared_gate_up_before, &p.shared_down_before})
    std::fill(before->begin(), before->end(), 0.0);
  return p;
}

/// Views of a problem and poisoned outputs, in the element type.
template <class Element>
struct call {
  using real = lrmoe::accumulate_t<Element>;
  oracle::extents shape;
  array<Element> x, gate_up, down, shared_gate_up, shared_down, d_out;
  array<real> logits, given_weights;
  array<std::uint8_t> padding;
  array<index_type> given_experts;
  array<Element> out, dx;
  array<real> d_logits, d_given;
  array<real> d_gate_up, d_down, d_shared_gate_up, d_shared_down;

  explicit call(const problem& p, std::size_t misaligned_by = 0)
      : shape(p.in.shape),
        x(p.in.x, misaligned_by),
        gate_up(p.in.gate_up, misaligned_by),
        down(p.in.down, misaligned_by),
        shared_gate_up(p.in.shared_gate_up, misaligned_by),
        shared_down(p.in.shared_down, misaligned_by),
        d_out(p.d_out, misaligned_by),
        logits(p.logits, misaligned_by),
        given_weights(weights_of(p), misaligned_by),
        padding(p.padding),
        given_experts(p.in.experts, misaligned_by),
        out(shape.T * shape.D, misaligned_by),
        dx(shape.T * shape.D, misaligned_by),
        d_logits(shape.T * shape.E, misaligned_by),
        d_given(shape.T * shape.K, misaligned_by),
        d_gate_up(p.gate_up_before, misaligned_by),
        d_down(p.down_before, misaligned_by),
        d_shared_gate_up(p.shared_gate_up_before, misaligned_by),
        d_shared_down(p.shared_down_before, misaligned_by) {}

  lrmoe::expert_weights<Element, device> weights() const {
    lrmoe::expert_weights<Element, device> views;
    const auto& s = shape;
    views.gate_up = gate_up.tensor(s.E, s.D, 2 * s.F);
    views.down = down.tensor(s.E, s.F, s.D);
    if (s.F_shared > 0) {
      views.shared_gate_up = shared_gate_up.tensor(1, s.D, 2 * s.F_shared);
      views.shared_down = shared_down.tensor(1, s.F_shared, s.D);
    }
    return views;
  }
  lrmoe::expert_gradients<real, device> gradients() const {
    lrmoe::expert_gradients<real, device> views;
    const auto& s = shape;
    views.gate_up = d_gate_up.tensor(s.E, s.D, 2 * s.F);
    views.down = d_down.tensor(s.E, s.F, s.D);
    if (s.F_shared > 0) {
      views.shared_gate_up = d_shared_gate_up.tensor(1, s.D, 2 * s.F_shared);
      views.shared_down = d_shared_down.tensor(1, s.F_shared, s.D);
    }
    return views;
  }
  template <class Router>
  auto router_input() const {
    if constexpr (std::is_same_v<Router, lrmoe::given_routing>) {
      return lrmoe::routed_pairs<real, device>{given_experts.matrix(shape.T, shape.K),
                                               given_weights.matrix(shape.T, shape.K)};
    } else {
      return lrmoe::router_logits<real, device>(logits.matrix(shape.T, shape.E), padding.vector());
    }
  }
  template <class Router>
  lrmoe::matrix_view<real, device> router_gradient() const {
    if constexpr (std::is_same_v<Router, lrmoe::given_routing>)
      return d_given.matrix(shape.T, shape.K);
    else
      return d_logits.matrix(shape.T, shape.E);
  }
  lrmoe::matrix_view<const Element, device> x_view() const { return x.matrix(shape.T, shape.D); }
  lrmoe::matrix_view<const Element, device> d_out_view() const {
    return d_out.matrix(shape.T, shape.D);
  }
  lrmoe::matrix_view<Element, device> out_view() const { return out.matrix(shape.T, shape.D); }
  lrmoe::matrix_view<Element, device> dx_view() const { return dx.matrix(shape.T, shape.D); }

  bool guards_intact() const {
    return out.guards_intact() && dx.guards_intact() && d_logits.guards_intact() &&
           d_given.guards_intact() && d_gate_up.guards_intact() && d_down.guards_intact() &&
           d_shared_gate_up.guards_intact() && d_shared_down.guards_intact();
  }
  /// NaN in every gradient.
  void poison_gradients() {
    d_gate_up.poison(), d_down.poison(), d_shared_gate_up.poison(), d_shared_down.poison();
  }
  /// Numbers of every gradient, one behind the other.
  std::vector<double> gradient_values() const {
    std::vector<double> all;
    for (const array<real>* each : {&d_gate_up, &d_down, &d_shared_gate_up, &d_shared_down}) {
      const std::vector<double> values = each->values();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
  /// Bits of every result.
  std::vector<fixture::byte_string> bits() const {
    return {out.bits(),       dx.bits(),     d_logits.bits(),         d_given.bits(),
            d_gate_up.bits(), d_down.bits(), d_shared_gate_up.bits(), d_shared_down.bits()};
  }

 private:
  static std::vector<double> weights_of(const problem& p) {
    std::vector<double> values;
    for (const auto& w : p.in.weights) values.push_back(w.value);
    return values;
  }
};

template <class Policies, class Element>
using layer_of = lrmoe::moe_layer<Element, backend, Policies>;

inline lrmoe::layer_shape shape_of(const oracle::extents& e) {
  return {e.D, e.F, e.E, e.K, e.F_shared};
}

template <class Element, class Policies>
void forward(layer_of<Policies, Element>& layer, std::uint64_t step, const call<Element>& views) {
  layer.forward(step, views.x_view(), views.template router_input<typename Policies::router_type>(),
                views.weights(), views.out_view());
}
template <class Element, class Policies>
void enqueue_backward(layer_of<Policies, Element>& layer, const call<Element>& views,
                      lrmoe::gradient_update update = lrmoe::gradient_update::add) {
  layer.backward(views.d_out_view(), views.weights(), views.dx_view(),
                 views.template router_gradient<typename Policies::router_type>(),
                 views.gradients(), update);
}
template <class Element, class Policies>
lrmoe::backward_report backward(layer_of<Policies, Element>& layer, const call<Element>& views,
                                lrmoe::gradient_update update = lrmoe::gradient_update::add) {
  enqueue_backward(layer, views, update);
  return layer.report();
}

/// Estimator weight of every pair as the layer's last selection has it, zero for dropped pairs.
template <class Layer>
std::vector<double> coefficients(const Layer& layer, integer P) {
  std::vector<double> c(static_cast<std::size_t>(P), 0.0);
  const auto pair_of_row = fixture::host_copy(layer.last_order().pair_of_row);
  const auto rows = fixture::host_copy(layer.last_selection().rows);
  const auto factors = fixture::host_copy(layer.last_selection().factors);
  const auto M = static_cast<std::size_t>(layer.last_plan().pairs_kept());
  for (std::size_t m = 0; m < M; ++m)
    c[static_cast<std::size_t>(pair_of_row[static_cast<std::size_t>(rows[m])])] =
        static_cast<double>(factors[m]);
  return c;
}

/// Compare all results of a step with the oracle, given the coefficients of the kept pairs.
template <class Element>
void check_step(const problem& p, const call<Element>& views, const std::vector<double>& c,
                routing_kind kind) {
  const auto& rules = p.in.rules;
  const auto at = oracle::forward(p.in);
  check::check_close("out", views.out.values(), at.out);
  const auto exact = oracle::backward(p.in, at, p.d_out, c);
  check::check_close("dx", views.dx.values(), exact.dx);
  check::check_close("d_gate_up", views.d_gate_up.values(),
                     oracle::accumulated(rules, exact.gate_up, p.gate_up_before));
  check::check_close("d_down", views.d_down.values(),
                     oracle::accumulated(rules, exact.down, p.down_before));
  check::check_close("d_shared_gate_up", views.d_shared_gate_up.values(),
                     oracle::accumulated(rules, exact.shared_gate_up, p.shared_gate_up_before));
  check::check_close("d_shared_down", views.d_shared_down.values(),
                     oracle::accumulated(rules, exact.shared_down, p.shared_down_before));
  switch (kind) {
    case routing_kind::given:
      check::check_close("d_given", views.d_given.values(), exact.d_weights);
      break;
    case routing_kind::sigmoid:
      check::check_close("d_logits", views.d_logits.values(),
                         oracle::sigmoid_top_k_backward(rules, p.routed, exact.d_weights,
                                                        sigmoid_options_for(p.in.shape.E)));
      break;
    default:
      check::check_close(
          "d_logits", views.d_logits.values(),
          oracle::softmax_top_k_backward(rules, p.routed, exact.d_weights,
                                         kind == routing_kind::softmax_renormalised));
  }
  CHECK(views.guards_intact());
}

/// The routers of the library for a problem of this kind.
template <class Router>
Router router_for(routing_kind kind, integer E) {
  Router router{};
  if constexpr (std::is_same_v<Router, lrmoe::softmax_top_k>) {
    router.renormalise = kind == routing_kind::softmax_renormalised;
  } else if constexpr (!std::is_same_v<Router, lrmoe::given_routing>) {
    const auto options = sigmoid_options_for(E);
    router.groups = static_cast<index_type>(options.groups);
    router.groups_kept = static_cast<index_type>(options.groups_kept);
    router.scaling = options.scaling;
  }
  return router;
}

}  // namespace layer_test
