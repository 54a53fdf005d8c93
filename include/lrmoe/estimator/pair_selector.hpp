// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <string>
#include <vector>

#include <lrmoe/compaction/kept_pairs.hpp>
#include <lrmoe/control/size_histogram.hpp>
#include <lrmoe/estimator/draw_subset.hpp>
#include <lrmoe/estimator/gradient_scope.hpp>
#include <lrmoe/memory/upload.hpp>
#include <lrmoe/quota/fixed_fraction.hpp>
#include <lrmoe/scoring/score_pairs.hpp>

namespace lrmoe {

/// Selects the pairs of one layer call: sizes, the draw of each expert's quota, the second draws that a
/// gradient scope asks for, and what the selection costs. Owns the storage of all of it.
///
/// A call goes: plan (host), then in backward, or in forward where activations are saved for kept pairs
/// alone, score and select; then certify and draw_for_dx, draw_for_dw. All but plan is asynchronous on the
/// space, and results stay valid until the next call.
template <class Accumulate, class Device>
class pair_selector {
 public:
  using indices = vector_view<const index_type, Device>;
  using floats = vector_view<const float, Device>;

  pair_selector(const typename Device::execution_space& space, ledger& account)
      : offsets_(token_buffer(space, account, "offsets")),
        rows_(token_buffer(space, account, "rows")),
        factors_(token_buffer(space, account, "factors")),
        inclusion_(token_buffer(space, account, "inclusion")),
        certificates_(token_buffer(space, account, "certificates")),
        histogram_(token_buffer(space, account, "histogram")),
        dx_(space, account, "dx"),
        dw_(space, account, "dw") {}

  /// Numbers of pairs to keep, from quotas (E). Takes no device memory yet.
  void plan(const std::vector<index_type>& quotas, const gradient_scope& scope) {
    fill_offsets(quotas, 1.0, host_offsets_);
    fill_offsets(quotas, scope.dx_share, dx_.host_offsets);
    fill_offsets(quotas, scope.dw_share, dw_.host_offsets);
  }
  std::int64_t kept() const { return host_offsets_.back(); }
  std::int64_t kept_dx() const { return dx_.host_offsets.back(); }
  std::int64_t kept_dw() const { return dw_.host_offsets.back(); }

  /// Take the memory of the call and send the plan's offsets to the device. Throws memory_error.
  template <class ExecutionSpace>
  void begin(const ExecutionSpace& space, const expert_order<Device>& order, std::int64_t N,
             bool scores, bool history) {
    const auto E1 = static_cast<std::int64_t>(host_offsets_.size());
    rows_of_expert_ = order.offsets;
    kept_offsets_ = upload(space, host_offsets_, offsets_);
    selected_ = {rows_.template vector<index_type>(kept()), factors_.template vector<float>(kept()),
                 inclusion_.template vector<float>(N)};
    of_expert_ = {};
    counted_ = {};
    if (scores) of_expert_ = certificates_.template vector<certificate>(E1 - 1);
    if (history) counted_ = histogram_.template matrix<index_type>(E1 - 1, size_bins::count);
    for (second_draw* draw : {&dx_, &dw_}) {
      const std::int64_t S = draw->host_offsets.back();
      if (S == kept()) continue;
      draw->device_offsets = upload(space, draw->host_offsets, draw->offsets);
      draw->selected = {draw->rows.template vector<index_type>(S),
                        draw->factors.template vector<float>(S),
                        draw->inclusion.template vector<float>(kept())};
    }
  }

  /// Sizes of all N pairs; gradient_norms (T) is empty before gradients exist.
  template <class ExecutionSpace, scorer Scorer>
  void score(const ExecutionSpace& space, workspace<Device>& scratch, const Scorer& policy,
             const draw_key& key, const expert_order<Device>& order,
             const matrix_view<const Accumulate, Device>& weights, const floats& gradient_norms,
             const floats& activation_norms) {
    const auto N = static_cast<std::int64_t>(activation_norms.extent(0));
    sizes_ = scratch["pair_selector::sizes"].template vector<float>(N);
    contributions_ = scratch["pair_selector::contributions"].template vector<float>(N);
    score_pairs(space, policy, key, order, weights, gradient_norms, activation_norms, sizes_,
                contributions_);
  }

  template <class ExecutionSpace, estimator Estimator>
  void select(const ExecutionSpace& space, const Estimator& policy, const draw_key& key) {
    policy.select(space, drawn_from(), floats(sizes_), key, selected_);
  }

  /// Certificates of the selection, and the histogram of contributions where history is wanted.
  template <class ExecutionSpace>
  void certify(const ExecutionSpace& space) {
    lrmoe::certify(space, drawn_from(), floats(contributions_), selected_, of_expert_);
    if (counted_.size() != 0)
      size_histogram(space, rows_of_expert_, floats(contributions_), counted_);
  }

