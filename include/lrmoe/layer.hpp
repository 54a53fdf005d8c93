// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <array>
#include <limits>
#include <string_view>

#include <Kokkos_Profiling_ScopedRegion.hpp>

#include <lrmoe/compaction/combine.hpp>
#include <lrmoe/compaction/expert_order.hpp>
#include <lrmoe/compaction/kept_pairs.hpp>
#include <lrmoe/context.hpp>
#include <lrmoe/control/controller.hpp>
#include <lrmoe/estimator/certificate.hpp>
#include <lrmoe/experts/swiglu.hpp>
#include <lrmoe/policies.hpp>
#include <lrmoe/report.hpp>
#include <lrmoe/routing/check_routing.hpp>
#include <lrmoe/scoring/score_pairs.hpp>

namespace lrmoe {

/// Weights of one layer, owned by the caller. The shared expert's are empty without one.
template <class Element, class Device>
struct expert_weights {
  tensor_view<const Element, Device> gate_up;           // (E, D, 2F): W_gate then W_up by columns
  tensor_view<const Element, Device> down;              // (E, F, D)
  tensor_view<const Element, Device> shared_gate_up{};  // (1, D, 2 F_shared)
  tensor_view<const Element, Device> shared_down{};     // (1, F_shared, D)
};

/// Main gradients of one layer, owned by the caller and added to. An empty view means that this
/// gradient is not wanted: its product is skipped.
template <class Accumulate, class Device>
struct expert_gradients {
  tensor_view<Accumulate, Device> gate_up{};         // (E, D, 2F)
  tensor_view<Accumulate, Device> down{};            // (E, F, D)
  tensor_view<Accumulate, Device> shared_gate_up{};  // (1, D, 2 F_shared)
  tensor_view<Accumulate, Device> shared_down{};     // (1, F_shared, D)
};

/// A mixture-of-experts layer with a complete forward and a reduced backward pass.
///
///   forward    route, sort pairs by expert, plan, compute all pairs, sum per token
///   backward   score pairs, select each expert's quota, compute the kept pairs, sum per token
///
/// The plan is made in forward, before any expert runs. With every pair kept the layer is an ordinary
/// exact MoE layer. The router's projection stays with the caller: the layer takes its input (logits,
/// or given routing) and returns that input's gradient.
///
/// Views handed to forward (x, router input) must stay alive and unchanged until backward returns.
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
  using router_gradient = typename router_type::template gradient<accumulate_type, device_type>;
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
        shape_(shape),
        policies_(choices),
        layer_id_(layer_id),
        sorter_(environment.memory),
        controller_(environment.memory) {
    shape_.validate();
    require(layer_id < 65536, "moe_layer: layer_id = ", layer_id, " must be below 65536");
    validate_policies();
  }

  const layer_shape& shape() const { return shape_; }

  /// The policies. A change takes effect with the next forward, which checks it; a backward still to
  /// come uses the policies of its forward.
  Policies& policies() { return policies_; }

