// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <Kokkos_Profiling_ScopedRegion.hpp>

#include <lrmoe/compaction/combine.hpp>
#include <lrmoe/compaction/dropped_pairs.hpp>
#include <lrmoe/compaction/expert_order.hpp>
#include <lrmoe/compaction/gather_rows.hpp>
#include <lrmoe/compaction/kept_pairs.hpp>
#include <lrmoe/compaction/segment_order.hpp>
#include <lrmoe/context.hpp>
#include <lrmoe/control/call_planner.hpp>
#include <lrmoe/estimator/pair_selector.hpp>
#include <lrmoe/estimator/variance_estimate.hpp>
#include <lrmoe/exchange/agreement.hpp>
#include <lrmoe/exchange/row_exchange.hpp>
#include <lrmoe/experts/gradient_update.hpp>
#include <lrmoe/experts/parameters.hpp>
#include <lrmoe/experts/swiglu.hpp>
#include <lrmoe/memory/budget_refusal.hpp>
#include <lrmoe/memory/download.hpp>
#include <lrmoe/memory/expert_works.hpp>
#include <lrmoe/memory/layer_memory.hpp>
#include <lrmoe/policies.hpp>
#include <lrmoe/report.hpp>
#include <lrmoe/routing/check_routing.hpp>
#include <lrmoe/routing/gradient_sketch.hpp>

namespace lrmoe {

/// A mixture-of-experts layer with a complete forward and a reduced backward pass.
///
///   forward    route, sort pairs by expert, plan, compute all pairs, sum per token
///   backward   score pairs, select each expert's quota, compute the kept pairs, sum per token
///
/// Where the backend's communicator joins several ranks, each has tokens of its own and slots that hold
/// some of the experts: rows travel to the ranks that compute them and back, in backward those of kept
/// pairs alone. forward and backward are then collective: every rank calls them in the same order with the
/// same step and settings, and what fails on one rank before rows travel throws on all.
///
/// The plan is made in forward, before any expert runs. With every pair kept the layer is an ordinary
/// exact MoE layer. The router's projection stays with the caller: the layer takes its input (logits,
/// or given routing) and returns that input's gradient.
///
/// Views handed to forward (x, router input) must stay alive and unchanged until backward has run.
/// One backward per forward. Scratch is shared through the context, so layers of one context run
/// one after another. Between calls of sizes already seen nothing is allocated.
///
/// Numerics  bitwise equal results for equal input on one backend, whatever the number of threads
/// Tested    tests/layer.cpp
template <class Element, backend Backend, class Policies = policies<>>
class moe_layer {
  static_assert(std::is_same_v<Element, float> || std::is_same_v<Element, double> ||
                    std::is_same_v<Element, bfloat16>,
                "lrmoe::moe_layer: Element must be float, double or lrmoe::bfloat16");

 public:
  using device_type = typename Backend::device_type;
  using accumulate_type = accumulate_t<Element>;
  using router_type = typename Policies::router_type;
  using router_input = typename router_type::template input<accumulate_type, device_type>;
  using router_gradient_view =
      typename router_type::template gradient<accumulate_type, device_type>;
  using weights_type = expert_weights<Element, device_type>;
  using gradients_type = expert_gradients<accumulate_type, device_type>;
  using element_matrix = matrix_view<Element, device_type>;
  using const_element_matrix = matrix_view<const Element, device_type>;
  using experts = swiglu_experts<Element, Backend>;

  /// layer_id keys the random draws: give every layer of a model its own, below 65,536.
  /// Throws argument_error for a shape, policy or id out of range. Allocates nothing yet.
  moe_layer(context<Backend>& environment, const layer_shape& shape, const Policies& choices = {},
            std::uint32_t layer_id = 0)
      : context_(environment),
        registration_(environment),
        shape_(shape),
        policies_(choices),
        layer_id_(layer_id),
        sorter_(environment.space, environment.memory),
        segment_sorter_(environment.space, environment.memory),
        selector_(environment.space, environment.memory),
        exchange_(environment),
        planner_(environment, shape) {
    shape_.validate();
    require(layer_id < 65536, "moe_layer: layer_id = ", layer_id, " must be below 65536");
    policies_.validate(shape_);
  }

  const layer_shape& shape() const { return shape_; }

  /// The policies. A change takes effect with the next forward, which checks it; a backward still to
  /// come uses the policies of its forward.
  Policies& policies() { return policies_; }

  /// With several ranks: called, collectively and before rows travel, in a forward whose placement differs
  /// from that of the last, so that the slots' weights follow it. At first experts are where
  /// first_placement() says. Needed only with a planner that moves experts.
  void set_weight_mover(std::function<void(const placement&)> mover) {
    move_weights_ = std::move(mover);
  }

  /// Where experts are before a planner has moved any: on their home ranks, in the first of S slots.
  placement first_placement(std::int64_t S) const {
    return home_placement(context_.ranks.size(), S, shape_.E);
  }

