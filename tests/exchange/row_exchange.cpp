// Labelled rows there and back: experts that do nothing show where every row went, forward and backward.
#include <lrmoe/compaction/segment_order.hpp>
#include <lrmoe/exchange/logical.hpp>
#include <lrmoe/exchange/row_exchange.hpp>
#include <lrmoe/openmp/backend.hpp>
#include <lrmoe/placement/home_placement.hpp>

#include "catch.hpp"
#include "fixture.hpp"
#include "random_plan.hpp"

namespace {

using fixture::array;
using fixture::at;
using fixture::constant;
using fixture::device;
using fixture::index_values;
using lrmoe::index_type;
using lrmoe::saved_activations;
using lrmoe::logical::communicator;
using oracle::integer;

using backend = lrmoe::with_ranks<lrmoe::openmp::backend<>, communicator>;
constexpr integer D = 3, F = 2;

/// Tokens of all ranks, where their experts are, and what each pair is worth: its number, from 1.
struct problem {
  integer R, E, K, S;
  std::vector<index_values> ids;     // (R) of (T, K)
  std::vector<integer> first_token;  // (R+1)
  fixture::plan_case of;
  bool rebalance;

  index_type expert_of(integer pair) const {  // counted over all ranks
    integer r = 0;
    while (first_token[at(r + 1)] * K <= pair) ++r;
    return ids[at(r)][at(pair - first_token[at(r)] * K)];
  }
};

problem random_problem(fixture::random& draw, integer R) {
  problem p{.R = R,
            .E = draw.integer(1, 8),
            .K = 0,
            .S = 0,
            .ids = {},
            .first_token = {0},
            .of = {},
            .rebalance = draw.integer(0, 3) > 0};
  p.K = draw.integer(1, p.E);
  p.S = R == 1 ? p.E : (p.E + R - 1) / R + draw.integer(0, 3);
  index_values counts(at(R * p.E), 0);
  for (integer r = 0; r < R; ++r) {
    const integer T = draw.integer(0, 3) > 0 ? draw.integer(1, 15) : 0;
    p.ids.push_back(draw.routes(T, p.K, p.E));
    for (index_type& e : p.ids.back()) {
      if (draw.integer(0, 9) == 0)
        e = lrmoe::no_expert;
      else
        ++counts[at(r * p.E + e)];
    }
    p.first_token.push_back(p.first_token.back() + T);
  }
  p.of.placed =
      R == 1 ? lrmoe::home_placement(1, p.E, p.E) : fixture::random_placement(draw, R, p.S, p.E);
  p.of.split = fixture::random_split(draw, p.of.placed, counts);
  p.of.made = fixture::random_quotas(draw, R, p.E, std::move(counts));
  return p;
}

/// What all ranks found, one after the other.
struct findings {
  integer wrong = 0, moved = 0, planned_moves = 0;
  std::vector<integer> kept, computed;  // pairs
};

/// The program of one rank.
template <class Element>
class program {
 public:
  using real = lrmoe::accumulate_t<Element>;

  program(communicator joined, const problem& p, saved_activations saved, std::uint64_t seed,
          findings& found)
      : p_(p),
        saved_(saved),
        found_(found),
        rank_(joined.rank()),
        first_(p.first_token[at(rank_)]),
        T_(p.first_token[at(rank_ + 1)] - first_),
        on_(std::move(joined)),
        draw_(seed + static_cast<std::uint64_t>(rank_)),
        x_(labels(1.0)),
        d_out_(labels(-1.0)),
        weights_(numbers(T_ * p.K, [&](integer i) { return first_ * p.K + i + 1; })),
        ids_(p.ids[at(rank_)]) {
    plan_ = planner_.make(p.of.made, p.of.placed, p.of.split, p.rebalance);
    sort();
    select();
  }

  void run() {
    exchange_.plan(plan_, p_.S);
    exchange_.begin(D, N_, M_, true, saved_);
    forward();
    if (saved_ == saved_activations::proxy) {
      exchange_.begin_backward(D, 0, N_, M_);
      exchange_.pack(announce());
    }
    on_.scratch.fill_bytes(on_.space, 0xff);
    exchange_.begin_backward(D, saved_ == saved_activations::save ? F : 0, N_, M_);
    backward();
    if (rank_ == 0)
      for (const auto& move : plan_.moves) found_.planned_moves += move.count;
  }

  communicator leave() { return std::move(on_.ranks); }

