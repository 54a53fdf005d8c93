// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <lrmoe/exchange/any_communicator.hpp>
#include <lrmoe/exchange/logical.hpp>
#include <lrmoe/layer.hpp>
#include <lrmoe/placement/any_planner.hpp>
#include <lrmoe/placement/ultraep.hpp>
#include <lrmoe/quota/fixed_fraction.hpp>
#include <lrmoe/routing/given_routing.hpp>
#include <lrmoe/routing/sigmoid_top_k.hpp>
#include <lrmoe/routing/softmax_top_k.hpp>

#include "layer_results.hpp"

namespace bench::compare {

/// A host array as a backend sees it: the array itself where the backend may read host memory, or a copy in
/// the backend's memory, which pull() brings back.
template <class T, class Device>
class mirrored {
  using memory_space = typename Device::memory_space;
  static constexpr bool in_place =
      Kokkos::SpaceAccessibility<Kokkos::HostSpace, memory_space>::accessible;
  using plain = std::remove_const_t<T>;
  using host_view =
      Kokkos::View<T*, Kokkos::LayoutRight, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>;

 public:
  mirrored(T* host, std::int64_t size) : host_(host), size_(static_cast<std::size_t>(size)) {
    if constexpr (!in_place) {
      copy_ = Kokkos::View<plain*, Kokkos::LayoutRight, Device>(
          Kokkos::view_alloc(Kokkos::WithoutInitializing, "compare::mirrored"), size_);
      if (size_ > 0) Kokkos::deep_copy(copy_, host_view(host_, size_));
    }
  }
  template <class Vector>
  explicit mirrored(Vector& host) : mirrored(host.data(), static_cast<std::int64_t>(host.size())) {}

  T* data() const {
    if constexpr (in_place)
      return host_;
    else
      return copy_.data();
  }
  /// Send the host's values again.
  void push() const {
    if constexpr (!in_place) {
      if (size_ > 0) Kokkos::deep_copy(copy_, host_view(host_, size_));
    }
  }
  void pull() const {
    if constexpr (!in_place) {
      if (size_ > 0) Kokkos::deep_copy(host_view(host_, size_), copy_);
    }
  }
  lrmoe::vector_view<T, Device> vector() const {
    return lrmoe::vector_view<T, Device>(data(), size_);
  }
  lrmoe::matrix_view<T, Device> matrix(std::int64_t rows, std::int64_t columns) const {
    return lrmoe::matrix_view<T, Device>(data(), static_cast<std::size_t>(rows),
                                         static_cast<std::size_t>(columns));
  }
  lrmoe::tensor_view<T, Device> tensor(std::int64_t planes, std::int64_t rows,
                                       std::int64_t columns) const {
    return lrmoe::tensor_view<T, Device>(data(), static_cast<std::size_t>(planes),
                                         static_cast<std::size_t>(rows),
                                         static_cast<std::size_t>(columns));
  }

 private:
  T* host_;
  std::size_t size_;
  Kokkos::View<plain*, Kokkos::LayoutRight, Device> copy_;
};

/// The first `size` elements of a contiguous device view, on the host.
template <class View>
std::vector<typename View::non_const_value_type> host_values(const View& view, std::size_t size) {
  using value_type = typename View::non_const_value_type;
  std::vector<value_type> values(size);
  if (size == 0) return values;
  Kokkos::View<value_type*, Kokkos::LayoutRight, Kokkos::HostSpace, Kokkos::MemoryUnmanaged> to(
      values.data(), size);
  Kokkos::deep_copy(to,
                    Kokkos::View<const value_type*, Kokkos::LayoutRight, typename View::device_type,
                                 Kokkos::MemoryUnmanaged>(view.data(), size));
  return values;
}

/// The routers that start from logits, chosen at run time.
template <class Accumulate, class Device>
struct logits_router {
  using sigmoid = lrmoe::sigmoid_top_k<Accumulate, Device>;
  std::variant<lrmoe::softmax_top_k, sigmoid> chosen;

  template <class, class>
  using input = lrmoe::router_logits<Accumulate, Device>;
  template <class, class>
  using gradient = lrmoe::matrix_view<Accumulate, Device>;
  static std::int64_t gradient_columns(std::int64_t E, std::int64_t /*K*/) { return E; }