  /// Complete forward pass of T tokens.
  ///   out_t = sum_k w_tk FFN_{e_tk}(x_t) + FFN_shared(x_t)
  /// Shapes    x (T, D), out (T, D), input for T tokens; T may differ from call to call and from rank to
  ///           rank, T = 0 works. With several ranks the weights have S slots instead of E experts, S the
  ///           same on all ranks and R S >= E
  /// Expects   out overlaps none of x, the weights and the router's input; row-major contiguous views
  /// Checked   extents, overlap, policies, the routing itself (ids, repeats, finite weights), and with a
  ///           budget in the context's ledger, that forward and backward of this call fit; that ranks agree on
  ///           shape, step and plan
  /// Throws    argument_error or memory_error, with out untouched and no forward to go backward from;
  ///           rank_error for what went wrong on another rank
  /// Order     asynchronous on the context's space but for one fence, after routing and sorting: the
  ///           host plans from the counts
  /// step      training step: with the policies' seeds it keys the random draws of this call
  void forward(std::uint64_t step, const const_element_matrix& x, const router_input& input,
               const weights_type& weights, const element_matrix& out,
               bool keep_for_backward = true) {
    Kokkos::Profiling::ScopedRegion region("lrmoe::moe_layer::forward");
    ready_for_backward_ = false;
    const auto& [D, F, E, K, F_shared] = shape_;
    auto& ranks = context_.ranks;
    agree(ranks, [&] {
      check_forward(x, input, weights, out);
      tokens_ = static_cast<std::int64_t>(x.extent(0));
      step_ = step;
      slots_ = static_cast<std::int64_t>(weights.gate_up.extent(0));
      planned_with_ = policies_;
      x_ = x;
      input_ = input;
      // Before routing nothing is known but T: refuse at once what no plan could make fit.
      require_budget(call_of(policies_, tokens_, 0, 0, keep_for_backward, exchange_sizes{}));
      route();
    });
    gather_counts(keep_for_backward);
    agree(ranks, [&] {
      make_plan(keep_for_backward);
      take_forward_memory();
    });
    if (!exchange_.alone()) {
      planner_.require_same_plan();
      if (planner_.placer().moves()) {
        move_weights_(planner_.placer().where());
        planner_.placer().settle();
      }
    }
    const auto& space = context_.space;
    const std::int64_t T = tokens_, N = call_.pairs, here = call_.pairs_here();
    if (!planner_.replicas().by_expert) {
      order_ =
          segment_sorter_.sort(space, planner_.replicas(), ranks.rank(), order_, host_offsets_);
    }
    if (keep_for_backward) selector_.begin(space, order_, N, call_.scores, call_.history);

    const auto rows = context_.scratch["moe_layer::rows"].template matrix<Element>(here, D);
    element_matrix shared_out;
    {
      Kokkos::Profiling::ScopedRegion step_region("lrmoe::moe_layer::experts");
      const auto arrived = exchange_.dispatch(x_, order_, {order_.offsets, host_offsets_}, N);
      experts::forward(context_, arrived.x, arrived.groups, weights.gate_up, weights.down,
                       first_rows(pre_, here), here_norms_, rows);
      if (F_shared > 0) {
        shared_out = context_.scratch["moe_layer::shared_rows"].template matrix<Element>(T, D);
        experts::forward(context_, gathered_rows<Element, device_type>{x_}, all_tokens(),
                         weights.shared_gate_up, weights.shared_down, shared_pre_,
                         vector_view<float, device_type>{}, shared_out);
      }
    }
    const const_element_matrix returned =
        exchange_.combine(rows, here_norms_, activation_norms_, N, keep_for_backward);
    if (saves_kept()) save_kept_activations();
    if (keep_for_backward && call_.router == router_gradient::sketch) {
      sketch_ = saved_sketch_.template matrix<accumulate_type>(N, call_.sketch_size);
      sketch(returned, sketch_);
    }
    Kokkos::Profiling::ScopedRegion step_region("lrmoe::moe_layer::combine");
    combine(space, returned, const_indices(order_.row_of_pair),
            matrix_view<const accumulate_type, device_type>(routing_.weights),
            const_element_matrix(shared_out), out);
    ready_for_backward_ = keep_for_backward;
  }