  /// The kept pairs that enter dX: all, or the scope's share by a second draw.
  template <class ExecutionSpace, estimator Estimator>
  kept_subset<Device> draw_for_dx(const ExecutionSpace& space, workspace<Device>& scratch,
                                  const Estimator& policy, draw_key key,
                                  const kept_pairs<Accumulate, Device>& kept_of_call) {
    if (kept_dx() == kept()) return everyone();
    key.phase = 1;
    return draw_subset(space, scratch, "pair_selector::dx_tokens", policy, key, kept_of_call,
                       gather_sizes(space, scratch), dx_.groups(), dx_.selected);
  }

  /// The kept pairs that enter dW likewise; certificates then count both draws.
  template <class ExecutionSpace, estimator Estimator>
  kept_subset<Device> draw_for_dw(const ExecutionSpace& space, workspace<Device>& scratch,
                                  const Estimator& policy, draw_key key,
                                  const kept_pairs<Accumulate, Device>& kept_of_call) {
    if (kept_dw() == kept()) return everyone();
    key.phase = 2;
    const auto sizes = gather_sizes(space, scratch);
    const auto subset = draw_subset(space, scratch, "pair_selector::dw_tokens", policy, key,
                                    kept_of_call, sizes, dw_.groups(), dw_.selected);
    const auto again =
        scratch["pair_selector::certificates"].template vector<certificate>(of_expert_.extent(0));
    lrmoe::certify(space, segments<Device>{kept_offsets_, dw_.device_offsets},
                   floats(sizes.contributions), dw_.selected, again);
    add_variance(space, vector_view<const certificate, Device>(again), of_expert_);
    return subset;
  }

  row_groups<Device> kept_groups() const { return {kept_offsets_, host_offsets_}; }
  const selection<Device>& selected() const { return selected_; }
  /// The second draws; their rows are positions among the kept pairs. Meaningful where fewer are kept.
  const selection<Device>& selected_for_dx() const { return dx_.selected; }
  const selection<Device>& selected_for_dw() const { return dw_.selected; }
  vector_view<certificate, Device> certificates() const { return of_expert_; }
  matrix_view<index_type, Device> histogram() const { return counted_; }

  std::int64_t size_bytes() const {
    std::int64_t bytes = 0;
    for (const auto* held :
         {&offsets_, &rows_, &factors_, &inclusion_, &certificates_, &histogram_}) {
      bytes += held->size_bytes();
    }
    return bytes + dx_.size_bytes() + dw_.size_bytes();
  }

 private:
  static buffer<Device> token_buffer(const typename Device::execution_space& space, ledger& account,
                                     const std::string& name) {
    return {space, account, memory_category::token_buffers, "pair_selector::" + name};
  }

  struct second_draw {
    second_draw(const typename Device::execution_space& space, ledger& account,
                const std::string& name)
        : offsets(token_buffer(space, account, name + "_offsets")),
          rows(token_buffer(space, account, name + "_rows")),
          factors(token_buffer(space, account, name + "_factors")),
          inclusion(token_buffer(space, account, name + "_inclusion")) {}

    std::int64_t size_bytes() const {
      return offsets.size_bytes() + rows.size_bytes() + factors.size_bytes() +
             inclusion.size_bytes();
    }

    row_groups<Device> groups() const { return {device_offsets, host_offsets}; }

    buffer<Device> offsets, rows, factors, inclusion;
    std::vector<index_type> host_offsets{0};
    indices device_offsets;
    selection<Device> selected;
  };

  /// Running sums of ceil(share q[e]).
  static void fill_offsets(const std::vector<index_type>& quotas, double share,
                           std::vector<index_type>& offsets) {
    offsets.assign(quotas.size() + 1, 0);
    const fixed_fraction fraction{share};
    for (std::size_t e = 0; e < quotas.size(); ++e) {
      offsets[e + 1] = offsets[e] + (share == 1.0 ? quotas[e] : fraction.of(quotas[e]));
    }
  }

  segments<Device> drawn_from() const { return {rows_of_expert_, kept_offsets_}; }
  kept_subset<Device> everyone() const { return {kept(), kept_groups(), {}, {}, {}}; }

  template <class ExecutionSpace>
  kept_sizes<Device> gather_sizes(const ExecutionSpace& space, workspace<Device>& scratch) const {
    return gather_kept_sizes(space, scratch, selected_, floats(sizes_), floats(contributions_));
  }

  buffer<Device> offsets_, rows_, factors_, inclusion_, certificates_, histogram_;
  second_draw dx_, dw_;

  // State of the current call.
  std::vector<index_type> host_offsets_{0};
  indices rows_of_expert_;
  indices kept_offsets_;
  vector_view<float, Device> sizes_;
  vector_view<float, Device> contributions_;
  selection<Device> selected_;
  vector_view<certificate, Device> of_expert_;
  matrix_view<index_type, Device> counted_;
};

}  // namespace lrmoe
