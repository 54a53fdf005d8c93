// Runs the five expert operations of a backend on one layout of row groups and compares every result with
// the oracle.
#pragma once

#include <array>

#include <lrmoe/experts/operations.hpp>

#include "catch.hpp"
#include "fixture.hpp"

namespace operations_test_support {

using fixture::array;
using fixture::device;
using fixture::space_type;
using lrmoe::index_type;
using oracle::integer;

/// Operations and the element type to test them with.
template <class Element, class Operations>
struct variant {
  using element = Element;
  using operations = Operations;
};

/// Rows of groups, and the kept part of them.
struct layout {
  std::vector<integer> counts;
  integer D, F;

  integer G() const { return static_cast<integer>(counts.size()); }
  integer rows() const { return std::accumulate(counts.begin(), counts.end(), integer{0}); }
  integer groups_in_use() const {
    return std::count_if(counts.begin(), counts.end(), [](integer n) { return n > 0; });
  }
  std::vector<index_type> offsets() const {
    std::vector<index_type> result{0};
    for (const integer n : counts) result.push_back(result.back() + static_cast<index_type>(n));
    return result;
  }
  std::vector<std::int32_t> group_of_row() const {
    std::vector<std::int32_t> result;
    for (integer g = 0; g < G(); ++g)
      result.insert(result.end(), static_cast<std::size_t>(counts[static_cast<std::size_t>(g)]),
                    static_cast<std::int32_t>(g));
    return result;
  }
};

/// Rows of `source` in the order of `index`.
inline std::vector<double> gathered(const std::vector<double>& source,
                                    const std::vector<index_type>& index, integer columns) {
  std::vector<double> result;
  for (const index_type i : index)
    result.insert(result.end(), source.begin() + i * columns, source.begin() + (i + 1) * columns);
  return result;
}

inline std::vector<index_type> some_rows(fixture::random& draw, integer count, integer source_rows,
                                         bool shuffled) {
  std::vector<index_type> result;
  for (integer i = 0; i < count; ++i)
    result.push_back(static_cast<index_type>(shuffled ? draw.integer(0, source_rows - 1) : i));
  return result;
}

/// Runs all five operations on one layout and compares every result with the oracle.
template <class Variant>
class operations_test {
 public:
  using Element = typename Variant::element;
  using real = lrmoe::accumulate_t<Element>;
  using operations = typename Variant::operations;
  static constexpr oracle::format format = fixture::format_of<Element>();

  struct outcome {
    std::vector<fixture::byte_string> bits;
    lrmoe::product_cost gate_up, down, down_backward, weight_gradient, gate_up_backward;
  };

  /// `shuffled`: rows are read through indices that repeat, else in place.
  operations_test(const layout& all, bool shuffled, std::size_t misaligned_by, std::uint64_t seed)
      : all_(all), kept_(all), shuffled_(shuffled), misaligned_(misaligned_by) {
    fixture::random draw(seed);
    const integer P = all.rows(), S = shuffled ? P + 3 : P;
    x_source_ = draw.normal(S * all.D, 1.0, format);
    d_out_source_ = draw.normal(S * all.D, 1.0, format);
    x_index_ = some_rows(draw, P, S, shuffled);

    in_.rules.storage = format;
    in_.shape = {P, all.D, all.F, all.G(), 1, 0};
    in_.x = gathered(x_source_, x_index_, all.D);
    in_.gate_up = draw.normal(all.G() * all.D * 2 * all.F, 1.0 / std::sqrt(all.D), format);
    in_.down = draw.normal(all.G() * all.F * all.D, 1.0 / std::sqrt(all.F), format);
    in_.experts = all.group_of_row();
    for (integer p = 0; p < P; ++p) {
      // Gates 0 and negative ones among them.
      const double w = p % 5 == 3 ? 0.0 : draw.uniform(-1.0, 1.0);
      in_.weights.push_back({oracle::round_to(in_.rules.accumulation(), w), 0.0});
    }

    // Without indices every row is kept, for only then rows and kept rows agree.
    integer row = 0;
    for (std::size_t g = 0; g < all.counts.size(); ++g) {
      kept_.counts[g] = 0;
      for (integer i = 0; i < all.counts[g]; ++i, ++row) {
        if (shuffled && draw.integer(0, 2) == 0) continue;
        kept_rows_.push_back(static_cast<index_type>(row));
        ++kept_.counts[g];
        // Factors are the estimator's: floats, whatever the element type.
        factors_.push_back(oracle::round_to(oracle::format::binary32, draw.uniform(1.0, 8.0)));
        weights_.push_back(in_.weights[static_cast<std::size_t>(row)].value);
      }
    }
    d_out_index_ = some_rows(draw, kept_.rows(), S, shuffled);
    d_gate_up_before_ =
        draw.normal(static_cast<integer>(in_.gate_up.size()), 1.0, in_.rules.accumulation());
    d_down_before_ =
        draw.normal(static_cast<integer>(in_.down.size()), 1.0, in_.rules.accumulation());
  }