  /// Reduced backward pass of the last forward.
  ///   with kept pairs p and their factors c_p (1/pi, or 1):
  ///   dw_p = c <dO W_down^T, h>;  dW_down += h^T (c w dO);  dW_gate, dW_up += x^T dg, x^T du;
  ///   dx_t = sum over the token's kept pairs (+ shared expert, complete)
  /// The policies' scope may draw fewer pairs for dX or dW, and complete dw.
  /// Shapes    d_out, dx (T, D); d_input (T, E) for logits, (T, K) for given routing
  /// Expects   the weights of the forward call; no output overlaps an input or another output
  /// Checked   extents and overlap
  /// Ensures   dx and d_input are overwritten; dropped pairs contribute nothing. Wanted gradients are added
  ///           to, or with gradient_update::overwrite written whole, with zeros for experts (slots) without
  ///           kept rows and for a shared expert without tokens: what they held before, NaN included, does not
  ///           matter then
  /// Throws    argument_error or memory_error, with all outputs untouched and backward still possible;
  ///           error without a forward to go back from. On all ranks when on one
  /// Order     asynchronous. With several ranks it ends with a fence of the context's space: a rank that is lost
  ///           shows here, and histories are summed over ranks
  void backward(const const_element_matrix& d_out, const weights_type& weights,
                const element_matrix& dx, const router_gradient_view& d_input,
                const gradients_type& gradients, gradient_update update = gradient_update::add) {
    Kokkos::Profiling::ScopedRegion region("lrmoe::moe_layer::backward");
    const std::int64_t T = tokens_;
    const auto& [D, F, E, K, F_shared] = shape_;
    const auto& space = context_.space;
    const backward_scratch use = agree(context_.ranks, [&] {
      if (!ready_for_backward_) {
        throw error(
            "lrmoe: moe_layer: backward needs a forward with keep_for_backward before it, and each "
            "forward allows one backward");
      }
      detail::require_extents("moe_layer", "d_out", d_out, tokens_, shape_.D);
      detail::require_extents("moe_layer", "dx", dx, tokens_, shape_.D);
      detail::require_extents("moe_layer", "d_input", d_input, tokens_,
                              router_type::gradient_columns(shape_.E, shape_.K));
      weights.validate(shape_, slots_);
      gradients.validate(shape_, slots_);
      require_outputs_apart(d_out, weights, dx, d_input, gradients);
      // All memory comes first: a refused allocation must not leave gradients half written.
      return take_backward_scratch();
    });
    ready_for_backward_ = false;
    const std::int64_t sent_before = context_.ranks.bytes_sent();
    const selection<device_type>& selected = selector_.selected();
    const auto totals = report_totals_.template vector<report_totals>(1);
    {
      Kokkos::Profiling::ScopedRegion step_region("lrmoe::moe_layer::select");
      if (call_.scores) {
        row_norms(space, d_out, use.gradient_norms);
        score(use.gradient_norms);
      }
      if (!saves_kept()) selector_.select(space, planned_with_.estimator, key());
      if (call_.scores) selector_.certify(space);
    }
    const selection<device_type> leaving = exchange_.departing(selected);
    const auto kept = gather_kept_pairs(space, context_.scratch, order_, routing_,
                                        selector_.kept_groups(), const_indices(leaving.rows));
    const auto dx_of =
        selector_.draw_for_dx(space, context_.scratch, planned_with_.estimator, key(), kept);
    const auto dw_of =
        selector_.draw_for_dw(space, context_.scratch, planned_with_.estimator, key(), kept);
    const auto dropped =
        call_.router == router_gradient::exact
            ? gather_dropped_pairs(space, context_.scratch, order_, kept, call_.pairs, call_.kept)
            : dropped_pairs<device_type>{};
    sum_certificates(space, vector_view<const certificate, device_type>(selector_.certificates()),
                     totals);

    backward_report report;
    {
      Kokkos::Profiling::ScopedRegion step_region("lrmoe::moe_layer::experts");
      const bool again = planned_with_.saved == saved_activations::recompute;
      const arrived_kept<Element, device_type> here =
          saves_kept() ? exchange_.packed(x_, leaving, kept)
                       : exchange_.announce(x_, order_, selected, leaving, kept,
                                            again ? element_matrix{} : pre_);
      swiglu_kept_rows<Element, device_type> rows =
          experts::with_packed_gradients(context_, {here.x,
                                                    {pre_, here.pre},
                                                    exchange_.send_gradients(d_out, kept),
                                                    here.groups,
                                                    here.weights,
                                                    here.factors});
      if (again) {
        report.routed +=
            experts::recompute(context_, rows.x, rows.groups, weights.gate_up, use.kept_pre);
        rows.pre = {use.kept_pre};
      }
      // Between ranks no second draw is made: what arrived is used whole.
      const kept_subset<device_type> arrived{here.size, here.groups, {}, {}, {}};
      const kept_subset<device_type>& dx_here = exchange_.alone() ? dx_of : arrived;
      const kept_subset<device_type>& dw_here = exchange_.alone() ? dw_of : arrived;
      const element_matrix d_pre =
          experts::backward(context_, rows, here.size, dx_here, weights.gate_up, weights.down,
                            use.d_here_weights, use.dx_rows, report.routed);
      experts::weight_gradients(context_, rows, d_pre, dw_here, gradients.gate_up, gradients.down,
                                update, report.routed);
      estimate_variance(use, rows, dx_here, dw_here, d_pre, totals);
      if (F_shared > 0) {
        const kept_subset<device_type> everyone{T, all_tokens(), {}, {}, {}};
        const swiglu_kept_rows<Element, device_type> shared_rows{
            {x_}, {shared_pre_}, {d_out}, everyone.groups, {}, {}};
        const element_matrix shared_d_pre = experts::backward(
            context_, shared_rows, T, everyone, weights.shared_gate_up, weights.shared_down,
            vector_view<accumulate_type, device_type>{}, use.shared_dx, report.shared);
        experts::weight_gradients(context_, shared_rows, shared_d_pre, everyone,
                                  gradients.shared_gate_up, gradients.shared_down, update,
                                  report.shared);
      }
    }
    {
      Kokkos::Profiling::ScopedRegion step_region("lrmoe::moe_layer::combine");
      const const_element_matrix dx_rows =
          exchange_.return_gradients(use.dx_rows, use.d_here_weights, use.d_kept_weights);
      if (!dx_of.all()) {
        find_positions(space, order_, const_indices(selected.rows), dx_of, use.position);
      }
      combine(space, dx_rows,
              dx_of.all() ? const_indices(kept.kept_of_pair) : const_indices(use.position),
              matrix_view<const accumulate_type, device_type>{},
              const_element_matrix(use.shared_dx), dx);
      const bool complete = call_.router != router_gradient::kept;
      spread_kept_values(space, kept, use.d_kept_weights,
                         complete ? vector_view<const float, device_type>(selected.factors)
                                  : vector_view<const float, device_type>{},
                         use.d_weights);
      if (complete) {
        add_dropped_weight_gradients(d_out, weights, kept, dropped, use, report.routed);
      }
      planned_with_.router.backward(space, input_, routing_,
                                    matrix_view<const accumulate_type, device_type>(use.d_weights),
                                    d_input);
    }
    report.bytes_sent = context_.ranks.bytes_sent() - sent_before;
    send_report(totals, report);
    if (!exchange_.alone()) wait_for_report();
  }

