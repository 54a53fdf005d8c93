// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arithmetic.hpp"
#include "dense_matrix.hpp"
#include "layer_results.hpp"
#include "router_reference.hpp"
#include "tensor_comparison.hpp"

namespace bench::compare {

/// What a candidate's step is judged by, tensor by tensor.
struct layer_comparison {
  std::vector<tensor_comparison> tensors;
  std::vector<number> sizes;  // (P)  of every pair, as the estimator should see it
  routing_reference routing;
};

/// The layer in double, with a bound on the error of every element, beside a candidate's results. Written
/// from the formulas alone: of the library it shares the BLAS call and the formats, and none of its
/// kernels, so that an error there shows here. Works through one expert at a time, so that a published
/// layer fits into memory, and compares an expert's gradients as soon as they are there.
///
/// Which pairs are kept and with which factor is taken from the candidate, because a draw depends on
/// rounding; kept_sets.hpp judges that choice.
///
/// Bounds, in first order and for any order of summation (arithmetic.hpp has the rules). e(.) is what
/// an operand may be off by; every matrix of bounds is a product of matrices of magnitudes:
///   C = A B, n terms     e(C) = (gamma_n |A| + (1 + gamma_n) e(A)) |B|,    B exact
///   dh'                  rounded to the element type between product and row work, whether or not
///                        the candidate does so
template <class Element>
class layer_reference {
 public:
  using real = lrmoe::accumulate_t<Element>;

  layer_reference(const layer_inputs<Element>& in, const layer_results<Element>& results,
                  std::string injected = {}, bool likely = false)
      : in_(in),
        results_(results),
        rules_(arithmetic::of<Element>()),
        injected_(std::move(injected)) {
    rules_.likely = likely;
  }

  layer_comparison run() {
    const auto& [D, F, E, K, F_shared] = in_.of.shape;
    const std::int64_t T = in_.of.T;
    // Threads of a product cost more than they save where it is small.
    std::optional<host_product::session> alone;
    if (in_.of.P() * D * F < std::int64_t{1} << 30) alone.emplace();
    layer_comparison found;
    const router_reference<Element> router(in_, rules_);
    found.routing = router.route(results_.experts);
    sizes_.assign(static_cast<std::size_t>(in_.of.P()), {});
    d_weights_.assign(static_cast<std::size_t>(in_.of.P()), {});
    out_.start(T, D);
    dx_.start(T, D);
    gradient_norms_.clear();
    for (std::int64_t t = 0; t < T; ++t) {
      double squares = 0;
      for (std::int64_t d = 0; d < D; ++d) {
        const double value = at(in_.d_out, t, d, D);
        squares += value * value;
      }
      gradient_norms_.push_back(std::sqrt(squares));
    }

    std::vector<std::vector<index_type>> pairs(static_cast<std::size_t>(E));
    for (std::int64_t p = 0; p < in_.of.P(); ++p) {
      const index_type e = results_.experts[static_cast<std::size_t>(p)];
      if (e >= 0 && e < E) pairs[static_cast<std::size_t>(e)].push_back(static_cast<index_type>(p));
    }
    auto d_gate_up = named("d_gate_up"), d_down = named("d_down");
    for (std::int64_t e = 0; e < E; ++e) {
      group here;
      here.width = F;
      here.gate_up = in_.gate_up.data() + e * D * 2 * F;
      here.down = in_.down.data() + e * F * D;
      for (const index_type p : pairs[static_cast<std::size_t>(e)])
        here.add(p / static_cast<index_type>(K), p,
                 found.routing.weights[static_cast<std::size_t>(p)],
                 results_.factors[static_cast<std::size_t>(p)]);
      compute(here, {results_.d_gate_up.data(), e * D * 2 * F, tensor_id::before_gate_up},
              {results_.d_down.data(), e * F * D, tensor_id::before_down}, e * D, e * F, d_gate_up,
              d_down);
    }
    auto d_shared_gate_up = named("d_shared_gate_up"), d_shared_down = named("d_shared_down");
    if (F_shared > 0) {
      group here;
      here.width = F_shared;
      here.gate_up = in_.shared_gate_up.data();
      here.down = in_.shared_down.data();
      for (std::int64_t t = 0; t < T; ++t)
        here.add(static_cast<index_type>(t), -1, {1.0, 0.0}, 1.0F);
      compute(here, {results_.d_shared_gate_up.data(), 0, tensor_id::before_shared_gate_up},
              {results_.d_shared_down.data(), 0, tensor_id::before_shared_down}, 0, 0,
              d_shared_gate_up, d_shared_down);
    }

    auto out = named("out"), dx = named("dx");
    // K products and the shared expert's row.
    out_.compare(rules_, static_cast<double>(K + 2), results_.out, out);
    dx_.compare(rules_, static_cast<double>(K + 2), results_.dx, dx);
    const bool given = in_.of.router == router_kind::given;
    auto d_router = named(given ? "d_given" : "d_logits");
    const auto gradient = router.backward(found.routing, results_.experts, d_weights_);
    const std::int64_t columns = given ? K : E;
    d_router.add_rows(0, T, columns, [&](std::int64_t t, std::int64_t c) {
      const auto i = static_cast<std::size_t>(t * columns + c);
      return element_check{static_cast<double>(results_.d_router[i]),
                           gradient[i].value,
                           {0.0, 0.0, gradient[i].error}};
    });
    auto weights = named("routing_weights");
    weights.add_rows(0, T, K, [&](std::int64_t t, std::int64_t k) {
      const auto i = static_cast<std::size_t>(t * K + k);
      const number& w = found.routing.weights[i];
      return element_check{static_cast<double>(results_.weights[i]), w.value, {0.0, 0.0, w.error}};
    });
    found.tensors = {std::move(out), std::move(dx), std::move(d_gate_up), std::move(d_down)};
    if (F_shared > 0) {
      found.tensors.push_back(std::move(d_shared_gate_up));
      found.tensors.push_back(std::move(d_shared_down));
    }
    found.tensors.push_back(std::move(d_router));
    found.tensors.push_back(std::move(weights));
    found.sizes = std::move(sizes_);
    return found;
  }