  /// Bits of all results, compared with the oracle if `compare`. Gradients that are overwritten are poison
  /// before.
  outcome run(const space_type& space, bool compare,
              lrmoe::gradient_update update = lrmoe::gradient_update::add) const {
    const integer P = all_.rows(), M = kept_.rows(), D = all_.D, F = all_.F, G = all_.G();
    lrmoe::ledger account;
    lrmoe::workspace<device> scratch(space, account);
    operations on(scratch);

    // Weights of groups without rows are poison: they must not be read.
    array<Element> gate_up(poisoned_groups(in_.gate_up, D * 2 * F), misaligned_);
    array<Element> down(poisoned_groups(in_.down, F * D), misaligned_);
    const auto gate_up_view =
        lrmoe::tensor_view<const Element, device>(gate_up.tensor(G, D, 2 * F));
    const auto down_view = lrmoe::tensor_view<const Element, device>(down.tensor(G, F, D));
    const auto host_offsets = all_.offsets(), host_kept_offsets = kept_.offsets();
    const array<index_type> offsets(host_offsets), kept_offsets(host_kept_offsets);
    const lrmoe::row_groups<device> groups{offsets.vector(), host_offsets};
    const array<index_type> x_index(x_index_), kept_rows(kept_rows_), d_out_index(d_out_index_);
    const array<index_type> kept_x_index(gathered_index());
    const array<Element> x(x_source_, misaligned_), d_out(d_out_source_, misaligned_);
    const array<real> weights(weights_);
    const array<float> factors(factors_);
    const auto source = [&](const array<Element>& rows, const array<index_type>& index) {
      lrmoe::gathered_rows<Element, device> result;
      result.matrix = rows.matrix(static_cast<integer>(rows.size()) / D, D);
      if (shuffled_) result.index = index.vector();
      return result;
    };

    outcome result;
    // Three rows past the last group stay poison.
    constexpr integer spare = 3;
    const array<Element> pre((P + spare) * 2 * F, misaligned_), h((P + spare) * F, misaligned_),
        y((P + spare) * D, misaligned_);
    const array<float> norms(P + spare);
    result.gate_up =
        on.gate_up(space, source(x, x_index), groups, gate_up_view, pre.matrix(P + spare, 2 * F),
                   h.matrix(P + spare, F), norms.vector());
    result.down = on.down(space, lrmoe::gathered_rows<Element, device>{h.matrix(P + spare, F)},
                          groups, down_view, y.matrix(P + spare, D));

    lrmoe::swiglu_kept_rows<Element, device> rows;
    rows.x = source(x, kept_x_index);
    rows.pre.matrix = pre.matrix(P + spare, 2 * F);
    if (shuffled_) rows.pre.index = kept_rows.vector();
    rows.d_out = source(d_out, d_out_index);
    rows.groups = {kept_offsets.vector(), host_kept_offsets};
    rows.weights = weights.vector();
    rows.factors = factors.vector();
    const array<Element> d_pre((M + spare) * 2 * F, misaligned_),
        scaled_h((M + spare) * F, misaligned_), dx((M + spare) * D, misaligned_);
    const array<real> d_weights(M + spare);
    array<real> d_gate_up(d_gate_up_before_, misaligned_), d_down(d_down_before_, misaligned_);
    if (update == lrmoe::gradient_update::overwrite) d_gate_up.poison(), d_down.poison();
    result.down_backward = on.down_backward(space, rows, down_view, d_pre.matrix(M + spare, 2 * F),
                                            scaled_h.matrix(M + spare, F), d_weights.vector());
    result.weight_gradient = on.weight_gradient(
        space, lrmoe::gathered_rows<Element, device>{scaled_h.matrix(M + spare, F)}, rows.d_out,
        rows.groups, d_down.tensor(G, F, D), update);
    result.weight_gradient += on.weight_gradient(
        space, rows.x, lrmoe::gathered_rows<Element, device>{d_pre.matrix(M + spare, 2 * F)},
        rows.groups, d_gate_up.tensor(G, D, 2 * F), update);
    result.gate_up_backward = on.gate_up_backward(
        space, lrmoe::gathered_rows<Element, device>{d_pre.matrix(M + spare, 2 * F)}, rows.groups,
        gate_up_view, dx.matrix(M + spare, D));
    space.fence("lrmoe_test::operations");

    const auto keep_bits = [&](const auto&... arrays) {
      (result.bits.push_back(arrays.bits()), ...);
      const bool inside = (arrays.guards_intact() && ...);
      CHECK(inside);
    };
    keep_bits(pre, h, norms, y, d_pre, scaled_h, d_weights, dx, d_gate_up, d_down);
    if (compare)
      compare_with_oracle(pre, h, norms, y, d_pre, scaled_h, d_weights, dx, d_gate_up, d_down,
                          update);
    return result;
  }