 private:
  template <class Value>
  static std::vector<double> numbers(integer n, const Value& value) {
    std::vector<double> result;
    for (integer i = 0; i < n; ++i) result.push_back(static_cast<double>(value(i)));
    return result;
  }
  /// Rows that tell their token: its number from 1, and multiples of it.
  std::vector<double> labels(double sign) const {
    return numbers(T_ * D, [&](integer i) {
      return sign * static_cast<double>((first_ + i / D + 1) * (i % D + 1));
    });
  }
  void expect(bool right) { found_.wrong += !right; }
  template <class Row>
  bool is_label(const Row& row, integer token, double sign = 1.0) const {
    for (integer d = 0; d < D; ++d)
      if (static_cast<double>(row(d)) != sign * static_cast<double>((token + 1) * (d + 1)))
        return false;
    return true;
  }
  static auto row_of(const lrmoe::gathered_rows<Element, device>& rows, integer i) {
    const integer row = rows.index.extent(0) == 0 ? i : rows.index(i);
    return [=](integer d) { return rows.matrix(row, d); };
  }
  index_type expert_of_slot(integer slot) const {
    return p_.of.placed.expert_of_slot()[at(rank_ * p_.S + slot)];
  }

  void sort() {
    order_ =
        by_expert_.sort(on_.space, on_.scratch,
                        lrmoe::matrix_view<const index_type, device>(ids_.matrix(T_, p_.K)), p_.E);
    on_.space.fence("lrmoe_test::order");
    offsets_.assign(order_.offsets.data(), order_.offsets.data() + p_.E + 1);
    N_ = offsets_.back();
    if (!plan_.by_expert) order_ = by_segment_.sort(on_.space, plan_, rank_, order_, offsets_);
    on_.space.fence("lrmoe_test::segments");
  }

  /// Random rows of every segment, as many as its quota.
  void select() {
    index_values rows;
    host_kept_offsets_ = {0};
    for (integer h = 0; h < plan_.H; ++h) {
      const index_type count = plan_.count(rank_, h);
      if (count > 0) {
        index_values drawn = draw_.routes(1, plan_.quota(rank_, h), count);
        std::sort(drawn.begin(), drawn.end());
        for (const index_type i : drawn) rows.push_back(order_.offsets(h) + i);
      }
      host_kept_offsets_.push_back(static_cast<index_type>(rows.size()));
    }
    M_ = std::ssize(rows);
    rows_ = array<index_type>(rows);
    kept_offsets_ = array<index_type>(host_kept_offsets_);
    factors_ = array<float>(numbers(M_, [&](integer m) {
      found_.kept.push_back(first_ * p_.K + order_.pair_of_row(rows[at(m)]));
      return static_cast<double>(found_.kept.back()) + 0.25;
    }));
    selected_ = {rows_.vector(), factors_.vector(), {}};
  }

  void forward() {
    const auto arrived =
        exchange_.dispatch(x_.matrix(T_, D), order_, {order_.offsets, offsets_}, N_);
    on_.space.fence("lrmoe_test::dispatch");
    const array<Element> y(arrived.size * D);
    const array<float> here_norms(arrived.size), own_norms(N_);
    pre_ = array<Element>((arrived.size + exchange_.sizes().moved_here) * 2 * F);
    for (integer g = 0; g < p_.S; ++g) {
      for (integer i = arrived.groups.first(g); i < arrived.groups.first(g + 1); ++i) {
        const auto x = row_of(arrived.x, i);
        for (integer d = 0; d < D; ++d) y.data()[i * D + d] = x(d);
        // Who computed it, where the token's number is known from the first column.
        y.data()[i * D + 1] = fixture::element<Element>(static_cast<double>(rank_ * 100 + g));
        here_norms.data()[i] = static_cast<float>(2 * x(0));
        pre_.data()[i * 2 * F] = x(0);
        pre_.data()[i * 2 * F + 1] = fixture::element<Element>(static_cast<double>(rank_));
      }
    }
    const auto norms = exchange_.alone() ? here_norms.vector() : own_norms.vector();
    const auto returned =
        exchange_.combine(y.matrix(arrived.size, D), here_norms.vector(), norms, N_, true);
    on_.space.fence("lrmoe_test::combine");
    for (integer h = 0; h < plan_.H; ++h) {
      for (integer row = order_.offsets(h); row < order_.offsets(h + 1); ++row) {
        const integer token = first_ + order_.token_of_row(row) + 1;
        expect(returned(row, 0) == token && returned(row, 2) == 3 * token);
        expect(returned(row, 1) == plan_.rank[at(h)] * 100 + plan_.slot[at(h)]);
        expect(norms(row) == static_cast<float>(2 * token));
      }
    }
    on_.space.fence("lrmoe_test::forward");
  }

  lrmoe::arrived_kept<Element, device> announce() {
    leaving_ = exchange_.departing(selected_);
    gather_kept();
    const auto pre = saved_ == saved_activations::save
                         ? pre_.matrix(std::ssize(pre_.values()) / (2 * F), 2 * F)
                         : lrmoe::matrix_view<Element, device>{};
    return exchange_.announce(x_.matrix(T_, D), order_, selected_, leaving_, kept_, pre);
  }
  void gather_kept() {
    const lrmoe::routing<real, device> routed{ids_.matrix(T_, p_.K), weights_.matrix(T_, p_.K)};
    kept_ = lrmoe::gather_kept_pairs(on_.space, on_.scratch, order_, routed,
                                     {kept_offsets_.vector(), host_kept_offsets_},
                                     constant(leaving_.rows));
  }