 private:
  /// Rows that one expert computes.
  struct group {
    std::int64_t width = 0;
    const Element* gate_up = nullptr;
    const Element* down = nullptr;
    std::vector<index_type> tokens, pairs;
    std::vector<number> weights;
    std::vector<double> factors;
    std::vector<std::int64_t> kept;  // rows with a factor

    void add(index_type token, index_type pair, number weight, float factor) {
      if (factor != 0.0F) kept.push_back(static_cast<std::int64_t>(tokens.size()));
      tokens.push_back(token);
      pairs.push_back(pair);
      weights.push_back(weight);
      factors.push_back(static_cast<double>(factor));
    }
    std::int64_t rows() const { return static_cast<std::int64_t>(tokens.size()); }
  };
  /// A candidate's gradient of one expert.
  struct slab {
    const real* all;
    std::int64_t first;
    tensor_id before;
  };

  /// Sums over a token's rows: value, magnitude of the terms, what the terms are off by.
  struct token_sums {
    dense_matrix value, magnitude, carried;  // carried: its square where errors are likely ones

    void start(std::int64_t T, std::int64_t D) {
      for (auto* one : {&value, &magnitude, &carried})
        one->fill(T, D, [](std::int64_t, std::int64_t) { return 0.0; });
    }
    void add(const arithmetic& rules, std::int64_t t, std::int64_t d, number weight, number row) {
      const double term = weight.value * row.value;
      value(t, d) += term;
      magnitude(t, d) += std::abs(term);
      const double error =
          rules.join(std::abs(weight.value) * row.error, std::abs(row.value) * weight.error) +
          weight.error * row.error;
      carried(t, d) += rules.likely ? error * error : error;
    }
    void compare(const arithmetic& rules, double terms, const std::vector<Element>& got,
                 tensor_comparison& to) const {
      const std::int64_t columns = value.columns();
      to.add_rows(0, value.rows(), columns, [&](std::int64_t t, std::int64_t d) {
        const double operands = rules.likely ? std::sqrt(carried(t, d)) : carried(t, d);
        const double accumulation =
            rules.sum_gamma(terms) * (magnitude(t, d) + operands) + rules.tiny;
        return element_check{
            value_of(got[static_cast<std::size_t>(t * columns + d)]),
            value(t, d),
            {rules.storage(value(t, d), accumulation + operands), accumulation, operands}};
      });
    }
  };

  static double at(const std::vector<Element>& values, std::int64_t row, std::int64_t column,
                   std::int64_t columns) {
    return value_of(values[static_cast<std::size_t>(row * columns + column)]);
  }