  /// What the last backward did. Valid until the next.
  /// Throws    error before the first backward
  /// Order     waits for the context's space where nothing has since the backward; a forward has
  const backward_report& report() {
    if (!report_) throw error("lrmoe: moe_layer: there is no report before the first backward");
    wait_for_report();
    return *report_;
  }

  /// The routing, order, plan and selection of the last call, valid until the next.
  const routing<accumulate_type, device_type>& last_routing() const { return routing_; }
  const expert_order<device_type>& last_order() const { return order_; }
  const plan& last_plan() const { return planner_.made(); }
  /// Which replica computes which pairs, and where experts are; with one rank, everything is on rank 0.
  const replica_plan& last_replica_plan() const { return planner_.replicas(); }
  const placement& last_placement() const { return planner_.placer().where(); }
  /// Pairs that the experts of this rank computed in the last forward, and those kept for its backward.
  std::pair<std::int64_t, std::int64_t> last_pairs_here() const {
    return {call_.pairs_here(), call_.kept_here()};
  }
  const selection<device_type>& last_selection() const { return selector_.selected(); }
  const pair_selector<accumulate_type, device_type>& last_selector() const { return selector_; }
  /// Certificate of each segment (H; with one rank, of each expert) of the last backward; undefined when
  /// the estimator keeps all.
  vector_view<const certificate, device_type> last_certificates() const {
    return selector_.certificates();
  }

  /// Bytes that the last planned call needs, by category, workspace of the context included.
  memory_use planned_memory() const {
    return layer_memory<Element, Backend>(context_.space, shape_, call_);
  }
  /// Predicted time of the last planned call, forward and backward, by the context's rates.
  double planned_s() const {
    return planner_.own_cost().fixed_s +
           planner_.cost_of_pair().s * static_cast<double>(call_.kept_here());
  }

  /// What the layer remembers of earlier calls, for quota policies that forecast. Save it with a
  /// checkpoint and put it back to continue as if nothing had happened.
  /// Order     as report
  const score_history& history() {
    wait_for_report();
    return planner_.history();
  }
  void set_history(score_history past) {
    wait_for_report();
    planner_.history() = std::move(past);
  }

 private:
  /// Scratch of one backward call. Views that the call does not need are empty.
  struct backward_scratch {
    vector_view<float, device_type> gradient_norms;            // (T)
    vector_view<float, device_type> x_norms;                   // (T), or of rows of x that arrived
    element_matrix kept_pre;                                   // (M, 2F)
    element_matrix dx_rows;                                    // (M_dx, D), or (M_here, D)
    element_matrix shared_dx;                                  // (T, D)
    vector_view<accumulate_type, device_type> d_here_weights;  // (M_here)
    vector_view<accumulate_type, device_type> d_kept_weights;  // (M), with one rank the same
    matrix_view<accumulate_type, device_type> d_weights;       // (T, K)
    vector_view<index_type, device_type> position;             // (P)
    vector_view<double, device_type> terms;                    // (max(M_dx, M_dw)), or (M_here)
    vector_view<float, device_type> total_factors;             // (max(M_dx, M_dw))
    vector_view<accumulate_type, device_type> d_dropped;       // (N - M)
    element_matrix dropped_pre;                                // (at least N - M, 2F)
    matrix_view<accumulate_type, device_type> token_sketch;    // (T, k)
  };

  static vector_view<const index_type, device_type> const_indices(
      const vector_view<index_type, device_type>& view) {
    return view;
  }

  bool saves_all() const { return call_.backward && call_.saved == saved_activations::save; }
  bool saves_kept() const { return call_.backward && call_.saved == saved_activations::proxy; }

  void route() {
    Kokkos::Profiling::ScopedRegion region("lrmoe::moe_layer::route");
    const auto& space = context_.space;
    const auto& [D, F, E, K, F_shared] = shape_;
    routing_ = {experts_.template matrix<index_type>(tokens_, K),
                routing_weights_.template matrix<accumulate_type>(tokens_, K)};
    policies_.router.route(space, input_, routing_);
    const auto first_faulty = verdict_.template vector<std::int64_t>(1);
    find_faulty_pair(space, routing_, E, first_faulty);
    order_ = sorter_.sort(space, context_.scratch,
                          matrix_view<const index_type, device_type>(routing_.experts), E);
    const auto counted = download(space, order_.offsets, counted_);
    const auto faulty = download(space, first_faulty, verdict_for_host_);
    space.fence("lrmoe::moe_layer: counts and the verdict on the routing");
    take_report();
    if (faulty(0) < tokens_ * K) report_faulty_pair(routing_, E, faulty(0));
    host_offsets_.assign(counted.data(), counted.data() + counted.size());
  }

  void check_forward(const const_element_matrix& x, const router_input& input,
                     const weights_type& weights, const element_matrix& out) const {
    const std::int64_t T = static_cast<std::int64_t>(x.extent(0));
    const auto& [D, F, E, K, F_shared] = shape_;
    const std::int64_t R = context_.ranks.size();
    policies_.validate(shape_);
    context_.rates.validate();
    require(T <= std::numeric_limits<index_type>::max() / K, "moe_layer: T = ", T,
            " tokens times K = ", K, " experts exceed 2^31 - 1 pairs in one call: split the batch");
    detail::require_extents("moe_layer", "x", x, T, D);
    detail::require_extents("moe_layer", "out", out, T, D);
    input.validate(T, E, K);
    const std::int64_t S =
        exchange_.alone() ? E : static_cast<std::int64_t>(weights.gate_up.extent(0));
    require(R * S >= E, "moe_layer: weights of S = ", S, " slots on R = ", R,
            " ranks cannot hold E = ", E, " experts: give every rank at least ", (E + R - 1) / R,
            " slots");
    weights.validate(shape_, S);
    detail::require_disjoint("moe_layer", "out", out, "x", x);
    weights.require_disjoint("out", out);
    input.require_disjoint("out", out);
    if (exchange_.alone()) return;
    const gradient_scope& scope = policies_.scope;
    require(scope.dx_share == 1.0 && scope.dw_share == 1.0,
            "moe_layer: dx_share = ", scope.dx_share, " and dw_share = ", scope.dw_share,
            " with R = ", R, " ranks: second draws need one rank; lower the quota instead");
    require(scope.router != router_gradient::exact,
            "moe_layer: router_gradient::exact with R = ", R,
            " ranks would send dropped pairs: use router_gradient::sketch, which needs no message");
  }