  void validate(std::int64_t E, std::int64_t K) const {
    std::visit([&](const auto& r) { r.validate(E, K); }, chosen);
  }
  template <class Space, class Input, class Routing>
  void route(const Space& space, const Input& from, const Routing& to) const {
    std::visit([&](const auto& r) { r.route(space, from, to); }, chosen);
  }
  template <class Space, class Input, class Routing, class Weights, class Gradient>
  void backward(const Space& space, const Input& from, const Routing& routed,
                const Weights& d_weights, const Gradient& d_logits) const {
    std::visit([&](const auto& r) { r.backward(space, from, routed, d_weights, d_logits); },
               chosen);
  }
};

/// The library's layer on one backend.
template <class Element, class Backend>
class layer_candidate final : public candidate<Element> {
 public:
  explicit layer_candidate(std::string name) : name_(std::move(name)) {}

  std::string name() const override { return name_; }

  layer_results<Element> run(const layer_inputs<Element>& in) const override {
    layer_results<Element> results = empty_results(in);
    const bool given = in.of.router == router_kind::given;
    const auto start = std::chrono::steady_clock::now();
    const auto one_rank = [&](communicator ranks) {
      if (given)
        run_rank<lrmoe::given_routing>(std::move(ranks), in, results);
      else
        run_rank<logits_router<real, device>>(std::move(ranks), in, results);
    };
    if (in.of.R == 1) {
      one_rank(communicator(lrmoe::single_rank{}));
    } else {
      lrmoe::logical::world world(static_cast<int>(in.of.R));
      world.run(
          [&](lrmoe::logical::communicator& ranks) { one_rank(communicator(std::move(ranks))); });
    }
    results.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return results;
  }

  drawn select(const any_estimator& estimator, const std::vector<index_type>& offsets,
               const std::vector<index_type>& kept_offsets, const std::vector<float>& sizes,
               const lrmoe::draw_key& key) const override {
    const typename Backend::execution_space space{};
    drawn kept;
    const auto M = static_cast<std::size_t>(kept_offsets.back());
    kept.rows.assign(M, -1);
    kept.factors.assign(M, 0.0F);
    kept.inclusion.assign(sizes.size(), -1.0F);
    const mirrored<const index_type, device> rows_of(offsets), kept_of(kept_offsets);
    const mirrored<const float, device> from(sizes);
    const mirrored<index_type, device> rows(kept.rows);
    const mirrored<float, device> factors(kept.factors), inclusion(kept.inclusion);
    estimator.select(space, lrmoe::segments<device>{rows_of.vector(), kept_of.vector()},
                     from.vector(), key,
                     lrmoe::selection<device>{rows.vector(), factors.vector(), inclusion.vector()});
    space.fence("compare::select");
    rows.pull(), factors.pull(), inclusion.pull();
    return kept;
  }

 private:
  using device = typename Backend::device_type;
  using real = lrmoe::accumulate_t<Element>;
  using communicator = lrmoe::any_communicator<lrmoe::single_rank, lrmoe::logical::communicator>;
  using ranked_backend = lrmoe::with_ranks<Backend, communicator>;
  using planner = lrmoe::any_planner<lrmoe::static_ownership, lrmoe::ultraep>;
  template <class Router>
  using policies_of =
      lrmoe::policies<Router, lrmoe::fixed_fraction, lrmoe::lrm_score, any_estimator, planner>;

  static layer_results<Element> empty_results(const layer_inputs<Element>& in) {
    const auto& [D, F, E, K, F_shared] = in.of.shape;
    layer_results<Element> results;
    const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
    const auto poison = element_of<Element>(std::nan(""));
    const auto T = in.of.T;
    results.out.assign(size(T * D), poison);
    results.dx.assign(size(T * D), poison);
    results.d_router.assign(size(T * (in.of.router == router_kind::given ? K : E)),
                            static_cast<real>(std::nan("")));
    const auto fill = [&](std::vector<real>& gradient, tensor_id id, std::int64_t count) {
      gradient.resize(size(count));
#pragma omp parallel for if (count > 65536)
      for (std::int64_t i = 0; i < count; ++i) gradient[size(i)] = in.before(id, i);
    };
    fill(results.d_gate_up, tensor_id::before_gate_up, E * D * 2 * F);
    fill(results.d_down, tensor_id::before_down, E * F * D);
    fill(results.d_shared_gate_up, tensor_id::before_shared_gate_up, D * 2 * F_shared);
    fill(results.d_shared_down, tensor_id::before_shared_down, F_shared * D);
    results.experts.assign(size(T * K), lrmoe::no_expert);
    results.weights.assign(size(T * K), real(0));
    results.factors.assign(size(T * K), 0.0F);
    results.selections.resize(size(in.of.R));
    results.plans.resize(size(in.of.R));
    return results;
  }