  /// Complete forward pass of T tokens.
  ///   out_t = sum_k w_tk FFN_{e_tk}(x_t) + FFN_shared(x_t)
  /// Shapes    x (T, D), out (T, D), input for T tokens; T may differ from call to call, T = 0 works
  /// Expects   out overlaps none of x, the weights and the router's input; row-major contiguous views
  /// Checked   extents, overlap, policies, and the routing itself: ids, repeats, finite weights
  /// Throws    argument_error or memory_error, with out untouched and no forward to go backward from
  /// Order     asynchronous on the context's space but for one fence, after routing
  /// step      training step: with the policies' seeds it keys the random draws of this call
  void forward(std::uint64_t step, const const_element_matrix& x, const router_input& input,
               const weights_type& weights, const element_matrix& out,
               bool keep_for_backward = true) {
    Kokkos::Profiling::ScopedRegion region("lrmoe::moe_layer::forward");
    ready_for_backward_ = false;
    const std::int64_t T = static_cast<std::int64_t>(x.extent(0));
    const auto& [D, F, E, K, F_shared] = shape_;
    validate_policies();
    require(T <= std::numeric_limits<index_type>::max() / K, "moe_layer: T = ", T,
            " tokens times K = ", K, " experts exceed 2^31 - 1 pairs in one call: split the batch");
    detail::require_extents("moe_layer", "x", x, T, D);
    detail::require_extents("moe_layer", "out", out, T, D);
    input.validate(T, E, K);
    require_weights(weights);
    require_apart("out", out, x, weights, input);

    const auto& space = context_.space;
    tokens_ = T;
    step_ = step;
    planned_with_ = policies_;
    x_ = x;
    input_ = input;
    routing_ = {experts_.template matrix<index_type>(T, K),
                routing_weights_.template matrix<accumulate_type>(T, K)};
    {
      Kokkos::Profiling::ScopedRegion step_region("lrmoe::moe_layer::route");
      policies_.router.route(space, input_, routing_);
      check_routing(space, routing_, E);
    }
    {
      Kokkos::Profiling::ScopedRegion step_region("lrmoe::moe_layer::plan");
      order_ = sorter_.sort(space, context_.scratch,
                            matrix_view<const index_type, device_type>(routing_.experts), E);
      plan_ = controller_.make(space, vector_view<const index_type, device_type>(order_.offsets),
                               T * K, policies_.quota, policies_.estimator.keeps_all());
    }
    const std::int64_t P = T * K;
    pre_ = keep_for_backward ? saved_pre_.template matrix<Element>(P, 2 * F) : element_matrix{};
    activation_norms_ = keep_for_backward ? saved_norms_.template vector<float>(P)
                                          : vector_view<float, device_type>{};
    const auto rows = context_.scratch["moe_layer::rows"].template matrix<Element>(P, D);
    element_matrix shared_out;
    {
      Kokkos::Profiling::ScopedRegion step_region("lrmoe::moe_layer::experts");
      experts::forward(context_, gathered_rows<Element, device_type>{x_, order_.token_of_row},
                       order_.offsets, weights.gate_up, weights.down, pre_, activation_norms_,
                       rows);
      if (F_shared > 0) {
        shared_out = context_.scratch["moe_layer::shared_rows"].template matrix<Element>(T, D);
        shared_pre_ = keep_for_backward
                          ? saved_shared_pre_.template matrix<Element>(T, 2 * F_shared)
                          : element_matrix{};
        experts::forward(context_, gathered_rows<Element, device_type>{x_}, all_tokens(),
                         weights.shared_gate_up, weights.shared_down, shared_pre_,
                         vector_view<float, device_type>{}, shared_out);
      }
    }
    Kokkos::Profiling::ScopedRegion step_region("lrmoe::moe_layer::combine");
    combine(space, const_element_matrix(rows),
            vector_view<const index_type, device_type>(order_.row_of_pair),
            matrix_view<const accumulate_type, device_type>(routing_.weights),
            const_element_matrix(shared_out), out);
    ready_for_backward_ = keep_for_backward;
  }