  /// Counts of all ranks, which also tell what each may use.
  void gather_counts(bool keep_for_backward) {
    counts_.resize(static_cast<std::size_t>(shape_.E));
    for (std::size_t e = 0; e < counts_.size(); ++e)
      counts_[e] = host_offsets_[e + 1] - host_offsets_[e];
    planner_.gather({.T = tokens_,
                     .available_bytes = bytes_for_layers(),
                     .step = step_,
                     .slots = slots_,
                     .layer = layer_id_,
                     .element_bytes = sizeof(Element),
                     .backward = keep_for_backward,
                     .shape = shape_},
                    counts_);
  }

  /// The host's part: counts to placement to quotas to sizes, and whether memory suffices for them.
  void make_plan(bool keep_for_backward) {
    Kokkos::Profiling::ScopedRegion region("lrmoe::moe_layer::plan");
    const replica_plan& replicas = planner_.make(planned_with_);
    require(!planner_.placer().moves() || move_weights_ != nullptr, "moe_layer: the planner '",
            planned_with_.planner.attributes().name,
            "' moves experts between slots, and nothing moves their weights: call "
            "set_weight_mover, or use static_ownership");
    exchange_.plan(replicas, slots_);
    const auto own = replicas.quotas.begin() + context_.ranks.rank() * replicas.H;
    segment_quotas_.assign(own, own + replicas.H);
    selector_.plan(segment_quotas_, planned_with_.scope);
    call_ = call_of(planned_with_, tokens_, host_offsets_.back(), selector_.kept(),
                    keep_for_backward, exchange_.sizes());
    call_.kept_dx = selector_.kept_dx();
    call_.kept_dw = selector_.kept_dw();
    call_.segments = replicas.H;
    call_.by_expert = replicas.by_expert;
    require_budget(call_);
  }

  /// What forward fills for the call and backward reads; the rest is scratch.
  void take_forward_memory() {
    const auto& [D, F, E, K, F_shared] = shape_;
    const std::int64_t N = call_.pairs, here = call_.pairs_here();
    // Activations that move here are stored behind the rank's own.
    const std::int64_t stored = here + call_.exchange.moved_here;
    pre_ = saves_all() ? saved_pre_.template matrix<Element>(stored, 2 * F)
           : saves_kept()
               ? context_.scratch["moe_layer::pre"].template matrix<Element>(stored, 2 * F)
               : element_matrix{};
    activation_norms_ =
        call_.backward ? saved_norms_.template vector<float>(N) : vector_view<float, device_type>{};
    here_norms_ = exchange_.alone() || !call_.backward
                      ? activation_norms_
                      : context_.scratch["moe_layer::here_norms"].template vector<float>(here);
    context_.scratch["moe_layer::rows"].template matrix<Element>(here, D);
    if (F_shared > 0) {
      shared_pre_ = call_.backward
                        ? saved_shared_pre_.template matrix<Element>(tokens_, 2 * F_shared)
                        : element_matrix{};
    }
    context_.operations.template reserve<Element>(context_.space, expert_works(shape_, call_));
    exchange_.begin(D, N, call_.kept, call_.backward, call_.saved);
  }

  /// Select before backward, and keep the activations of the selected pairs alone.
  void save_kept_activations() {
    const auto& space = context_.space;
    score(vector_view<const float, device_type>{});
    selector_.select(space, planned_with_.estimator, key());
    const selection<device_type> leaving = exchange_.departing(selector_.selected());
    const auto kept = gather_kept_pairs(space, context_.scratch, order_, routing_,
                                        selector_.kept_groups(), const_indices(leaving.rows));
    const auto here = exchange_.announce(x_, order_, selector_.selected(), leaving, kept, pre_);
    const auto kept_pre = saved_pre_.template matrix<Element>(here.size, 2 * shape_.F);
    gather_rows(space, const_element_matrix(pre_), here.pre, kept_pre);
    exchange_.pack(here);
    pre_ = kept_pre;
  }

  static element_matrix first_rows(const element_matrix& all, std::int64_t rows) {
    if (static_cast<std::int64_t>(all.extent(0)) <= rows) return all;
    return element_matrix(all.data(), static_cast<std::size_t>(rows), all.extent(1));
  }

  draw_key key() const {
    return {step_, layer_id_, static_cast<std::uint32_t>(context_.ranks.rank()), 0};
  }

  void score(const vector_view<const float, device_type>& gradient_norms) {
    selector_.score(context_.space, context_.scratch, planned_with_.scorer, key(), order_,
                    matrix_view<const accumulate_type, device_type>(routing_.weights),
                    gradient_norms, vector_view<const float, device_type>(activation_norms_));
  }

