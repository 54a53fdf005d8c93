// Independent oracle of one mixture-of-experts layer: double precision, plain loops over
// std::vector, and no header of the library under test.
//
// Every result is a number: the exact value and a bound on the error that a correct implementation
// may show. With u the unit roundoff of the accumulation format, s the unit roundoff of the storage
// format and gamma_n = n u / (1 - n u), the bounds follow the arithmetic (Higham, Accuracy and
// Stability of Numerical Algorithms, chapter 3), in first order and whatever the summation order:
//   sum of n products   error <= gamma_(n+1) * sum |a_i b_i| + sum (|a_i| e(b_i) + |b_i| e(a_i))
//   smooth function f   error <= |f'(a)| e(a) + max|f''| e(a)^2 / 2 + 8 u |f(a)|
//   stored value        error <= e + s (|a| + e)
// bfloat16 has 8 significand bits, so s = 2^-8; float and double have 2^-24 and 2^-53. The stored
// intermediates are g, u, h, y, out, dh', dg, du, the scaled row c w h, a pair's dx row, and dx.
//
// With `emulate` set, the same loops round every operation to the formats, which gives the values
// that a correct implementation produces; tests of the checker use it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

namespace oracle {

using integer = std::int64_t;

/// An exact value and the largest deviation that the arithmetic explains.
struct number {
  double value = 0.0;
  double error = 0.0;
};

enum class format { binary64, binary32, bfloat16 };

inline double unit_roundoff(format f) {
  switch (f) {
    case format::binary64:
      return std::ldexp(1.0, -53);
    case format::binary32:
      return std::ldexp(1.0, -24);
    default:
      return std::ldexp(1.0, -8);
  }
}

/// Round to the nearest value of the format, ties to even.
inline double round_to(format f, double value) {
  if (f == format::binary64 || !std::isfinite(value)) return value;
  const float single = static_cast<float>(value);
  if (f == format::binary32) return single;
  std::uint32_t bits = 0;
  std::memcpy(&bits, &single, sizeof bits);
  bits += 0x7fffu + ((bits >> 16) & 1u);
  bits &= 0xffff0000u;
  float rounded = 0.0f;
  std::memcpy(&rounded, &bits, sizeof rounded);
  return rounded;
}

/// Formats of storage and accumulation, and the operations with their error bounds.
struct arithmetic {
  format storage = format::binary64;
  bool emulate = false;

  // Products of bfloat16 rows accumulate in float.
  format accumulation() const {
    return storage == format::binary64 ? format::binary64 : format::binary32;
  }
  double u() const { return unit_roundoff(accumulation()); }
  double gamma(integer n) const {
    const double nu = static_cast<double>(n) * u();
    return nu / (1.0 - nu);
  }
  double rounded(double value) const { return emulate ? round_to(accumulation(), value) : value; }
  // Results below the smallest normal number lose their relative accuracy.
  double underflow() const { return storage == format::binary64 ? 1e-290 : 1e-36; }

  number store(number a) const {
    const double s = unit_roundoff(storage);
    return {emulate ? round_to(storage, a.value) : a.value,
            a.error + s * (std::abs(a.value) + a.error) + underflow()};
  }
  number multiply(number a, number b) const {
    const double value = a.value * b.value;
    const double carried =
        std::abs(a.value) * b.error + std::abs(b.value) * a.error + a.error * b.error;
    return {rounded(value), carried + u() * (std::abs(value) + carried) + underflow()};
  }
  number add(number a, number b) const {
    const double magnitude = std::abs(a.value) + std::abs(b.value) + a.error + b.error;
    return {rounded(a.value + b.value), a.error + b.error + u() * magnitude};
  }
};

/// Sum of products with its magnitude sum.
class sum_of_products {
 public:
  explicit sum_of_products(const arithmetic& rules) : rules_(rules) {}
  void add(number a, number b) {
    const double product = a.value * b.value;
    value_ = rules_.rounded(value_ + rules_.rounded(product));
    carried_ += std::abs(a.value) * b.error + std::abs(b.value) * a.error + a.error * b.error;
    magnitude_ += std::abs(product);
    ++terms_;
  }
  void add(double a, double b) { add(number{a, 0.0}, number{b, 0.0}); }
  number result() const {
    if (terms_ == 0) return {0.0, 0.0};
    return {value_,
            carried_ + rules_.gamma(terms_ + 1) * (magnitude_ + carried_) + rules_.underflow()};
  }