  /// Reduced backward pass of the last forward.
  ///   with kept pairs p and their factors c_p (1/pi, or 1):
  ///   dw_p = c <dO W_down^T, h>;  dW_down += h^T (c w dO);  dW_gate, dW_up += x^T dg, x^T du;
  ///   dx_t = sum over the token's kept pairs (+ shared expert, complete)
  /// Shapes    d_out, dx (T, D); d_input (T, E) for logits, (T, K) for given routing
  /// Expects   the weights of the forward call; no output overlaps an input or another output
  /// Checked   extents and overlap
  /// Ensures   dx and d_input are overwritten, gradients added to; dropped pairs contribute nothing
  /// Throws    argument_error, with all outputs untouched and backward still possible; memory_error, with
  ///           all outputs untouched; error without a forward to go back from
  /// Order     asynchronous, then one fence of the context's space: the report holds host numbers
  backward_report backward(const const_element_matrix& d_out, const weights_type& weights,
                           const element_matrix& dx, const router_gradient& d_input,
                           const gradients_type& gradients) {
    Kokkos::Profiling::ScopedRegion region("lrmoe::moe_layer::backward");
    if (!ready_for_backward_) {
      throw error(
          "lrmoe: moe_layer: backward needs a forward with keep_for_backward before it, and each "
          "forward allows one backward");
    }
    const std::int64_t T = tokens_;
    const auto& [D, F, E, K, F_shared] = shape_;
    detail::require_extents("moe_layer", "d_out", d_out, T, D);
    detail::require_extents("moe_layer", "dx", dx, T, D);
    detail::require_extents("moe_layer", "d_input", d_input, T,
                            router_type::gradient_columns(E, K));
    require_weights(weights);
    require_gradients(gradients);
    require_outputs_apart(d_out, weights, dx, d_input, gradients);
    ready_for_backward_ = false;

    // All memory comes first: a refused allocation must not leave gradients half added.
    const auto& space = context_.space;
    auto& scratch = context_.scratch;
    const std::int64_t capacity = plan_.kept_capacity;
    experts::reserve_backward(context_, capacity, F);
    experts::reserve_backward(context_, F_shared > 0 ? T : 0, F_shared);
    const auto dx_rows = scratch["moe_layer::rows"].template matrix<Element>(capacity, D);
    const auto shared_dx = F_shared > 0
                               ? scratch["moe_layer::shared_rows"].template matrix<Element>(T, D)
                               : element_matrix{};
    const auto d_kept_weights =
        scratch["moe_layer::d_kept_weights"].template vector<accumulate_type>(capacity);
    const auto d_weights = scratch["moe_layer::d_weights"].template matrix<accumulate_type>(T, K);
    select_pairs(d_out);
    const auto kept = gather_kept_pairs(space, scratch, order_, routing_, plan_.kept_offsets,
                                        selection_, capacity);

    backward_report report;
    {
      Kokkos::Profiling::ScopedRegion step_region("lrmoe::moe_layer::experts");
      const gathered_rows<Element, device_type> pre{pre_, selection_.rows};
      report.routed = experts::backward(context_,
                                        swiglu_kept_rows<Element, device_type>{{x_, kept.tokens},
                                                                               pre,
                                                                               {d_out, kept.tokens},
                                                                               kept.offsets,
                                                                               kept.weights,
                                                                               selection_.factors},
                                        weights.gate_up, weights.down, d_kept_weights, dx_rows,
                                        gradients.gate_up, gradients.down);
      if (F_shared > 0) {
        report.shared = experts::backward(context_,
                                          swiglu_kept_rows<Element, device_type>{
                                              {x_}, {shared_pre_}, {d_out}, all_tokens(), {}, {}},
                                          weights.shared_gate_up, weights.shared_down,
                                          vector_view<accumulate_type, device_type>{}, shared_dx,
                                          gradients.shared_gate_up, gradients.shared_down);
      }
    }
    {
      Kokkos::Profiling::ScopedRegion step_region("lrmoe::moe_layer::combine");
      combine(space, const_element_matrix(dx_rows),
              vector_view<const index_type, device_type>(kept.kept_of_pair),
              matrix_view<const accumulate_type, device_type>{}, const_element_matrix(shared_dx),
              dx);
      spread_kept_values(space, kept, d_kept_weights, d_weights);
      planned_with_.router.backward(space, input_, routing_,
                                    matrix_view<const accumulate_type, device_type>(d_weights),
                                    d_input);
    }
    finish_report(report);
    return report;
  }

  /// The routing, order, plan and selection of the last call, valid until the next.
  const routing<accumulate_type, device_type>& last_routing() const { return routing_; }
  const expert_order<device_type>& last_order() const { return order_; }
  const plan<device_type>& last_plan() const { return plan_; }
  const selection<device_type>& last_selection() const { return selection_; }
  /// Certificate of each expert (E) of the last backward; undefined when the estimator keeps all.
  vector_view<const certificate, device_type> last_certificates() const { return certificates_; }