  backward_scratch take_backward_scratch() {
    const auto& [D, F, E, K, F_shared] = shape_;
    auto& scratch = context_.scratch;
    const std::int64_t T = tokens_, M = call_.kept, dropped = call_.pairs - M;
    const std::int64_t here = call_.kept_here();
    const std::int64_t drawn = exchange_.alone() ? std::max(call_.kept_dx, call_.kept_dw) : here;
    experts::reserve_backward(context_, here, F);
    experts::reserve_gradients(context_, here, D);
    experts::reserve_backward(context_, F_shared > 0 ? T : 0, F_shared);
    backward_scratch use;
    use.dx_rows = scratch["moe_layer::rows"].template matrix<Element>(
        exchange_.alone() ? call_.kept_dx : here, D);
    if (F_shared > 0)
      use.shared_dx = scratch["moe_layer::shared_rows"].template matrix<Element>(T, D);
    use.d_kept_weights = scratch["moe_layer::d_kept_weights"].template vector<accumulate_type>(M);
    use.d_here_weights =
        exchange_.alone()
            ? use.d_kept_weights
            : scratch["moe_layer::d_here_weights"].template vector<accumulate_type>(here);
    use.d_weights = scratch["moe_layer::d_weights"].template matrix<accumulate_type>(T, K);
    if (call_.scores) {
      use.gradient_norms = scratch["moe_layer::gradient_norms"].template vector<float>(T);
    }
    if (call_.variance) {
      use.x_norms = scratch["moe_layer::x_norms"].template vector<float>(call_.x_rows());
      use.terms = scratch["moe_layer::variance_terms"].template vector<double>(drawn);
    }
    const bool exact_router = call_.router == router_gradient::exact;
    // Both live in one buffer, one after the other. The larger first: growing would move it.
    auto& pre = scratch["moe_layer::pre"];
    if (call_.saved != saved_activations::save && exact_router)
      use.dropped_pre = pre.template matrix<Element>(std::max(M, dropped), 2 * F);
    if (call_.saved == saved_activations::recompute)
      use.kept_pre = pre.template matrix<Element>(here, 2 * F);
    if (call_.kept_dx < M || call_.kept_dw < M) {
      use.total_factors = scratch["moe_layer::total_factors"].template vector<float>(drawn);
    }
    if (call_.kept_dx < M) {
      use.position = scratch["moe_layer::position"].template vector<index_type>(T * K);
    }
    if (exact_router)
      use.d_dropped = scratch["moe_layer::d_dropped"].template vector<accumulate_type>(dropped);
    if (call_.router == router_gradient::sketch) {
      use.token_sketch =
          scratch["moe_layer::token_sketch"].template matrix<accumulate_type>(T, call_.sketch_size);
    }
    reported_.template vector<report_totals>(1);
    histogram_for_host_.template vector<index_type>(
        static_cast<std::int64_t>(selector_.histogram().size()));
    exchange_.begin_backward(D, call_.saved == saved_activations::save ? F : 0, call_.pairs, M);
    return use;
  }

  void estimate_variance(const backward_scratch& use,
                         const swiglu_kept_rows<Element, device_type>& rows,
                         const kept_subset<device_type>& dx_of,
                         const kept_subset<device_type>& dw_of, const element_matrix& d_pre,
                         const vector_view<report_totals, device_type>& totals) {
    if (!call_.variance) return;
    Kokkos::Profiling::ScopedRegion region("lrmoe::moe_layer::certify");
    const auto& space = context_.space;
    const auto total_factors =
        [&](const kept_subset<device_type>& of) -> vector_view<const float, device_type> {
      if (of.all()) return rows.factors;
      const vector_view<float, device_type> total =
          Kokkos::subview(use.total_factors, std::pair(std::int64_t{0}, of.size));
      multiply_factors(space, rows.factors, of, total);
      return total;
    };
    const auto terms = [&](const kept_subset<device_type>& of) {
      return vector_view<double, device_type>(
          Kokkos::subview(use.terms, std::pair(std::int64_t{0}, of.size)));
    };
    variance_terms(space, const_element_matrix(use.dx_rows), {}, total_factors(dx_of), {}, {},
                   terms(dx_of));
    sum_terms(space, terms(dx_of), &totals.data()->variance.dx);
    row_norms(space, rows.x.matrix, use.x_norms);
    variance_terms(space, const_element_matrix(d_pre), dw_of.rows, total_factors(dw_of),
                   vector_view<const float, device_type>(use.x_norms),
                   dw_of.all() ? rows.x.index : dw_of.tokens, terms(dw_of));
    sum_terms(space, terms(dw_of), &totals.data()->variance.gate_up);
  }

  sketch_signs signs() const { return {planned_with_.scope.sketch_seed, key()}; }
  void sketch(const const_element_matrix& rows,
              const matrix_view<accumulate_type, device_type>& projected) {
    const auto directions = context_.scratch["moe_layer::signs"].template matrix<accumulate_type>(
        shape_.D, sketch_block * sketch_blocks(call_.sketch_size));
    sketch_rows(context_.space, signs(), rows, directions, projected);
  }