  void backward() {
    lrmoe::arrived_kept<Element, device> here;
    if (saved_ == saved_activations::proxy) {
      leaving_ = exchange_.departing(selected_);
      gather_kept();
      here = exchange_.packed(x_.matrix(T_, D), leaving_, kept_);
    } else {
      here = announce();
    }
    const auto d_out = exchange_.send_gradients(d_out_.matrix(T_, D), kept_);
    on_.space.fence("lrmoe_test::announce");
    const array<Element> dx(here.size * D);
    const array<real> here_weights(here.size), own_weights(M_);
    expect(here.groups.end() == here.size);
    for (integer g = 0; g < p_.S; ++g) {
      for (integer i = here.groups.first(g); i < here.groups.first(g + 1); ++i) {
        const auto pair = static_cast<integer>(here.weights(i)) - 1;
        found_.computed.push_back(pair);
        expect(p_.expert_of(pair) == expert_of_slot(g));
        expect(here.factors(i) == static_cast<float>(pair) + 0.25f);
        expect(is_label(row_of(here.x, i), pair / p_.K));
        expect(is_label(row_of(d_out, i), pair / p_.K, -1.0));
        if (saved_ == saved_activations::save) {
          const Element* pre = pre_.data() + here.pre(i) * 2 * F;
          expect(pre[0] == pair / p_.K + 1);
          found_.moved += pre[1] != rank_;
        }
        for (integer d = 0; d < D; ++d)
          dx.data()[i * D + d] = fixture::element<Element>(static_cast<double>(pair + d));
        here_weights.data()[i] = static_cast<real>(3 * pair);
      }
    }
    const auto d_weights = exchange_.alone() ? here_weights.vector() : own_weights.vector();
    const auto returned =
        exchange_.return_gradients(dx.matrix(here.size, D), here_weights.vector(), d_weights);
    on_.space.fence("lrmoe_test::return");
    for (integer m = 0; m < M_; ++m) {
      const integer pair = first_ * p_.K + order_.pair_of_row(leaving_.rows(m));
      for (integer d = 0; d < D; ++d) expect(returned(m, d) == pair + d);
      expect(d_weights(m) == 3 * pair);
    }
  }

  const problem& p_;
  const saved_activations saved_;
  findings& found_;
  const integer rank_, first_, T_;
  lrmoe::context<backend> on_;
  fixture::random draw_;
  lrmoe::replica_planner planner_;
  lrmoe::replica_plan plan_;
  lrmoe::expert_sorter<device> by_expert_{on_.space, on_.memory};
  lrmoe::segment_sorter<device> by_segment_{on_.space, on_.memory};
  lrmoe::row_exchange<Element, backend> exchange_{on_};
  const array<Element> x_, d_out_;
  const array<real> weights_;
  const array<index_type> ids_;
  lrmoe::expert_order<device> order_;
  integer N_ = 0, M_ = 0;
  array<index_type> rows_, kept_offsets_;
  index_values offsets_, host_kept_offsets_;
  array<float> factors_;
  lrmoe::selection<device> selected_, leaving_;
  lrmoe::kept_pairs<real, device> kept_;
  array<Element> pre_;
};

template <class Element>
findings run_all(const problem& p, saved_activations saved, std::uint64_t seed) {
  findings found;
  lrmoe::logical::world world(static_cast<int>(p.R));
  world.run([&](communicator& joined) {
    program<Element> of_rank(std::move(joined), p, saved, seed, found);
    of_rank.run();
    joined = of_rank.leave();
  });
  return found;
}

}  // namespace

TEMPLATE_TEST_CASE("rows go to the rank and slot that the plan says, and back to their place",
                   "[exchange]", float, double) {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  integer moved = 0;
  for (const integer R : {1, 2, 3, 8}) {
    for (int round = 0; round < 12; ++round) {
      const problem p = random_problem(draw, R);
      for (const auto saved :
           {saved_activations::save, saved_activations::recompute, saved_activations::proxy}) {
        INFO("R = " << R << ", round " << round << ", saved " << static_cast<int>(saved));
        findings found = run_all<TestType>(p, saved, seed);
        CHECK(found.wrong == 0);
        std::sort(found.kept.begin(), found.kept.end());
        std::sort(found.computed.begin(), found.computed.end());
        CHECK(found.computed == found.kept);
        if (saved != saved_activations::save) continue;
        CHECK(found.moved == found.planned_moves);
        moved += found.moved;
      }
    }
  }
  CHECK(moved > 0);
}