  const layout& all() const { return all_; }
  const layout& kept() const { return kept_; }

 private:
  std::vector<double> poisoned_groups(std::vector<double> weights, integer group_size) const {
    for (integer g = 0; g < all_.G(); ++g)
      if (all_.counts[static_cast<std::size_t>(g)] == 0)
        std::fill_n(weights.begin() + g * group_size, group_size, std::nan(""));
    return weights;
  }

  std::vector<index_type> gathered_index() const {
    std::vector<index_type> result;
    for (const index_type row : kept_rows_)
      result.push_back(x_index_[static_cast<std::size_t>(row)]);
    return result;
  }

  /// The first rows equal the oracle's, those behind them are still poison.
  static void check_rows(const std::string& name, std::vector<double> got,
                         const oracle::tensor& expected) {
    REQUIRE(got.size() >= expected.data.size());
    for (std::size_t i = expected.data.size(); i < got.size(); ++i) REQUIRE(std::isnan(got[i]));
    got.resize(expected.data.size());
    check::check_close(name, got, expected);
  }

  template <class Elements, class Floats, class Reals>
  void compare_with_oracle(const Elements& pre, const Elements& h, const Floats& norms,
                           const Elements& y, const Elements& d_pre, const Elements& scaled_h,
                           const Reals& d_weights, const Elements& dx, const Reals& d_gate_up,
                           const Reals& d_down, lrmoe::gradient_update update) const {
    const integer P = all_.rows(), M = kept_.rows(), D = all_.D, F = all_.F;
    const oracle::activations at = oracle::forward(in_).pairs;
    oracle::tensor exact_pre(P, 2 * F), exact_norms(P, 1);
    for (integer p = 0; p < P; ++p) {
      oracle::sum_of_products squares(in_.rules);
      for (integer f = 0; f < F; ++f) {
        exact_pre(p, f) = at.g(p, f);
        exact_pre(p, F + f) = at.u(p, f);
        squares.add(at.h(p, f), at.h(p, f));
      }
      const double norm = std::sqrt(squares.result().value);
      exact_norms(p, 0) = {norm, squares.result().error / norm + std::ldexp(norm, -23)};
    }
    check_rows("pre", pre.values(), exact_pre);
    check_rows("h", h.values(), at.h);
    check_rows("norms", norms.values(), exact_norms);
    check_rows("y", y.values(), at.y);

    oracle::tensor exact_d_pre(M, 2 * F), exact_scaled(M, F), exact_d_weights(M, 1), exact_dx(M, D);
    oracle::tensor exact_gate_up(all_.G() * D, 2 * F), exact_down(all_.G() * F, D);
    // The oracle's rows are the kept ones, each with the dO that its index names.
    oracle::layer kept = in_;
    kept.x.clear();
    const std::vector<double> d_out = gathered(d_out_source_, d_out_index_, D);
    std::vector<std::vector<oracle::detail::row_gradients>> rows(all_.counts.size());
    std::vector<std::vector<integer>> tokens(all_.counts.size());
    for (integer m = 0; m < M; ++m) {
      const auto i = static_cast<std::size_t>(m);
      const integer p = kept_rows_[i];
      const integer g = in_.experts[static_cast<std::size_t>(p)];
      kept.x.insert(kept.x.end(), in_.x.begin() + p * D, in_.x.begin() + (p + 1) * D);
      auto row = oracle::detail::expert_backward(
          in_, in_.gate_up.data() + g * D * 2 * F, in_.down.data() + g * F * D, F, at, p,
          d_out.data() + m * D, {weights_[i], 0.0}, {factors_[i], 0.0}, oracle::mutation::none);
      for (integer f = 0; f < F; ++f) {
        exact_d_pre(m, f) = row.dg[static_cast<std::size_t>(f)];
        exact_d_pre(m, F + f) = row.du[static_cast<std::size_t>(f)];
        exact_scaled(m, f) = row.scaled_h[static_cast<std::size_t>(f)];
      }
      for (integer d = 0; d < D; ++d) exact_dx(m, d) = row.dx[static_cast<std::size_t>(d)];
      exact_d_weights(m, 0) = row.d_weight;
      rows[static_cast<std::size_t>(g)].push_back(std::move(row));
      tokens[static_cast<std::size_t>(g)].push_back(m);
    }
    for (std::size_t g = 0; g < rows.size(); ++g)
      oracle::detail::weight_gradients(kept, F, rows[g], tokens[g], d_out, exact_gate_up,
                                       exact_down, static_cast<integer>(g));
    check_rows("d_pre", d_pre.values(), exact_d_pre);
    check_rows("scaled_h", scaled_h.values(), exact_scaled);
    check_rows("d_weights", d_weights.values(), exact_d_weights);
    check_rows("dx", dx.values(), exact_dx);
    const auto before = [&](const std::vector<double>& numbers) {
      return update == lrmoe::gradient_update::add ? numbers
                                                   : std::vector<double>(numbers.size(), 0.0);
    };
    const auto gate_up_before = before(d_gate_up_before_), down_before = before(d_down_before_);
    check_rows("d_gate_up", d_gate_up.values(),
               oracle::accumulated(in_.rules, exact_gate_up, gate_up_before));
    check_rows("d_down", d_down.values(), oracle::accumulated(in_.rules, exact_down, down_before));
    // Groups without kept rows keep what they had, or are zero.
    const auto down_after = d_down.values(), gate_up_after = d_gate_up.values();
    for (std::size_t g = 0; g < rows.size(); ++g) {
      if (!rows[g].empty()) continue;
      const auto size = static_cast<std::size_t>(F * D);
      for (std::size_t i = g * size; i < (g + 1) * size; ++i)
        REQUIRE(down_after[i] == down_before[i]);
      for (std::size_t i = 2 * g * size; i < 2 * (g + 1) * size; ++i)
        REQUIRE(gate_up_after[i] == gate_up_before[i]);
    }
  }

  layout all_, kept_;
  bool shuffled_;
  std::size_t misaligned_;
  oracle::layer in_;
  std::vector<double> x_source_, d_out_source_, factors_, weights_;
  std::vector<index_type> x_index_, kept_rows_, d_out_index_;
  std::vector<double> d_gate_up_before_, d_down_before_;
};

inline constexpr std::array<lrmoe::gradient_update, 2> both_updates{
    lrmoe::gradient_update::add, lrmoe::gradient_update::overwrite};

/// Counts at which tiles and vector widths end; empty groups first, in the middle and last.
inline const layout edge_counts{{0, 1, 7, 0, 8, 9, 15, 16, 17, 127, 128, 129, 0}, 19, 13};

}  // namespace operations_test_support