  template <class Router>
  static policies_of<Router> policies_for(const layer_inputs<Element>& in,
                                          const mirrored<const real, device>& bias) {
    policies_of<Router> policies;
    if constexpr (!std::is_same_v<Router, lrmoe::given_routing>) {
      if (in.of.router == router_kind::sigmoid) {
        policies.router.chosen =
            lrmoe::sigmoid_top_k<real, device>{.selection_bias = bias.vector(),
                                               .groups = in.of.groups(),
                                               .groups_kept = in.of.groups_kept(),
                                               .renormalise = true,
                                               .scaling = in.of.scaling};
      } else {
        policies.router.chosen =
            lrmoe::softmax_top_k{.renormalise = in.of.router == router_kind::softmax};
      }
    }
    policies.quota.keep = in.of.keep;
    policies.estimator = estimator_for(in.of, in.seed);
    if (in.of.replicas) policies.planner = lrmoe::ultraep{};
    policies.saved = in.of.saved;
    return policies;
  }

  template <class Router>
  void run_rank(communicator joined, const layer_inputs<Element>& in,
                layer_results<Element>& results) const {
    const auto& [D, F, E, K, F_shared] = in.of.shape;
    const std::int64_t R = in.of.R, rank = joined.rank();
    const std::int64_t first = first_token(in.of, rank), T = first_token(in.of, rank + 1) - first;
    const auto at = [&](auto& values, std::int64_t columns) {
      return values.data() + first * columns;
    };
    lrmoe::context<ranked_backend> context(std::move(joined));

    const mirrored<const Element, device> x(at(in.x, D), T * D), d_out(at(in.d_out, D), T * D);
    const mirrored<const Element, device> shared_gate_up(in.shared_gate_up),
        shared_down(in.shared_down);
    const bool given = in.of.router == router_kind::given;
    const mirrored<const real, device> logits(given ? nullptr : at(in.logits, E),
                                              given ? 0 : T * E);
    const mirrored<const index_type, device> experts(given ? at(in.experts, K) : nullptr,
                                                     given ? T * K : 0);
    const mirrored<const real, device> given_weights(given ? at(in.weights, K) : nullptr,
                                                     given ? T * K : 0);
    const mirrored<const real, device> bias(in.selection_bias);
    const auto columns = given ? K : E;
    const mirrored<Element, device> out(at(results.out, D), T * D), dx(at(results.dx, D), T * D);
    const mirrored<real, device> d_router(at(results.d_router, columns), T * columns);

    lrmoe::moe_layer<Element, ranked_backend, policies_of<Router>> layer(
        context, in.of.shape, policies_for<Router>(in, bias), call_layer);
    slots own(in, results, rank, layer);

    const std::int64_t shared = F_shared > 0 ? 1 : 0;
    lrmoe::expert_weights<Element, device> weights;
    weights.gate_up = own.gate_up->tensor(own.S, D, 2 * F);
    weights.down = own.down->tensor(own.S, F, D);
    weights.shared_gate_up = shared_gate_up.tensor(shared, D, 2 * F_shared);
    weights.shared_down = shared_down.tensor(shared, F_shared, D);
    // Each rank adds up the shared expert's gradient of its own tokens.
    std::vector<real> own_shared_gate_up, own_shared_down;
    if (R > 1) {
      own_shared_gate_up.assign(results.d_shared_gate_up.size(), real(0));
      own_shared_down.assign(results.d_shared_down.size(), real(0));
    }
    const mirrored<real, device> d_shared_gate_up(R > 1 ? own_shared_gate_up
                                                        : results.d_shared_gate_up),
        d_shared_down(R > 1 ? own_shared_down : results.d_shared_down);
    lrmoe::expert_gradients<real, device> gradients;
    gradients.gate_up = own.d_gate_up->tensor(own.S, D, 2 * F);
    gradients.down = own.d_down->tensor(own.S, F, D);
    gradients.shared_gate_up = d_shared_gate_up.tensor(shared, D, 2 * F_shared);
    gradients.shared_down = d_shared_down.tensor(shared, F_shared, D);

    const auto input = [&] {
      if constexpr (std::is_same_v<Router, lrmoe::given_routing>)
        return lrmoe::routed_pairs<real, device>{experts.matrix(T, K), given_weights.matrix(T, K)};
      else
        return lrmoe::router_logits<real, device>(logits.matrix(T, E));
    }();
    layer.forward(call_step, x.matrix(T, D), input, weights, out.matrix(T, D));
    // The sizes that a draw in forward saw; backward's are the ones that its certificates see.
    std::vector<float> sizes_in_forward;
    if (in.of.saved == lrmoe::saved_activations::proxy && !keeps_all(in))
      sizes_in_forward = sizes_of(context, layer.last_order().pair_of_row.extent(0));
    // Nothing may be left in scratch that backward relies on.
    context.scratch.fill_bytes(context.space, 0xff);
    layer.backward(d_out.matrix(T, D), weights, dx.matrix(T, D), d_router.matrix(T, columns),
                   gradients);
    context.space.fence("compare::run_rank");
    for (const auto* tensor : {&out, &dx}) tensor->pull();
    for (const auto* tensor : {&d_router, &d_shared_gate_up, &d_shared_down}) tensor->pull();
    const auto add = [](const std::vector<real>& part, std::vector<real>& sum) {
      for (std::size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
    };
    add(own_shared_gate_up, results.d_shared_gate_up);
    add(own_shared_down, results.d_shared_down);
    own.add_gradients(results, layer.last_placement());

    const auto routed = host_values(layer.last_routing().experts, static_cast<std::size_t>(T * K));
    std::copy(routed.begin(), routed.end(), results.experts.begin() + first * K);
    const auto found = host_values(layer.last_routing().weights, static_cast<std::size_t>(T * K));
    std::copy(found.begin(), found.end(), results.weights.begin() + first * K);
    auto& plans = results.plans[static_cast<std::size_t>(rank)];
    plans = {layer.last_plan(), layer.last_replica_plan(), {}};
    plans.expert_of_slot.assign(layer.last_placement().expert_of_slot().begin(),
                                layer.last_placement().expert_of_slot().end());
    for (const auto& move : plans.replicas.moves)
      if (move.source == rank) results.pairs_moved += move.count;
    results.selections[static_cast<std::size_t>(rank)] =
        selection_of(layer, plans.replicas, rank, first * K);
    auto& kept = results.selections[static_cast<std::size_t>(rank)];
    if (!keeps_all(in))
      kept.sizes = in.of.saved == lrmoe::saved_activations::proxy
                       ? sizes_in_forward
                       : sizes_of(context, kept.pair_of_row.size());
    for (std::size_t m = 0; m < kept.kept.rows.size(); ++m) {
      const auto row = static_cast<std::size_t>(kept.kept.rows[m]);
      if (row < kept.pair_of_row.size())
        results.factors[static_cast<std::size_t>(kept.pair_of_row[row])] = kept.kept.factors[m];
    }
  }

  /// Weights and gradients of the slots of one rank. With one rank they are the whole tensors.
  struct slots {
    std::int64_t S, rank, D, F, E;
    std::vector<Element> host_gate_up, host_down;
    std::vector<real> host_d_gate_up, host_d_down;
    std::unique_ptr<mirrored<const Element, device>> gate_up, down;
    std::unique_ptr<mirrored<real, device>> d_gate_up, d_down;

    template <class Layer>
    slots(const layer_inputs<Element>& in, layer_results<Element>& results, std::int64_t own_rank,
          Layer& layer)
        : S(in.of.R == 1 ? in.of.shape.E
                         : (in.of.shape.E + in.of.R - 1) / in.of.R + (in.of.replicas ? 2 : 0)),
          rank(own_rank),
          D(in.of.shape.D),
          F(in.of.shape.F),
          E(in.of.shape.E) {
      if (in.of.R == 1) {
        gate_up = std::make_unique<mirrored<const Element, device>>(in.gate_up);
        down = std::make_unique<mirrored<const Element, device>>(in.down);
        d_gate_up = std::make_unique<mirrored<real, device>>(results.d_gate_up);
        d_down = std::make_unique<mirrored<real, device>>(results.d_down);
        return;
      }
      const auto poison = element_of<Element>(std::nan(""));
      host_gate_up.assign(static_cast<std::size_t>(S * D * 2 * F), poison);
      host_down.assign(static_cast<std::size_t>(S * F * D), poison);
      host_d_gate_up.assign(host_gate_up.size(), real(0));
      host_d_down.assign(host_down.size(), real(0));
      fill(in, layer.first_placement(S));
      gate_up = std::make_unique<mirrored<const Element, device>>(host_gate_up);
      down = std::make_unique<mirrored<const Element, device>>(host_down);
      d_gate_up = std::make_unique<mirrored<real, device>>(host_d_gate_up);
      d_down = std::make_unique<mirrored<real, device>>(host_d_down);
      layer.set_weight_mover([this, &in](const lrmoe::placement& placed) {
        fill(in, placed);
        gate_up->push();
        down->push();
      });
    }

    /// Experts of the rank's slots; -1 for an empty one.
    index_type expert_of(const lrmoe::placement& placed, std::int64_t slot) const {
      return placed.expert_of_slot()[static_cast<std::size_t>(rank * S + slot)];
    }
    void fill(const layer_inputs<Element>& in, const lrmoe::placement& placed) {
      for (std::int64_t slot = 0; slot < S; ++slot) {
        const index_type e = expert_of(placed, slot);
        if (e < 0) continue;
        std::copy_n(in.gate_up.begin() + e * D * 2 * F, D * 2 * F,
                    host_gate_up.begin() + slot * D * 2 * F);
        std::copy_n(in.down.begin() + e * F * D, F * D, host_down.begin() + slot * F * D);
      }
    }
    void add_gradients(layer_results<Element>& results, const lrmoe::placement& placed) {
      d_gate_up->pull();
      d_down->pull();
      if (host_d_down.empty()) return;
      for (std::int64_t slot = 0; slot < S; ++slot) {
        const index_type e = expert_of(placed, slot);
        if (e < 0) continue;
        for (std::int64_t i = 0; i < D * 2 * F; ++i)
          results.d_gate_up[static_cast<std::size_t>(e * D * 2 * F + i)] +=
              host_d_gate_up[static_cast<std::size_t>(slot * D * 2 * F + i)];
        for (std::int64_t i = 0; i < F * D; ++i)
          results.d_down[static_cast<std::size_t>(e * F * D + i)] +=
              host_d_down[static_cast<std::size_t>(slot * F * D + i)];
      }
    }
  };

  template <class Layer>
  static rank_selection selection_of(const Layer& layer, const lrmoe::replica_plan& replicas,
                                     std::int64_t rank, std::int64_t first_pair) {
    rank_selection found;
    const auto& order = layer.last_order();
    const auto H = static_cast<std::size_t>(replicas.H);
    found.offsets = host_values(order.offsets, H + 1);
    found.kept_offsets.assign(H + 1, 0);
    for (std::size_t h = 0; h < H; ++h)
      found.kept_offsets[h + 1] =
          found.kept_offsets[h] + replicas.quota(rank, static_cast<std::int64_t>(h));
    const auto N = static_cast<std::size_t>(found.offsets.back());
    const auto M = static_cast<std::size_t>(found.kept_offsets.back());
    found.pair_of_row = host_values(order.pair_of_row, N);
    for (index_type& pair : found.pair_of_row) pair += static_cast<index_type>(first_pair);
    const auto& selected = layer.last_selection();
    found.kept.rows = host_values(selected.rows, M);
    found.kept.factors = host_values(selected.factors, M);
    found.kept.inclusion = host_values(selected.inclusion, N);
    return found;
  }

  static bool keeps_all(const layer_inputs<Element>& in) {
    return in.of.estimator == estimator_kind::exact;
  }

  /// What the layer's last scoring wrote, which the workspace keeps until the next.
  template <class Context>
  static std::vector<float> sizes_of(Context& context, std::size_t N) {
    return host_values(context.scratch["pair_selector::sizes"].template vector<float>(
                           static_cast<std::int64_t>(N)),
                       N);
  }

  std::string name_;
};

}  // namespace bench::compare