  tensor_comparison named(const std::string& name) const {
    tensor_comparison one(name);
    if (name == injected_) one.inject(4.0);
    if (rules_.likely) one.scale(arithmetic::confidence());
    return one;
  }

  /// What C = A B, or A B^T, is off by: (gamma |A| + (1 + gamma) e(A)) |B|, or in likely errors
  /// gamma |A| |B| beside the root of e(A)^2 B^2.
  void product_error(turned which, double gamma, const dense_matrix& value,
                     const dense_matrix& error, const dense_matrix& other_size, dense_matrix& to) {
    if (!rules_.likely) {
      bound_.fill(value.rows(), value.columns(), [&](std::int64_t r, std::int64_t c) {
        return gamma * std::abs(value(r, c)) + (1.0 + gamma) * error(r, c);
      });
      multiply(which, bound_, other_size, to);
      return;
    }
    multiply(which, magnitudes(value), other_size, to);
    multiply(which, squares(error), squares(other_size), bound_);
    to.fill(to.rows(), to.columns(), [&](std::int64_t r, std::int64_t c) {
      return std::sqrt(gamma * gamma * to(r, c) * to(r, c) + bound_(r, c));
    });
  }

  /// Forward of all rows, backward of the kept ones, and the comparison of the expert's gradients.
  void compute(const group& here, const slab& got_gate_up, const slab& got_down,
               std::int64_t first_gate_up_row, std::int64_t first_down_row,
               tensor_comparison& d_gate_up, tensor_comparison& d_down) {
    const std::int64_t D = in_.of.shape.D, F = here.width;
    if (here.rows() > 0) {
      gate_up_.fill(D, 2 * F, [&](std::int64_t d, std::int64_t c) {
        return value_of(here.gate_up[d * 2 * F + c]);
      });
      down_.fill(F, D,
                 [&](std::int64_t f, std::int64_t d) { return value_of(here.down[f * D + d]); });
      gate_up_size_ = magnitudes(gate_up_);
      down_size_ = magnitudes(down_);
      forward(here);
    }
    backward(here);
    compare_gradients(here, got_gate_up, got_down, first_gate_up_row, first_down_row, d_gate_up,
                      d_down);
  }

  void forward(const group& here) {
    const std::int64_t D = in_.of.shape.D, F = here.width, n = here.rows();
    x_.fill(n, D, [&](std::int64_t r, std::int64_t d) {
      return at(in_.x, here.tokens[static_cast<std::size_t>(r)], d, D);
    });
    multiply(turned::none, x_, gate_up_, pre_);
    multiply(turned::none, magnitudes(x_), gate_up_size_, pre_error_);
    const double pre_gamma = rules_.product_gamma(static_cast<double>(D));
    h_.resize(n, F);
    h_error_.resize(n, F);
#pragma omp parallel for if (n * F > shared_work)
    for (std::int64_t r = 0; r < n; ++r) {
      for (std::int64_t c = 0; c < 2 * F; ++c)
        pre_error_(r, c) =
            rules_.store(number{pre_(r, c), pre_gamma * pre_error_(r, c) + rules_.tiny}).error;
      for (std::int64_t f = 0; f < F; ++f) {
        const number h =
            rules_.store(rules_.multiply(rules_.silu(number{pre_(r, f), pre_error_(r, f)}),
                                         {pre_(r, F + f), pre_error_(r, F + f)}));
        h_(r, f) = h.value;
        h_error_(r, f) = h.error;
      }
    }
    multiply(turned::none, h_, down_, y_);
    product_error(turned::none, rules_.product_gamma(static_cast<double>(F)), h_, h_error_,
                  down_size_, y_error_);
    // A token occurs once in an expert, so rows write to different places.
#pragma omp parallel for if (n * D > shared_work)
    for (std::int64_t r = 0; r < n; ++r) {
      const auto i = static_cast<std::size_t>(r);
      for (std::int64_t d = 0; d < D; ++d) {
        const number y = rules_.store(number{y_(r, d), y_error_(r, d) + rules_.tiny});
        out_.add(rules_, here.tokens[i], d, here.weights[i], y);
      }
      if (here.pairs[i] >= 0)
        sizes_[static_cast<std::size_t>(here.pairs[i])] =
            size_of(r, F, here.weights[i], here.tokens[i]);
    }
  }