 private:
  void select_pairs(const const_element_matrix& d_out) {
    Kokkos::Profiling::ScopedRegion region("lrmoe::moe_layer::select");
    const auto& space = context_.space;
    const std::int64_t P = tokens_ * shape_.K;
    const std::int64_t capacity = plan_.kept_capacity;
    selection_ = {kept_rows_.template vector<index_type>(capacity),
                  kept_factors_.template vector<float>(capacity),
                  inclusion_.template vector<float>(P)};
    const segments<device_type> rows{order_.offsets, plan_.kept_offsets};
    const draw_key key{step_, layer_id_, 0};
    if (planned_with_.estimator.keeps_all()) {
      planned_with_.estimator.select(space, rows, vector_view<const float, device_type>{}, key,
                                     selection_);
      return;
    }
    const auto gradient_norms =
        context_.scratch["moe_layer::gradient_norms"].template vector<float>(tokens_);
    const auto sizes = context_.scratch["moe_layer::sizes"].template vector<float>(P);
    const auto contributions =
        context_.scratch["moe_layer::contributions"].template vector<float>(P);
    row_norms(space, d_out, gradient_norms);
    score_pairs(space, planned_with_.scorer, key, order_,
                matrix_view<const accumulate_type, device_type>(routing_.weights),
                vector_view<const float, device_type>(gradient_norms),
                vector_view<const float, device_type>(activation_norms_), sizes, contributions);
    planned_with_.estimator.select(space, rows, vector_view<const float, device_type>(sizes), key,
                                   selection_);
    certificates_ = expert_certificates_.template vector<certificate>(shape_.E);
    certify(space, rows, vector_view<const float, device_type>(contributions), selection_,
            certificates_);
  }

  void validate_policies() const {
    policies_.router.validate(shape_.E, shape_.K);
    policies_.quota.validate();
  }

  void require_weights(const weights_type& weights) const {
    const auto& [D, F, E, K, F_shared] = shape_;
    detail::require_extents("moe_layer", "gate_up weights", weights.gate_up, E, D, 2 * F);
    detail::require_extents("moe_layer", "down weights", weights.down, E, F, D);
    if (F_shared == 0) return;
    detail::require_extents("moe_layer", "shared gate_up weights", weights.shared_gate_up, 1, D,
                            2 * F_shared);
    detail::require_extents("moe_layer", "shared down weights", weights.shared_down, 1, F_shared,
                            D);
  }

  void require_gradients(const gradients_type& gradients) const {
    const auto& [D, F, E, K, F_shared] = shape_;
    const auto check = [](std::string_view name, const auto& view, auto... extents) {
      if (view.size() != 0) detail::require_extents("moe_layer", name, view, extents...);
    };
    check("gate_up gradient", gradients.gate_up, E, D, 2 * F);
    check("down gradient", gradients.down, E, F, D);
    check("shared gate_up gradient", gradients.shared_gate_up, std::int64_t{1}, D, 2 * F_shared);
    check("shared down gradient", gradients.shared_down, std::int64_t{1}, F_shared, D);
  }

  /// Require that an output shares no memory with what a pass reads.
  template <class Output>
  static void require_apart(std::string_view name, const Output& output,
                            const const_element_matrix& x, const weights_type& weights,
                            const router_input& input) {
    const auto apart = [&](std::string_view other_name, const auto& other) {
      detail::require_disjoint("moe_layer", name, output, other_name, other);
    };
    apart("x", x);
    apart("gate_up weights", weights.gate_up);
    apart("down weights", weights.down);
    apart("shared gate_up weights", weights.shared_gate_up);
    apart("shared down weights", weights.shared_down);
    input.require_disjoint(name, output);
  }

