// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <vector>

#include <lrmoe/context.hpp>
#include <lrmoe/quota/fixed_fraction.hpp>

#include "../support/layer_problem.hpp"

namespace bench {

/// The matrix products of a layer's forward and backward, with the layer's shapes, weights and provider, and
/// nothing else: rows lie in order already, and results go nowhere. What a layer takes beyond them is routing,
/// copies, row kernels and waiting. For backends whose operations have a product() of row groups.
template <class Element, class Backend>
class products_alone {
 public:
  using device = typename Backend::device_type;
  using real = lrmoe::accumulate_t<Element>;
  using index_type = lrmoe::index_type;
  using groups_type = lrmoe::row_groups<device>;
  template <class T>
  using matrix = bench::matrix<T, device>;
  template <class T>
  using tensor = bench::tensor<T, device>;

  /// Rows of all pairs and of those kept in backward, by expert.
  struct pair_groups {
    vector<index_type, device> offsets, kept_offsets;
    std::vector<index_type> host, kept_host;

    groups_type all() const { return {offsets, host}; }
    groups_type kept() const { return {kept_offsets, kept_host}; }
  };

  /// Buffers of a row for each pair: pre and d_pre (P, 2F), hidden (P, F), filled; rows (P, D).
  products_alone(lrmoe::context<Backend>& context, const layer_problem<Element, device>& problem,
                 const matrix<Element>& pre, const matrix<Element>& hidden,
                 const matrix<Element>& d_pre, const matrix<Element>& rows)
      : context_(context), problem_(problem) {
    const auto& [D, F, E, K, F_shared] = problem.shape;
    const std::int64_t P = problem.T * K;
    routed_ = {matrix<Element>("x_rows", P, D),
               matrix<Element>("d_out_rows", P, D),
               pre,
               hidden,
               d_pre,
               matrix<Element>("d_hidden", P, F),
               rows,
               problem.gate_up,
               problem.down,
               problem.d_gate_up,
               problem.d_down};
    fill_normal(routed_.x, 13, 1.0);
    fill_normal(routed_.d_out, 14, 1.0);
    if (F_shared == 0) return;
    const std::int64_t T = problem.T;
    shared_ = {problem.x,
               problem.d_out,
               matrix<Element>("shared_pre", T, 2 * F_shared),
               matrix<Element>("shared_hidden", T, F_shared),
               matrix<Element>("shared_d_pre", T, 2 * F_shared),
               matrix<Element>("shared_d_hidden", T, F_shared),
               rows,
               problem.shared_gate_up,
               problem.shared_down,
               problem.d_shared_gate_up,
               problem.d_shared_down};
    fill_normal(shared_.hidden, 15, 1.0);
    fill_normal(shared_.d_pre, 16, 1.0);
    const std::vector<index_type> ends{0, static_cast<index_type>(T)};
    every_token_ = {device_copy<device>("all_tokens", ends), {}, ends, {}};
  }

  pair_groups groups_of(const routed_tokens<real, device>& routing,
                        const lrmoe::fixed_fraction& quota) const {
    pair_groups made{routing.offsets, {}, routing.host_offsets, {0}};
    for (const auto count : routing.counts) {
      made.kept_host.push_back(made.kept_host.back() +
                               static_cast<index_type>(quota.of(static_cast<index_type>(count))));
    }
    made.kept_offsets = device_copy<device>("kept_offsets", made.kept_host);
    return made;
  }

  void forward(const pair_groups& of) {
    multiply_forward(routed_, of.all());
    if (problem_.shape.F_shared > 0) multiply_forward(shared_, every_token_.all());
  }

  /// `again`: g and u are computed once more.
  void backward(const pair_groups& of, bool again, lrmoe::gradient_update update) {
    if (again) multiply(routed_.x, of.kept(), routed_.gate_up, false, routed_.pre);
    multiply_backward(routed_, of.kept(), update);
    if (problem_.shape.F_shared > 0) multiply_backward(shared_, every_token_.all(), update);
  }

 private:
  struct operands {
    matrix<Element> x, d_out, pre, hidden, d_pre, d_hidden, rows;
    tensor<const Element> gate_up, down;
    tensor<real> d_gate_up, d_down;
  };

  static matrix<const Element> first_rows(const matrix<Element>& all, std::int64_t rows) {
    return matrix<const Element>(all.data(), static_cast<std::size_t>(rows), all.extent(1));
  }

  void multiply(const matrix<Element>& a, const groups_type& groups,
                const tensor<const Element>& weights, bool transpose, const matrix<Element>& c) {
    const matrix<Element> result(c.data(), static_cast<std::size_t>(groups.rows()), c.extent(1));
    context_.operations.product().template multiply_rows<Element>(
        context_.space, first_rows(a, groups.rows()), groups, weights, transpose, result);
  }

  void multiply_forward(const operands& of, const groups_type& groups) {
    multiply(of.x, groups, of.gate_up, false, of.pre);
    multiply(of.hidden, groups, of.down, false, of.rows);
  }

  void multiply_backward(const operands& of, const groups_type& groups,
                         lrmoe::gradient_update update) {
    multiply(of.d_out, groups, of.down, true, of.d_hidden);
    multiply(of.d_pre, groups, of.gate_up, true, of.rows);
    const std::int64_t M = groups.rows();
    auto& product = context_.operations.product();
    product.template sum_products<Element>(context_.space, first_rows(of.hidden, M),
                                           first_rows(of.d_out, M), groups, of.d_down, update);
    product.template sum_products<Element>(context_.space, first_rows(of.x, M),
                                           first_rows(of.d_pre, M), groups, of.d_gate_up, update);
  }

  lrmoe::context<Backend>& context_;
  const layer_problem<Element, device>& problem_;
  operands routed_, shared_;
  pair_groups every_token_;
};

}  // namespace bench