  /// |w| ||dO|| ||h||, with norms in float and the forward-time proxy without ||dO||.
  number size_of(std::int64_t row, std::int64_t F, number weight, index_type token) const {
    const double single = arithmetic::of<float>().u;
    const auto norm = [&](double value, double operand_error, std::int64_t terms) -> number {
      // Half of the relative error of the sum of squares, a root, a rounding to float.
      const double relative =
          0.5 * rules_.sum_gamma(static_cast<double>(terms + 1)) + rules_.u + single;
      // Squares below the smallest normal number vanish.
      const double lost = std::sqrt(static_cast<double>(terms) * rules_.tiny);
      return {value, operand_error + relative * (value + operand_error) + lost};
    };
    double squares = 0, errors = 0;
    for (std::int64_t f = 0; f < F; ++f) {
      squares += h_(row, f) * h_(row, f);
      errors += h_error_(row, f) * h_error_(row, f);
    }
    const number h = norm(std::sqrt(squares), std::sqrt(errors), F);
    const bool proxy = in_.of.saved == lrmoe::saved_activations::proxy;
    const number g =
        proxy ? number{1.0, 0.0}
              : norm(gradient_norms_[static_cast<std::size_t>(token)], 0.0, in_.of.shape.D);
    const arithmetic in_float = arithmetic::of<float>();
    const number w{std::abs(weight.value), weight.error + single * std::abs(weight.value)};
    return in_float.multiply(in_float.multiply(w, g), h);
  }

  void backward(const group& here) {
    const std::int64_t D = in_.of.shape.D, F = here.width;
    const auto m = static_cast<std::int64_t>(here.kept.size());
    const auto row_of = [&](std::int64_t r) { return here.kept[static_cast<std::size_t>(r)]; };
    d_out_.fill(m, D, [&](std::int64_t r, std::int64_t d) {
      return at(in_.d_out, here.tokens[static_cast<std::size_t>(row_of(r))], d, D);
    });
    if (m == 0) return;
    multiply(turned::right, d_out_, down_, d_hidden_);
    multiply(turned::right, magnitudes(d_out_), down_size_, d_hidden_error_);
    const double hidden_gamma = rules_.product_gamma(static_cast<double>(D));
    const double inner_gamma = rules_.sum_gamma(static_cast<double>(F + 1));
    for (auto* one : {&d_pre_, &d_pre_error_}) one->resize(m, 2 * F);
    for (auto* one : {&scaled_h_, &scaled_h_error_}) one->resize(m, F);
#pragma omp parallel for if (m * F > shared_work)
    for (std::int64_t r = 0; r < m; ++r) {
      const std::int64_t row = row_of(r);
      const auto i = static_cast<std::size_t>(row);
      const number scale = rules_.multiply(number{here.factors[i], 0.0}, here.weights[i]);
      double inner = 0, magnitude = 0, carried = 0;
      for (std::int64_t f = 0; f < F; ++f) {
        const number d_hidden = rules_.store(
            number{d_hidden_(r, f), hidden_gamma * d_hidden_error_(r, f) + rules_.tiny});
        const number h{h_(row, f), h_error_(row, f)};
        inner += d_hidden.value * h.value;
        magnitude += std::abs(d_hidden.value * h.value);
        const double error =
            rules_.join(std::abs(d_hidden.value) * h.error, std::abs(h.value) * d_hidden.error) +
            h.error * d_hidden.error;
        carried += rules_.likely ? error * error : error;
        const number g{pre_(row, f), pre_error_(row, f)},
            up{pre_(row, F + f), pre_error_(row, F + f)};
        const number dh = rules_.multiply(scale, d_hidden);
        const number dg =
            rules_.store(rules_.multiply(rules_.multiply(dh, up), rules_.silu_derivative(g)));
        const number du = rules_.store(rules_.multiply(dh, rules_.silu(g)));
        const number weighted = rules_.store(rules_.multiply(scale, h));
        d_pre_(r, f) = dg.value, d_pre_error_(r, f) = dg.error;
        d_pre_(r, F + f) = du.value, d_pre_error_(r, F + f) = du.error;
        scaled_h_(r, f) = weighted.value, scaled_h_error_(r, f) = weighted.error;
      }
      if (rules_.likely) carried = std::sqrt(carried);
      if (here.pairs[i] >= 0)
        d_weights_[static_cast<std::size_t>(here.pairs[i])] =
            rules_.multiply(number{here.factors[i], 0.0},
                            {inner, carried + inner_gamma * (magnitude + carried) + rules_.tiny});
    }
    multiply(turned::right, d_pre_, gate_up_, y_);
    product_error(turned::right, rules_.product_gamma(static_cast<double>(2 * F)), d_pre_,
                  d_pre_error_, gate_up_size_, y_error_);
#pragma omp parallel for if (m * D > shared_work)
    for (std::int64_t r = 0; r < m; ++r)
      for (std::int64_t d = 0; d < D; ++d) {
        const number row = rules_.store(number{y_(r, d), y_error_(r, d) + rules_.tiny});
        dx_.add(rules_, here.tokens[static_cast<std::size_t>(row_of(r))], d, {1.0, 0.0}, row);
      }
  }