 private:
  const arithmetic& rules_;
  double value_ = 0.0, magnitude_ = 0.0, carried_ = 0.0;
  integer terms_ = 0;
};

inline double sigmoid(double g) {
  return 1.0 / (1.0 + std::exp(-g));
}

inline number sigmoid(const arithmetic& rules, number g) {
  const double value = sigmoid(g.value);
  return {rules.rounded(value),
          value * (1.0 - value) * g.error + 0.05 * g.error * g.error + 8.0 * rules.u() * value};
}
inline number silu(const arithmetic& rules, number g) {
  const double s = sigmoid(g.value);
  const double slope = s * (1.0 + g.value * (1.0 - s));
  const double value = g.value * s;
  return {rules.rounded(value), std::abs(slope) * g.error + 0.25 * g.error * g.error +
                                    8.0 * rules.u() * std::abs(value) + rules.underflow()};
}
inline number silu_derivative(const arithmetic& rules, number g) {
  const double s = sigmoid(g.value);
  const double slope = s * (1.0 + g.value * (1.0 - s));
  const double curvature = s * (1.0 - s) * (2.0 + g.value * (1.0 - 2.0 * s));
  const double magnitude = s * (1.0 + std::abs(g.value) * (1.0 - s));
  return {rules.rounded(slope),
          std::abs(curvature) * g.error + 0.25 * g.error * g.error + 8.0 * rules.u() * magnitude};
}

/// Numbers in row-major order.
struct tensor {
  integer rows = 0, columns = 0;
  std::vector<number> data;