  template <class Kept>
  void add_dropped_weight_gradients(const const_element_matrix& d_out, const weights_type& weights,
                                    const Kept& kept, const dropped_pairs<device_type>& dropped,
                                    const backward_scratch& use, product_cost& cost) {
    const auto& space = context_.space;
    if (call_.router == router_gradient::sketch) {
      sketch(d_out, use.token_sketch);
      sketch_dropped_gradients(space, order_, kept, sketch_, use.token_sketch, use.d_weights);
      return;
    }
    swiglu_kept_rows<Element, device_type> rows{{x_, dropped.tokens},
                                                {pre_, dropped.rows},
                                                {d_out, dropped.tokens},
                                                {dropped.offsets, dropped_offsets()},
                                                {},
                                                {}};
    if (call_.saved != saved_activations::save) {
      cost += experts::recompute(context_, rows.x, rows.groups, weights.gate_up, use.dropped_pre);
      rows.pre = {use.dropped_pre};
    }
    cost += experts::weight_products(context_, rows, weights.down, use.d_dropped);
    spread_dropped_values(space, order_, dropped, use.d_dropped, use.d_weights);
  }

  /// Require that every output of backward shares no memory with what it reads or with another output.
  void require_outputs_apart(const const_element_matrix& d_out, const weights_type& weights,
                             const element_matrix& dx, const router_gradient_view& d_input,
                             const gradients_type& gradients) const {
    const auto apart = [&](std::string_view name, const auto& output) {
      detail::require_disjoint("moe_layer", name, output, "x", x_);
      weights.require_disjoint(name, output);
      input_.require_disjoint(name, output);
      detail::require_disjoint("moe_layer", name, output, "d_out", d_out);
    };
    apart("dx", dx);
    apart("d_input", d_input);
    detail::require_disjoint("moe_layer", "d_input", d_input, "dx", dx);
    const auto sums = gradients.all();
    for (std::size_t i = 0; i < sums.size(); ++i) {
      apart(sums[i].name, sums[i].view);
      detail::require_disjoint("moe_layer", sums[i].name, sums[i].view, "dx", dx);
      detail::require_disjoint("moe_layer", sums[i].name, sums[i].view, "d_input", d_input);
      for (std::size_t j = 0; j < i; ++j) {
        detail::require_disjoint("moe_layer", sums[i].name, sums[i].view, sums[j].name,
                                 sums[j].view);
      }
    }
  }

  /// Host offsets of the rows that are not kept.
  std::span<const index_type> dropped_offsets() {
    const auto kept = selector_.kept_groups().host;
    host_dropped_.resize(host_offsets_.size());
    for (std::size_t e = 0; e < kept.size(); ++e) host_dropped_[e] = host_offsets_[e] - kept[e];
    return host_dropped_;
  }

  /// The shared expert's single group of all tokens.
  row_groups<device_type> all_tokens() {
    const auto offsets = shared_offsets_.template vector<index_type>(2);
    Kokkos::deep_copy(context_.space, Kokkos::subview(offsets, 0), index_type{0});
    Kokkos::deep_copy(context_.space, Kokkos::subview(offsets, 1),
                      static_cast<index_type>(tokens_));
    host_all_tokens_ = {0, static_cast<index_type>(tokens_)};
    return {offsets, host_all_tokens_};
  }

  /// Fill in what the host knows and enqueue what the device knows.
  void send_report(const vector_view<report_totals, device_type>& on_device,
                   backward_report report) {
    const auto& space = context_.space;
    arriving_totals_ = download(space, on_device, reported_);
    arriving_histogram_ = download(space, selector_.histogram(), histogram_for_host_);
    report.pairs = call_.pairs;
    report.pairs_kept = call_.kept;
    report.unbiased = planned_with_.estimator.unbiased();
    if (exchange_.alone()) {
      const auto row_bytes =
          static_cast<std::int64_t>(2 * shape_.D * sizeof(Element) + sizeof(accumulate_type) +
                                    sizeof(index_type) + sizeof(float) + sizeof(accumulate_type));
      report.bytes_sent = report.pairs_kept * row_bytes;
    }
    report.token_buffer_bytes = token_buffer_bytes();
    report.saved_activation_bytes = saved_bytes();
    report.workspace_bytes = context_.scratch.size_bytes();
    report_ = report;
    report_arriving_ = true;
  }

  void wait_for_report() {
    if (!report_arriving_) return;
    context_.space.fence("lrmoe::moe_layer: report");
    take_report();
  }

  /// Take what has arrived by a fence after backward, before the next plan is made.
  void take_report() {
    if (!report_arriving_) return;
    report_arriving_ = false;
    const report_totals& found = arriving_totals_(0);
    report_->certified = found.certified;
    report_->variance = found.variance;
    if (call_.history) remember();
  }

  /// Feed the histories of all ranks the sizes and the noise that all ranks found together.
  void remember() {
    const auto E = static_cast<std::size_t>(shape_.E), H = segment_quotas_.size();
    const auto bins = static_cast<std::size_t>(size_bins::count);
    host_histogram_.assign(arriving_histogram_.data(),
                           arriving_histogram_.data() + arriving_histogram_.size());
    double forecast = last_plan().noise_forecast, noise = report_->noise_ratio();
    if (!exchange_.alone()) {
      std::vector<std::int64_t> of_experts(E * bins, 0);
      const auto& expert = planner_.replicas().expert;
      for (std::size_t h = 0; h < H; ++h) {
        for (std::size_t b = 0; b < bins; ++b)
          of_experts[static_cast<std::size_t>(expert[h]) * bins + b] +=
              host_histogram_[h * bins + b];
      }
      std::vector<std::int64_t> histograms;
      sum_over_ranks(context_.ranks, std::span<std::int64_t>(of_experts), histograms);
      host_histogram_.assign(of_experts.begin(), of_experts.end());
      std::array<double, 2> sums{report_->certified.added_variance, report_->certified.score_total};
      std::vector<double> noises;
      sum_over_ranks(context_.ranks, std::span<double>(sums), noises);
      if (report_->unbiased) noise = sums[1] > 0 ? sums[0] / sums[1] : 0.0;
    }
    planner_.history().record_sizes(host_histogram_);
    planner_.history().record_noise(forecast, noise);
  }