  /// dW = left^T right, added to what was there: m rows, blocks that may be rounded in between (four are
  /// allowed for), and the copies of an expert added up.
  void compare_gradients(const group& here, const slab& got_gate_up, const slab& got_down,
                         std::int64_t first_gate_up_row, std::int64_t first_down_row,
                         tensor_comparison& d_gate_up, tensor_comparison& d_down) {
    const std::int64_t D = in_.of.shape.D, F = here.width;
    const auto m = static_cast<std::int64_t>(here.kept.size());
    kept_x_.fill(m, D, [&](std::int64_t r, std::int64_t d) {
      return x_(here.kept[static_cast<std::size_t>(r)], d);
    });
    if (m == 0) {
      d_pre_.resize(0, 2 * F), d_pre_error_.resize(0, 2 * F);
      scaled_h_.resize(0, F), scaled_h_error_.resize(0, F);
    }
    one_gradient(kept_x_, d_pre_, d_pre_error_, true, m, got_gate_up, first_gate_up_row, d_gate_up);
    one_gradient(d_out_, scaled_h_, scaled_h_error_, false, m, got_down, first_down_row, d_down);
  }

  /// The exact operand on the left of the product, or on its right.
  void one_gradient(const dense_matrix& exact, const dense_matrix& other,
                    const dense_matrix& other_error, bool exact_left, std::int64_t m,
                    const slab& got, std::int64_t first_row, tensor_comparison& to) {
    const auto product = [&](const dense_matrix& a, const dense_matrix& b, dense_matrix& c) {
      if (exact_left)
        multiply(turned::left, a, b, c);
      else
        multiply(turned::left, b, a, c);
    };
    product(exact, other, gradient_);
    const dense_matrix exact_size = magnitudes(exact);
    product(exact_size, magnitudes(other), gradient_size_);
    if (rules_.likely)
      product(squares(exact), squares(other_error), gradient_error_);
    else
      product(exact_size, other_error, gradient_error_);
    const double gamma = m == 0 ? 0.0 : rules_.product_gamma(static_cast<double>(m + 4 + in_.of.R));
    const std::int64_t columns = gradient_.columns();
    to.add_rows(first_row, gradient_.rows(), columns, [&](std::int64_t r, std::int64_t c) {
      const std::int64_t i = got.first + r * columns + c;
      const double before = static_cast<double>(in_.before(got.before, i));
      const double carried =
          rules_.likely ? std::sqrt(gradient_error_(r, c)) : gradient_error_(r, c);
      const double tiny = m == 0 ? 0.0 : rules_.tiny;
      return element_check{
          static_cast<double>(got.all[i]),
          gradient_(r, c) + before,
          {0.0, gamma * (gradient_size_(r, c) + carried + std::abs(before)) + tiny, carried}};
    });
  }

  const layer_inputs<Element>& in_;
  const layer_results<Element>& results_;
  arithmetic rules_;
  std::string injected_;

  token_sums out_, dx_;
  std::vector<number> sizes_, d_weights_;  // (P)
  std::vector<double> gradient_norms_;     // (T)

  // Of the expert at hand.
  dense_matrix gate_up_, down_, gate_up_size_, down_size_;
  dense_matrix x_, pre_, pre_error_, h_, h_error_, y_, y_error_, bound_;
  dense_matrix d_out_, d_hidden_, d_hidden_error_, d_pre_, d_pre_error_, scaled_h_, scaled_h_error_,
      kept_x_;
  dense_matrix gradient_, gradient_size_, gradient_error_;
};

}  // namespace bench::compare