  tensor() = default;
  tensor(integer r, integer c) : rows(r), columns(c), data(static_cast<std::size_t>(r * c)) {}
  number& operator()(integer r, integer c) {
    return data[static_cast<std::size_t>(r * columns + c)];
  }
  const number& operator()(integer r, integer c) const {
    return data[static_cast<std::size_t>(r * columns + c)];
  }
  std::vector<double> values() const {
    std::vector<double> result(data.size());
    for (std::size_t i = 0; i < data.size(); ++i) result[i] = data[i].value;
    return result;
  }
};

struct extents {
  integer T = 0, D = 0, F = 0, E = 0, K = 0, F_shared = 0;
  integer P() const { return T * K; }
};

// ---------------------------------------------------------------------------------- routers

/// Chosen experts and weights, both (T, K) by descending selection score; no_expert marks padding.
inline constexpr std::int32_t no_expert = -1;
struct routing {
  std::vector<std::int32_t> experts;
  std::vector<number> weights;
  tensor probabilities;  // (T, E): softmax or sigmoid of all logits
};

namespace detail {

/// The `count` candidates with the largest keys, descending; ties by lowest index.
inline std::vector<std::int32_t> largest(const std::vector<double>& keys,
                                         std::vector<std::int32_t> candidates, integer count) {
  std::stable_sort(candidates.begin(), candidates.end(), [&](std::int32_t a, std::int32_t b) {
    return keys[static_cast<std::size_t>(a)] > keys[static_cast<std::size_t>(b)];
  });
  candidates.resize(static_cast<std::size_t>(count));
  return candidates;
}

inline std::vector<std::int32_t> iota(integer count) {
  std::vector<std::int32_t> result(static_cast<std::size_t>(count));
  std::iota(result.begin(), result.end(), 0);
  return result;
}

}  // namespace detail

/// Softmax over E logits, the K largest chosen; weights divided by their sum if `renormalise`.
inline routing softmax_top_k(const arithmetic& rules, const std::vector<double>& logits, integer T,
                             integer E, integer K, bool renormalise) {
  routing result;
  result.probabilities = tensor(T, E);
  const double u = rules.u();
  for (integer t = 0; t < T; ++t) {
    const std::vector<double> row(logits.begin() + t * E, logits.begin() + (t + 1) * E);
    const double largest = *std::max_element(row.begin(), row.end());
    double sum = 0.0, sum_error = 0.0;
    std::vector<double> power(row.size()), power_error(row.size());
    for (std::size_t e = 0; e < row.size(); ++e) {
      const double distance = row[e] - largest;
      power[e] = rules.rounded(std::exp(rules.rounded(distance)));
      const double relative =
          std::isfinite(distance) ? u * (std::abs(row[e]) + std::abs(largest) + 8.0) : 0.0;
      power_error[e] = power[e] * relative;
      sum = rules.rounded(sum + power[e]);
      sum_error += power_error[e];
    }
    sum_error += rules.gamma(E) * sum;
    for (integer e = 0; e < E; ++e) {
      const auto i = static_cast<std::size_t>(e);
      const double p = power[i] / sum;
      result.probabilities(t, e) = {rules.rounded(p), power_error[i] / sum + p * sum_error / sum +
                                                          2.0 * u * p + rules.underflow()};
    }
    const auto chosen = detail::largest(row, detail::iota(E), K);
    number total;
    for (const std::int32_t e : chosen) total = rules.add(total, result.probabilities(t, e));
    for (const std::int32_t e : chosen) {
      number w = result.probabilities(t, e);
      if (renormalise) {
        const double value = w.value / total.value;
        w = {rules.rounded(value),
             w.error / total.value + value * total.error / total.value + 2.0 * u * value};
      }
      result.experts.push_back(e);
      result.weights.push_back(w);
    }
  }
  return result;
}

/// Gradient of the logits (T, E) from the gradient of the weights (T, K).
inline tensor softmax_top_k_backward(const arithmetic& rules, const routing& forward,
                                     const tensor& d_weights, bool renormalise) {
  const integer T = d_weights.rows, K = d_weights.columns, E = forward.probabilities.columns;
  tensor d_logits(T, E);
  for (integer t = 0; t < T; ++t) {
    sum_of_products mean(rules);
    for (integer k = 0; k < K; ++k)
      mean.add(forward.weights[static_cast<std::size_t>(t * K + k)], d_weights(t, k));
    const number m = mean.result();
    const number minus_m{-m.value, m.error};
    if (!renormalise)
      for (integer e = 0; e < E; ++e)
        d_logits(t, e) = rules.multiply(forward.probabilities(t, e), minus_m);
    for (integer k = 0; k < K; ++k) {
      const auto pair = static_cast<std::size_t>(t * K + k);
      const std::int32_t e = forward.experts[pair];
      if (e == no_expert) continue;
      d_logits(t, e) = rules.multiply(forward.weights[pair], rules.add(d_weights(t, k), minus_m));
    }
  }
  return d_logits;
}

/// Added to the sum of scores that renormalisation divides by, as in DeepSeek-V3.
inline constexpr double sigmoid_guard = 1e-20;

struct sigmoid_options {
  integer groups = 1, groups_kept = 1;
  bool renormalise = true;
  double scaling = 1.0;
};

/// Sigmoid scores; selection by score + bias among the groups whose two best biased scores have
/// the largest sums (DeepSeek-V3, GLM-4.5); weights are the unbiased scores, divided by their sum if
/// `renormalise`, times `scaling`.
inline routing sigmoid_top_k(const arithmetic& rules, const std::vector<double>& logits,
                             const std::vector<double>& bias, integer T, integer E, integer K,
                             const sigmoid_options& options) {
  routing result;
  result.probabilities = tensor(T, E);
  const integer per_group = E / options.groups;
  for (integer t = 0; t < T; ++t) {
    std::vector<double> biased(static_cast<std::size_t>(E));
    for (integer e = 0; e < E; ++e) {
      const auto i = static_cast<std::size_t>(e);
      const number s = sigmoid(rules, {logits[static_cast<std::size_t>(t * E + e)], 0.0});
      result.probabilities(t, e) = s;
      biased[i] = rules.rounded(s.value + (bias.empty() ? 0.0 : bias[i]));
    }
    std::vector<double> group_score(static_cast<std::size_t>(options.groups));
    for (integer g = 0; g < options.groups; ++g) {
      std::vector<double> members(biased.begin() + g * per_group,
                                  biased.begin() + (g + 1) * per_group);
      std::sort(members.begin(), members.end(), std::greater<double>());
      group_score[static_cast<std::size_t>(g)] =
          members[0] + (members.size() > 1 ? members[1] : 0.0);
    }
    std::vector<std::int32_t> candidates;
    for (const std::int32_t g :
         detail::largest(group_score, detail::iota(options.groups), options.groups_kept))
      for (integer e = g * per_group; e < (g + 1) * per_group; ++e)
        candidates.push_back(static_cast<std::int32_t>(e));
    std::sort(candidates.begin(), candidates.end());
    const auto chosen = detail::largest(biased, candidates, K);
    number total{sigmoid_guard, 0.0};
    for (const std::int32_t e : chosen) total = rules.add(total, result.probabilities(t, e));
    for (const std::int32_t e : chosen) {
      number w = result.probabilities(t, e);
      if (options.renormalise) {
        const double value = w.value / total.value;
        w = {rules.rounded(value),
             w.error / total.value + value * total.error / total.value + 2.0 * rules.u() * value};
      }
      result.experts.push_back(e);
      result.weights.push_back(rules.multiply(w, {options.scaling, 0.0}));
    }
  }
  return result;
}

inline tensor sigmoid_top_k_backward(const arithmetic& rules, const routing& forward,
                                     const tensor& d_weights, const sigmoid_options& options) {
  const integer T = d_weights.rows, K = d_weights.columns, E = forward.probabilities.columns;
  tensor d_logits(T, E);
  for (integer t = 0; t < T; ++t) {
    number total{sigmoid_guard, 0.0};
    sum_of_products weighted(rules);
    for (integer k = 0; k < K; ++k) {
      const auto e = forward.experts[static_cast<std::size_t>(t * K + k)];
      if (e == no_expert) continue;
      total = rules.add(total, forward.probabilities(t, e));
      weighted.add(forward.probabilities(t, e), d_weights(t, k));
    }
    const number scaling{options.scaling, 0.0};
    for (integer k = 0; k < K; ++k) {
      const auto e = forward.experts[static_cast<std::size_t>(t * K + k)];
      if (e == no_expert) continue;
      const number s = forward.probabilities(t, e);
      const number slope = rules.multiply(s, {1.0 - s.value, s.error + rules.u()});
      number d_score = d_weights(t, k);
      if (options.renormalise) {
        const number inverse{1.0 / total.value, total.error / (total.value * total.value) +
                                                    2.0 * rules.u() / total.value};
        const number mean = rules.multiply(weighted.result(), inverse);
        d_score = rules.multiply(rules.add(d_score, {-mean.value, mean.error}), inverse);
      }
      d_logits(t, e) = rules.multiply(slope, rules.multiply(scaling, d_score));
    }
  }
  return d_logits;
}

// ---------------------------------------------------------------------------------- experts

/// What one layer call is given. Values are those that the storage format holds exactly.
struct layer {
  arithmetic rules;
  extents shape;
  std::vector<double> x;               // (T, D)
  std::vector<double> gate_up;         // (E, D, 2F), gate columns first
  std::vector<double> down;            // (E, F, D)
  std::vector<double> shared_gate_up;  // (D, 2 F_shared)
  std::vector<double> shared_down;     // (F_shared, D)
  std::vector<std::int32_t> experts;   // (T, K), no_expert for padding
  std::vector<number> weights;         // (T, K)
};

struct activations {
  tensor g, u, h, y;  // (rows, F), (rows, F), (rows, F), (rows, D)
};

struct forward_result {
  activations pairs;   // rows in pair order, P = T K; rows of padding pairs are zero
  activations shared;  // rows in token order
  tensor out;          // (T, D)
};

namespace detail {

inline void expert_forward(const layer& in, const double* x, const double* gate_up,
                           const double* down, integer F, activations& to, integer row) {
  const arithmetic& rules = in.rules;
  const integer D = in.shape.D;
  for (integer f = 0; f < F; ++f) {
    sum_of_products gate(rules), up(rules);
    for (integer d = 0; d < D; ++d) {
      gate.add(x[d], gate_up[d * 2 * F + f]);
      up.add(x[d], gate_up[d * 2 * F + F + f]);
    }
    to.g(row, f) = rules.store(gate.result());
    to.u(row, f) = rules.store(up.result());
    to.h(row, f) = rules.store(rules.multiply(silu(rules, to.g(row, f)), to.u(row, f)));
  }
  for (integer d = 0; d < D; ++d) {
    sum_of_products y(rules);
    for (integer f = 0; f < F; ++f) y.add(to.h(row, f), {down[f * D + d], 0.0});
    to.y(row, d) = rules.store(y.result());
  }
}

}  // namespace detail

inline forward_result forward(const layer& in) {
  const auto [T, D, F, E, K, F_shared] = in.shape;
  const arithmetic& rules = in.rules;
  forward_result result;
  result.pairs = {tensor(T * K, F), tensor(T * K, F), tensor(T * K, F), tensor(T * K, D)};
  result.shared = {tensor(T, F_shared), tensor(T, F_shared), tensor(T, F_shared), tensor(T, D)};
  result.out = tensor(T, D);
  for (integer p = 0; p < T * K; ++p) {
    const integer e = in.experts[static_cast<std::size_t>(p)];
    if (e == no_expert) continue;
    detail::expert_forward(in, in.x.data() + (p / K) * D, in.gate_up.data() + e * D * 2 * F,
                           in.down.data() + e * F * D, F, result.pairs, p);
  }
  if (F_shared > 0)
    for (integer t = 0; t < T; ++t)
      detail::expert_forward(in, in.x.data() + t * D, in.shared_gate_up.data(),
                             in.shared_down.data(), F_shared, result.shared, t);
  for (integer t = 0; t < T; ++t)
    for (integer d = 0; d < D; ++d) {
      sum_of_products out(rules);
      for (integer k = 0; k < K; ++k) {
        const auto p = static_cast<std::size_t>(t * K + k);
        if (in.experts[p] == no_expert) continue;
        out.add(in.weights[p], result.pairs.y(t * K + k, d));
      }
      if (F_shared > 0) out.add({1.0, 0.0}, result.shared.y(t, d));
      result.out(t, d) = rules.store(out.result());
    }
  return result;
}

// --------------------------------------------------------------------------------- backward

/// Faults that tests plant to see whether the checker notices.
enum class mutation {
  none,
  silu_derivative_missing,     // dg = dh u
  silu_derivative_is_sigmoid,  // the term g sigma' is missing
  coefficient_missing,         // c = 1 for every kept pair
  coefficient_applied_twice,   // c^2
  coefficient_not_in_weights,  // dw without c
  weight_not_applied,          // dh = c dh'
  weight_applied_twice,        // dh = c w^2 dh'
  dropped_pair_kept,           // one dropped pair contributes
  kept_pair_dropped,           // one kept pair does not
  gate_and_up_swapped,         // dg and du exchanged
  input_gradient_without_up,   // dx = dg W_gate^T
  token_of_next_pair,          // rows gathered with an index that is off by one
  shared_gradient_missing
};

struct gradients {
  tensor dx;              // (T, D)
  tensor d_weights;       // (T, K), zero for dropped pairs
  tensor gate_up;         // (E D, 2F)
  tensor down;            // (E F, D)
  tensor shared_gate_up;  // (D, 2 F_shared)
  tensor shared_down;     // (F_shared, D)
};

namespace detail {

struct row_gradients {
  std::vector<number> dg, du, scaled_h, dx;
  number d_weight;
};

inline row_gradients expert_backward(const layer& in, const double* gate_up, const double* down,
                                     integer F, const activations& at, integer row,
                                     const double* d_out, number w, number c, mutation fault) {
  const arithmetic& rules = in.rules;
  const integer D = in.shape.D;
  row_gradients result;
  result.dg.resize(static_cast<std::size_t>(F));
  result.du = result.scaled_h = result.dg;
  number scale = rules.multiply(c, w);
  if (fault == mutation::weight_not_applied) scale = c;
  if (fault == mutation::weight_applied_twice) scale = rules.multiply(scale, w);
  if (fault == mutation::coefficient_applied_twice) scale = rules.multiply(scale, c);
  if (fault == mutation::coefficient_missing) scale = w;
  sum_of_products weight(rules);
  for (integer f = 0; f < F; ++f) {
    const auto i = static_cast<std::size_t>(f);
    sum_of_products product(rules);
    for (integer d = 0; d < D; ++d) product.add(d_out[d], down[f * D + d]);
    const number dh_unscaled = rules.store(product.result());
    weight.add(dh_unscaled, at.h(row, f));
    const number dh = rules.multiply(scale, dh_unscaled);
    result.du[i] = rules.store(rules.multiply(dh, silu(rules, at.g(row, f))));
    number slope = silu_derivative(rules, at.g(row, f));
    if (fault == mutation::silu_derivative_missing) slope = {1.0, 0.0};
    if (fault == mutation::silu_derivative_is_sigmoid) slope = sigmoid(rules, at.g(row, f));
    result.dg[i] = rules.store(rules.multiply(rules.multiply(dh, at.u(row, f)), slope));
    if (fault == mutation::gate_and_up_swapped) std::swap(result.dg[i], result.du[i]);
    result.scaled_h[i] = rules.store(rules.multiply(scale, at.h(row, f)));
  }
  result.d_weight = rules.multiply(c, weight.result());
  if (fault == mutation::coefficient_applied_twice)
    result.d_weight = rules.multiply(c, result.d_weight);
  if (fault == mutation::coefficient_not_in_weights || fault == mutation::coefficient_missing)
    result.d_weight = weight.result();
  for (integer d = 0; d < D; ++d) {
    sum_of_products dx(rules);
    for (integer f = 0; f < F; ++f) {
      dx.add(result.dg[static_cast<std::size_t>(f)], {gate_up[d * 2 * F + f], 0.0});
      if (fault != mutation::input_gradient_without_up)
        dx.add(result.du[static_cast<std::size_t>(f)], {gate_up[d * 2 * F + F + f], 0.0});
    }
    result.dx.push_back(rules.store(dx.result()));
  }
  return result;
}

inline void weight_gradients(const layer& in, integer F, const std::vector<row_gradients>& rows,
                             const std::vector<integer>& tokens, const std::vector<double>& d_out,
                             tensor& gate_up, tensor& down, integer expert) {
  const integer D = in.shape.D;
  for (integer d = 0; d < D; ++d)
    for (integer f = 0; f < F; ++f) {
      sum_of_products gate(in.rules), up(in.rules), out(in.rules);
      for (std::size_t r = 0; r < rows.size(); ++r) {
        const auto at = static_cast<std::size_t>(tokens[r] * D + d);
        const auto i = static_cast<std::size_t>(f);
        gate.add({in.x[at], 0.0}, rows[r].dg[i]);
        up.add({in.x[at], 0.0}, rows[r].du[i]);
        out.add(rows[r].scaled_h[i], {d_out[at], 0.0});
      }
      gate_up(expert * D + d, f) = gate.result();
      gate_up(expert * D + d, F + f) = up.result();
      down(expert * F + f, d) = out.result();
    }
}

}  // namespace detail

/// Gradients of sum_t <d_out_t, sum_p c_p w_p y_p + shared_t>: the reduced backward pass in which
/// pair p has estimator weight c_p, with zero for dropped pairs.
inline gradients backward(const layer& in, const forward_result& at,
                          const std::vector<double>& d_out, const std::vector<double>& coefficients,
                          mutation fault = mutation::none) {
  const auto [T, D, F, E, K, F_shared] = in.shape;
  const integer P = T * K;
  std::vector<double> c = coefficients;
  for (integer p = 0; p < P; ++p) {
    const auto i = static_cast<std::size_t>(p);
    if (in.experts[i] == no_expert) c[i] = 0.0;
  }
  for (std::size_t p = 0; p < c.size(); ++p) {
    if (in.experts[p] == no_expert) continue;
    if (fault == mutation::dropped_pair_kept && c[p] == 0.0) {
      c[p] = 1.0;
      break;
    }
    if (fault == mutation::kept_pair_dropped && c[p] != 0.0) {
      c[p] = 0.0;
      break;
    }
  }

  gradients result;
  result.dx = tensor(T, D);
  result.d_weights = tensor(T, K);
  result.gate_up = tensor(E * D, 2 * F);
  result.down = tensor(E * F, D);
  result.shared_gate_up = tensor(F_shared > 0 ? D : 0, 2 * F_shared);
  result.shared_down = tensor(F_shared, D);

  std::vector<std::vector<detail::row_gradients>> rows(static_cast<std::size_t>(E));
  std::vector<std::vector<integer>> tokens(static_cast<std::size_t>(E));
  std::vector<std::vector<number>> dx_terms(static_cast<std::size_t>(T * D));
  for (integer p = 0; p < P; ++p) {
    const auto i = static_cast<std::size_t>(p);
    if (c[i] == 0.0) continue;
    const integer e = in.experts[i];
    integer t = p / K;
    if (fault == mutation::token_of_next_pair) t = ((p + 1) % P) / K;
    auto row = detail::expert_backward(in, in.gate_up.data() + e * D * 2 * F,
                                       in.down.data() + e * F * D, F, at.pairs, p,
                                       d_out.data() + t * D, in.weights[i], {c[i], 0.0}, fault);
    result.d_weights(p / K, p % K) = row.d_weight;
    for (integer d = 0; d < D; ++d)
      dx_terms[static_cast<std::size_t>((p / K) * D + d)].push_back(
          row.dx[static_cast<std::size_t>(d)]);
    rows[static_cast<std::size_t>(e)].push_back(std::move(row));
    tokens[static_cast<std::size_t>(e)].push_back(t);
  }
  for (integer e = 0; e < E; ++e)
    detail::weight_gradients(in, F, rows[static_cast<std::size_t>(e)],
                             tokens[static_cast<std::size_t>(e)], d_out, result.gate_up,
                             result.down, e);
  if (F_shared > 0 && fault != mutation::shared_gradient_missing) {
    std::vector<detail::row_gradients> shared_rows;
    std::vector<integer> all;
    for (integer t = 0; t < T; ++t) {
      shared_rows.push_back(detail::expert_backward(
          in, in.shared_gate_up.data(), in.shared_down.data(), F_shared, at.shared, t,
          d_out.data() + t * D, {1.0, 0.0}, {1.0, 0.0}, fault));
      all.push_back(t);
      for (integer d = 0; d < D; ++d)
        dx_terms[static_cast<std::size_t>(t * D + d)].push_back(
            shared_rows.back().dx[static_cast<std::size_t>(d)]);
    }
    detail::weight_gradients(in, F_shared, shared_rows, all, d_out, result.shared_gate_up,
                             result.shared_down, 0);
  }
  for (integer t = 0; t < T; ++t)
    for (integer d = 0; d < D; ++d) {
      sum_of_products sum(in.rules);
      for (const number& term : dx_terms[static_cast<std::size_t>(t * D + d)])
        sum.add({1.0, 0.0}, term);
      result.dx(t, d) = in.rules.store(sum.result());
    }
  return result;
}

/// `before` plus the gradient, in the accumulation format. A product that accumulates may do so in
/// blocks of its inner extent, each rounding the running value; four are allowed for.
inline tensor accumulated(const arithmetic& rules, tensor gradient,
                          const std::vector<double>& before) {
  for (std::size_t i = 0; i < gradient.data.size(); ++i) {
    number& g = gradient.data[i];
    const double magnitude = std::abs(g.value) + g.error + std::abs(before[i]);
    g = {rules.rounded(g.value + before[i]), g.error + rules.gamma(4) * magnitude};
  }
  return gradient;
}

// -------------------------------------------------------------------- scores and selections

/// score_p = w^2 |dO_t|^2 |h_p|^2, zero for padding.
inline std::vector<number> lrm_scores(const layer& in, const forward_result& at,
                                      const std::vector<double>& d_out) {
  const auto [T, D, F, E, K, F_shared] = in.shape;
  std::vector<number> scores(static_cast<std::size_t>(T * K));
  for (integer p = 0; p < T * K; ++p) {
    const auto i = static_cast<std::size_t>(p);
    if (in.experts[i] == no_expert) continue;
    sum_of_products out(in.rules), h(in.rules);
    for (integer d = 0; d < D; ++d) {
      const double value = d_out[static_cast<std::size_t>((p / K) * D + d)];
      out.add(value, value);
    }
    for (integer f = 0; f < F; ++f) h.add(at.pairs.h(p, f), at.pairs.h(p, f));
    const number squared = in.rules.multiply(in.weights[i], in.weights[i]);
    scores[i] = in.rules.multiply(squared, in.rules.multiply(out.result(), h.result()));
  }
  return scores;
}

/// Pairs of each expert, in ascending order.
inline std::vector<std::vector<integer>> pairs_by_expert(const std::vector<std::int32_t>& experts,
                                                         integer E) {
  std::vector<std::vector<integer>> result(static_cast<std::size_t>(E));
  for (std::size_t p = 0; p < experts.size(); ++p)
    if (experts[p] != no_expert)
      result[static_cast<std::size_t>(experts[p])].push_back(static_cast<integer>(p));
  return result;
}

/// The q members with the highest scores, ties by lowest member; ascending.
inline std::vector<integer> top(const std::vector<integer>& members,
                                const std::vector<double>& scores, integer q) {
  std::vector<integer> sorted = members;
  std::sort(sorted.begin(), sorted.end(), [&](integer a, integer b) {
    const double sa = scores[static_cast<std::size_t>(a)], sb = scores[static_cast<std::size_t>(b)];
    return sa != sb ? sa > sb : a < b;
  });
  sorted.resize(static_cast<std::size_t>(q));
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

/// pi_i = min(1, a_i / tau) with sum pi = q, for a_i = sqrt(score_i) of one segment. Needs at least
/// q positive scores.
inline std::vector<double> inclusion_probabilities(const std::vector<double>& scores, integer q) {
  std::vector<double> sorted;
  for (const double s : scores) sorted.push_back(std::sqrt(s));
  std::vector<double> roots = sorted;
  std::sort(sorted.begin(), sorted.end(), std::greater<double>());
  double rest = std::accumulate(sorted.rbegin(), sorted.rend(), 0.0);
  double tau = 0.0;
  for (integer certain = 0; certain < q; ++certain) {
    tau = rest / static_cast<double>(q - certain);
    if (sorted[static_cast<std::size_t>(certain)] < tau) break;
    rest = std::accumulate(sorted.rbegin(), sorted.rend() - certain - 1, 0.0);
  }
  std::vector<double> result;
  for (const double a : roots) result.push_back(tau > 0.0 ? std::min(1.0, a / tau) : 1.0);
  return result;
}

}  // namespace oracle