  std::int64_t token_buffer_bytes() const {
    std::int64_t bytes = sorter_.size_bytes() + segment_sorter_.size_bytes() +
                         selector_.size_bytes() + exchange_.token_buffer_bytes();
    for (const auto* held :
         {&experts_, &routing_weights_, &verdict_, &shared_offsets_, &report_totals_}) {
      bytes += held->size_bytes();
    }
    for (const auto* held : {&counted_, &verdict_for_host_, &reported_, &histogram_for_host_})
      bytes += held->size_bytes();
    return bytes;
  }
  std::int64_t saved_bytes() const {
    return saved_pre_.size_bytes() + saved_norms_.size_bytes() + saved_shared_pre_.size_bytes() +
           saved_sketch_.size_bytes() + exchange_.saved_bytes();
  }

  /// Bytes that this layer may hold under the ledger's budget, which there must be, beside what others hold.
  std::int64_t available_bytes() const {
    const auto& memory = context_.memory;
    const std::int64_t own = token_buffer_bytes() + saved_bytes() + context_.scratch.size_bytes();
    return memory.budget_bytes() - (memory.live_bytes() - own);
  }

  /// Bytes that all layers of the context together may hold, beside what the caller has booked.
  std::int64_t bytes_for_layers() const {
    const auto& memory = context_.memory;
    if (memory.budget_bytes() == 0) return std::numeric_limits<std::int64_t>::max();
    std::int64_t of_layers = 0;
    for (const auto category : {memory_category::token_buffers, memory_category::saved_activations,
                                memory_category::workspace}) {
      of_layers += memory.live_bytes(category);
    }
    return std::max<std::int64_t>(memory.budget_bytes() - (memory.live_bytes() - of_layers), 0);
  }

  /// Throws memory_error when a call does not fit, with what it needs and what would fit.
  void require_budget(const layer_call& call) const {
    if (context_.memory.budget_bytes() == 0) return;
    const std::int64_t available = available_bytes();
    const auto need = [&](const layer_call& of) {
      return layer_memory<Element, Backend>(context_.space, shape_, of);
    };
    if (need(call).total() <= available) return;
    throw memory_error(detail::budget_refusal(context_.memory, shape_, call, available, need));
  }

  template <class Where = device_type>
  buffer<Where> token_buffer(const char* name) {
    return {context_.space, context_.memory, memory_category::token_buffers,
            std::string("moe_layer::") + name};
  }
  buffer<device_type> saved_buffer(const char* name) {
    return {context_.space, context_.memory, memory_category::saved_activations,
            std::string("moe_layer::") + name};
  }

  using landing = landing_device<device_type>;

  context<Backend>& context_;
  typename context<Backend>::registration registration_;
  layer_shape shape_;
  Policies policies_;
  std::uint32_t layer_id_;

  buffer<device_type> experts_ = token_buffer("experts");
  buffer<device_type> routing_weights_ = token_buffer("routing_weights");
  buffer<device_type> verdict_ = token_buffer("verdict");
  buffer<device_type> shared_offsets_ = token_buffer("shared_offsets");
  buffer<device_type> report_totals_ = token_buffer("report");
  buffer<landing> counted_ = token_buffer<landing>("counted");
  buffer<landing> verdict_for_host_ = token_buffer<landing>("verdict_for_host");
  buffer<landing> reported_ = token_buffer<landing>("reported");
  buffer<landing> histogram_for_host_ = token_buffer<landing>("histogram_for_host");
  buffer<device_type> saved_pre_ = saved_buffer("pre");
  buffer<device_type> saved_norms_ = saved_buffer("activation_norms");
  buffer<device_type> saved_shared_pre_ = saved_buffer("shared_pre");
  buffer<device_type> saved_sketch_ = saved_buffer("sketch");
  expert_sorter<device_type> sorter_;
  segment_sorter<device_type> segment_sorter_;
  pair_selector<accumulate_type, device_type> selector_;
  row_exchange<Element, Backend> exchange_;
  call_planner<Element, Backend> planner_;
  std::function<void(const placement&)> move_weights_;

  // State of the current call.
  bool ready_for_backward_ = false;
  std::int64_t slots_ = 0;
  std::vector<index_type> segment_quotas_;  // (H) of this source
  Policies planned_with_;
  layer_call call_;
  std::int64_t tokens_ = 0;
  std::uint64_t step_ = 0;
  const_element_matrix x_;
  router_input input_;
  routing<accumulate_type, device_type> routing_;
  expert_order<device_type> order_;
  std::vector<index_type> host_offsets_, counts_;  // (E+1), (E)
  std::vector<index_type> host_dropped_;           // (E+1)
  std::array<index_type, 2> host_all_tokens_{};
  std::vector<index_type> host_histogram_;  // (E, bins)

  // Report of the last backward, the device's part of it perhaps still on its way.
  std::optional<backward_report> report_;
  bool report_arriving_ = false;
  vector_view<const report_totals, landing> arriving_totals_;  // (1)
  vector_view<const index_type, landing> arriving_histogram_;  // (E bins), or empty

  element_matrix pre_;
  element_matrix shared_pre_;
  vector_view<float, device_type> activation_norms_;  // (N) by row of this source
  vector_view<float, device_type> here_norms_;        // (N_here) by row that is computed here
  matrix_view<accumulate_type, device_type> sketch_;
};

}  // namespace lrmoe