  /// The same for every output of backward, and that they share none with each other.
  void require_outputs_apart(const const_element_matrix& d_out, const weights_type& weights,
                             const element_matrix& dx, const router_gradient& d_input,
                             const gradients_type& gradients) const {
    const auto apart = [&](std::string_view name, const auto& output) {
      require_apart(name, output, x_, weights, input_);
      detail::require_disjoint("moe_layer", name, output, "d_out", d_out);
    };
    apart("dx", dx);
    apart("d_input", d_input);
    detail::require_disjoint("moe_layer", "d_input", d_input, "dx", dx);
    struct named {
      std::string_view name;
      tensor_view<accumulate_type, device_type> view;
    };
    const std::array<named, 4> sums{{{"gate_up gradient", gradients.gate_up},
                                     {"down gradient", gradients.down},
                                     {"shared gate_up gradient", gradients.shared_gate_up},
                                     {"shared down gradient", gradients.shared_down}}};
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

  /// Offsets {0, T} of the shared expert's single group.
  vector_view<index_type, device_type> all_tokens() {
    const auto offsets = shared_offsets_.template vector<index_type>(2);
    Kokkos::deep_copy(context_.space, Kokkos::subview(offsets, 0), index_type{0});
    Kokkos::deep_copy(context_.space, Kokkos::subview(offsets, 1),
                      static_cast<index_type>(tokens_));
    return offsets;
  }

  void finish_report(backward_report& report) {
    const bool certified = !planned_with_.estimator.keeps_all();
    const auto on_device = report_totals_.template vector<report_totals>(1);
    sum_report(context_.space, segments<device_type>{order_.offsets, plan_.kept_offsets},
               certified ? last_certificates() : vector_view<const certificate, device_type>{},
               on_device);
    report_totals found;
    Kokkos::deep_copy(context_.space, found, Kokkos::subview(on_device, 0));
    context_.space.fence("lrmoe::moe_layer: report");
    report.pairs = found.pairs;
    report.pairs_kept = found.pairs_kept;
    report.certified = found.certified;
    report.unbiased = planned_with_.estimator.unbiased();
    const auto row_bytes = static_cast<std::int64_t>(2 * shape_.D * sizeof(Element) +
                                                     sizeof(index_type) + sizeof(float));
    report.bytes_sent = report.pairs_kept * row_bytes;
    for (const auto* held : {&experts_, &routing_weights_, &kept_rows_, &kept_factors_, &inclusion_,
                             &expert_certificates_, &shared_offsets_, &report_totals_}) {
      report.token_buffer_bytes += held->size_bytes();
    }
    report.token_buffer_bytes += sorter_.size_bytes() + controller_.size_bytes();
    for (const auto* held : {&saved_pre_, &saved_norms_, &saved_shared_pre_}) {
      report.saved_activation_bytes += held->size_bytes();
    }
    report.workspace_bytes = context_.scratch.size_bytes();
  }

  buffer<device_type> token_buffer(const char* name) {
    return {context_.memory, memory_category::token_buffers, std::string("moe_layer::") + name};
  }
  buffer<device_type> saved_buffer(const char* name) {
    return {context_.memory, memory_category::saved_activations, std::string("moe_layer::") + name};
  }

  context<Backend>& context_;
  layer_shape shape_;
  Policies policies_;
  std::uint32_t layer_id_;

  buffer<device_type> experts_ = token_buffer("experts");
  buffer<device_type> routing_weights_ = token_buffer("routing_weights");
  buffer<device_type> kept_rows_ = token_buffer("kept_rows");
  buffer<device_type> kept_factors_ = token_buffer("kept_factors");
  buffer<device_type> inclusion_ = token_buffer("inclusion");
  buffer<device_type> expert_certificates_ = token_buffer("certificates");
  buffer<device_type> shared_offsets_ = token_buffer("shared_offsets");
  buffer<device_type> report_totals_ = token_buffer("report");
  buffer<device_type> saved_pre_ = saved_buffer("pre");
  buffer<device_type> saved_norms_ = saved_buffer("activation_norms");
  buffer<device_type> saved_shared_pre_ = saved_buffer("shared_pre");
  expert_sorter<device_type> sorter_;
  controller<device_type> controller_;

  // State of the current call.
  bool ready_for_backward_ = false;
  Policies planned_with_;
  std::int64_t tokens_ = 0;
  std::uint64_t step_ = 0;
  const_element_matrix x_;
  router_input input_;
  routing<accumulate_type, device_type> routing_;
  expert_order<device_type> order_;
  plan<device_type> plan_;
  element_matrix pre_;
  element_matrix shared_pre_;
  vector_view<float, device_type> activation_norms_;
  selection<device_type> selection_;
  vector_view<certificate, device_type> certificates_;
};

}  // namespace lrmoe
