// Every rank's layout against a simulation that moves labelled rows between ranks by the documented orders.
#include <tuple>

#include <lrmoe/exchange/rank_layout.hpp>
#include <lrmoe/placement/home_placement.hpp>

#include "catch.hpp"
#include "fixture.hpp"
#include "random_plan.hpp"

namespace {

using fixture::at;
using fixture::index_values;
using lrmoe::index_type;
using lrmoe::rank_layout;
using lrmoe::replica_plan;

/// A pair: its source, the segment that computes it in forward, its position among that source's rows of the
/// segment, and the segment that computes it in backward.
struct label {
  std::int64_t source, segment, position, backward;
  bool moves() const { return backward != segment; }
  auto operator<=>(const label&) const = default;
};
using labels = std::vector<label>;
using by_rank = std::vector<labels>;
using messages = std::vector<by_rank>;  // [from][to]

template <class Key>
labels sorted(labels rows, const Key& key) {
  std::stable_sort(rows.begin(), rows.end(),
                   [&](const label& a, const label& b) { return key(a) < key(b); });
  return rows;
}

/// What the ranks hold and send, from the definitions of the orders alone.
struct simulation {
  const replica_plan& plan;
  by_rank rows, selected;  // of each source, in source order; the kept ones of these
  by_rank computed, kept;  // of each rank, in expert order: forward and backward
  messages dispatched, gradients, listed, moved;

  simulation(const replica_plan& of, fixture::random& draw) : plan(of) {
    make_rows(draw);
    dispatched = send(rows, [](const label& p) { return p.segment; });
    by_rank leaving, listing;
    for (const labels& of_source : selected) {
      leaving.push_back(sorted(
          of_source, [](const label& p) { return std::tuple(p.backward, p.moves(), p.segment); }));
      listing.push_back(of_source);
      std::erase_if(listing.back(), [](const label& p) { return !p.moves(); });
    }
    gradients = send(leaving, [](const label& p) { return p.backward; });
    listed = send(listing, [](const label& p) { return p.segment; });
    by_rank passed_on;
    for (const labels& of_holder : arrive(listed))
      passed_on.push_back(
          sorted(of_holder, [](const label& p) { return std::pair(p.backward, p.source); }));
    moved = send(passed_on, [](const label& p) { return p.backward; });
    for (const labels& arrived : arrive(dispatched))
      computed.push_back(
          sorted(arrived, [](const label& p) { return std::pair(p.segment, p.source); }));
    for (const labels& arrived : arrive(gradients))
      kept.push_back(
          sorted(arrived, [](const label& p) { return std::pair(p.backward, p.source); }));
  }

  /// Source order, and a selection of random positions. The last of a segment's are those that move.
  void make_rows(fixture::random& draw) {
    for (std::int64_t s = 0; s < plan.R; ++s) {
      rows.emplace_back();
      selected.emplace_back();
      for (std::int64_t h = 0; h < plan.H; ++h) {
        index_values positions(at(plan.count(s, h)));
        std::iota(positions.begin(), positions.end(), 0);
        for (const index_type i : positions) rows.back().push_back({s, h, i, h});
        for (std::int64_t i = std::ssize(positions); i > 1; --i)
          std::swap(positions[at(i - 1)], positions[at(draw.integer(0, i - 1))]);
        positions.resize(at(plan.quota(s, h)));
        std::sort(positions.begin(), positions.end());
        std::vector<std::int64_t> targets;
        for (const auto& move : plan.moves)
          if (move.source == s && move.from == h)
            targets.insert(targets.end(), at(move.count), move.to);
        std::sort(targets.begin(), targets.end());
        targets.insert(targets.begin(), positions.size() - targets.size(), h);
        for (std::size_t i = 0; i < positions.size(); ++i)
          selected.back().push_back({s, h, positions[i], targets[i]});
      }
    }
  }

  template <class Segment>
  messages send(const by_rank& from, const Segment& segment) const {
    messages result(at(plan.R), by_rank(at(plan.R)));
    for (std::int64_t r = 0; r < plan.R; ++r)
      for (const label& p : from[at(r)]) result[at(r)][at(plan.rank[at(segment(p))])].push_back(p);
    return result;
  }
  /// What comes to each rank, by sender.
  by_rank arrive(const messages& sent) const {
    by_rank arrived(at(plan.R));
    for (const by_rank& of_sender : sent)
      for (std::int64_t r = 0; r < plan.R; ++r)
        arrived[at(r)].insert(arrived[at(r)].end(), of_sender[at(r)].begin(),
                              of_sender[at(r)].end());
    return arrived;
  }
};

labels joined(const by_rank& parts) {
  labels all;
  for (const labels& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

/// Row by row, what blocks say lies in the order `to`.
labels through(const lrmoe::row_blocks& blocks, const labels& from) {
  labels to;
  REQUIRE(blocks.to.size() == at(blocks.size() + 1));
  REQUIRE(blocks.base.size() == at(blocks.size()));
  CHECK(blocks.to.front() == 0);
  for (std::int64_t b = 0; b < blocks.size(); ++b)
    for (index_type i = 0; i < blocks.to[at(b + 1)] - blocks.to[at(b)]; ++i)
      to.push_back(from.at(at(blocks.from[at(b)] + i)));
  CHECK(blocks.rows() == std::ssize(to));
  return to;
}

void check_offsets(const std::vector<std::int64_t>& offsets, const by_rank& parts) {
  std::vector<std::int64_t> expected{0};
  for (const labels& part : parts) expected.push_back(expected.back() + std::ssize(part));
  CHECK(offsets == expected);
}

by_rank to_rank(const messages& sent, std::int64_t r) {
  by_rank parts;
  for (const by_rank& of_sender : sent) parts.push_back(of_sender[at(r)]);
  return parts;
}

template <class Segment>
void check_groups(const replica_plan& plan, const index_values& offsets, std::int64_t S,
                  const labels& rows, const Segment& segment) {
  index_values expected(at(S + 1), 0);
  for (const label& p : rows) ++expected[at(plan.slot[at(segment(p))] + 1)];
  std::partial_sum(expected.begin(), expected.end(), expected.begin());
  CHECK(offsets == expected);
}

void check_forward(const simulation& of, const rank_layout& layout, std::int64_t r,
                   std::int64_t S) {
  check_offsets(layout.sent, of.dispatched[at(r)]);
  CHECK(joined(of.dispatched[at(r)]) == of.rows[at(r)]);  // sent as it lies
  const by_rank arriving = to_rank(of.dispatched, r);
  check_offsets(layout.received, arriving);
  CHECK(layout.rows_here() == std::ssize(of.computed[at(r)]));
  CHECK(through(layout.arrival, joined(arriving)) == of.computed[at(r)]);
  check_groups(of.plan, layout.groups, S, of.computed[at(r)],
               [](const label& p) { return p.segment; });
}

void check_backward(const simulation& of, const rank_layout& layout, std::int64_t r,
                    std::int64_t S) {
  const labels leaving = joined(of.gradients[at(r)]);
  check_offsets(layout.kept_sent, of.gradients[at(r)]);
  if (layout.moves)
    CHECK(through(layout.departure, of.selected[at(r)]) == leaving);
  else
    CHECK(leaving == of.selected[at(r)]);
  const by_rank arriving = to_rank(of.gradients, r);
  check_offsets(layout.kept_received, arriving);
  CHECK(layout.kept_here() == std::ssize(of.kept[at(r)]));
  CHECK(through(layout.kept_arrival, joined(arriving)) == of.kept[at(r)]);
  check_groups(of.plan, layout.kept_groups, S, of.kept[at(r)],
               [](const label& p) { return p.backward; });
}

void check_moves(const simulation& of, const rank_layout& layout, std::int64_t r) {
  CHECK(layout.moves == !of.plan.moves.empty());
  const by_rank lists = to_rank(of.listed, r), moved = to_rank(of.moved, r);
  check_offsets(layout.listed_sent, of.listed[at(r)]);
  check_offsets(layout.listed_received, lists);
  check_offsets(layout.moved_sent, of.moved[at(r)]);
  check_offsets(layout.moved_received, moved);
  CHECK(layout.moved_here() == std::ssize(joined(moved)));
  CHECK(through(layout.listed, of.selected[at(r)]) == joined(of.listed[at(r)]));
  CHECK(through(layout.moved, joined(lists)) == joined(of.moved[at(r)]));
}

/// Where each kept row finds its activations: in the forward of its rank, or behind it.
void check_activations(const simulation& of, const rank_layout& layout, std::int64_t r) {
  const auto in_forward = [&](index_type base, const label& p) {
    const label& found = of.computed[at(r)].at(at(base + p.position));
    return std::tuple(found.source, found.segment, found.position) ==
           std::tuple(p.source, p.segment, p.position);
  };
  const labels moved_in = joined(to_rank(of.moved, r)), moved_away = joined(of.moved[at(r)]);
  std::int64_t wrong = 0;
  const auto visit = [](const lrmoe::row_blocks& blocks, const auto& check) {
    for (std::int64_t b = 0; b < blocks.size(); ++b)
      for (index_type i = blocks.to[at(b)]; i < blocks.to[at(b + 1)]; ++i)
        check(blocks.base[at(b)], i, i - blocks.to[at(b)]);
  };
  visit(layout.kept_arrival, [&](index_type base, index_type row, index_type within) {
    const label& p = of.kept[at(r)][at(row)];
    wrong += p.moves() != (base < 0);
    wrong += base < 0 ? !(moved_in.at(at(-1 - base + within)) == p) : !in_forward(base, p);
  });
  visit(layout.moved, [&](index_type base, index_type row, index_type) {
    wrong += !in_forward(base, moved_away[at(row)]);
  });
  CHECK(wrong == 0);
}

void check_all_ranks(const replica_plan& plan, std::int64_t S, fixture::random& draw,
                     std::vector<rank_layout>& layouts) {
  const simulation of(plan, draw);
  layouts.resize(at(plan.R));
  for (std::int64_t r = 0; r < plan.R; ++r) {
    INFO("rank " << r << " of " << plan.R);
    rank_layout& layout = layouts[at(r)];
    layout.make(plan, r, S);
    check_forward(of, layout, r, S);
    check_backward(of, layout, r, S);
    check_moves(of, layout, r);
    check_activations(of, layout, r);
  }
}

/// Two ranks that hold one expert each way: sources' pairs as given.
replica_plan two_ranks(index_values counts, index_values quotas) {
  replica_plan plan;
  plan.R = plan.H = 2;
  plan.first_of_rank = {0, 1, 2};
  plan.expert = {0, 0};
  plan.rank = {0, 1};
  plan.slot = {0, 0};
  plan.counts = std::move(counts);
  plan.quotas = std::move(quotas);
  plan.by_expert = false;
  return plan;
}

}  // namespace

TEST_CASE("every rank sends what the others expect, in the order in which they expect it",
          "[exchange]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  lrmoe::replica_planner planner;
  std::vector<rank_layout> layouts;  // used again: storage of a larger call must not show
  std::size_t with_moves = 0;
  for (int round = 0; round < 150; ++round) {
    INFO("round " << round);
    const auto of = fixture::random_plan(draw);
    const replica_plan& plan = planner.make(of.made, of.placed, of.split, draw.integer(0, 3) > 0);
    check_all_ranks(plan, of.placed.S(), draw, layouts);
    with_moves += !plan.moves.empty();
  }
  CHECK(with_moves > 20);
}

TEST_CASE("moves of any source to any holder are laid out alike on both sides", "[exchange]") {
  // Also those that no rebalancer finds: one segment may give to several and get from others.
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  lrmoe::replica_planner planner;
  std::vector<rank_layout> layouts;
  for (int round = 0; round < 60; ++round) {
    INFO("round " << round);
    const std::int64_t R = draw.integer(2, 6), E = draw.integer(1, 4);
    const auto of = fixture::random_plan(draw, fixture::random_placement(draw, R, E, E));
    replica_plan plan = planner.make(of.made, of.placed, of.split, false);
    for (index_type s = 0; s < plan.R; ++s)
      for (index_type from = 0; from < plan.H; ++from) {
        index_type left = plan.quota(s, from);
        for (index_type to = 0; to < plan.H; ++to) {
          if (to == from || plan.expert[at(to)] != plan.expert[at(from)]) continue;
          const auto count = static_cast<index_type>(draw.integer(0, left));
          if (count > 0) plan.moves.push_back({s, from, to, count});
          left -= count;
        }
      }
    check_all_ranks(plan, of.placed.S(), draw, layouts);
  }
}

TEST_CASE("a call without tokens, and homes in order, are laid out like others", "[exchange]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  lrmoe::replica_planner planner;
  std::vector<rank_layout> layouts;
  for (const std::int64_t R : {1, 2, 3, 8}) {
    const std::int64_t E = 5, S = (E + R - 1) / R + 1;
    const auto home = fixture::random_plan(draw, lrmoe::home_placement(R, S, E));
    const replica_plan& ordered = planner.make(home.made, home.placed, home.split, true);
    REQUIRE(ordered.by_expert);
    check_all_ranks(ordered, S, draw, layouts);

    const auto placed = fixture::random_placement(draw, R, S, E);
    const auto none = fixture::random_quotas(draw, R, E, index_values(at(R * E), 0));
    const index_values split(at(R * placed.replicas()), 0);
    check_all_ranks(planner.make(none, placed, split, true), S, draw, layouts);
    for (const rank_layout& layout : layouts) CHECK(layout.rows_here() == 0);
  }
}

TEST_CASE("more rows than 2^31 - 1 on one rank are refused on all, by name", "[exchange]") {
  constexpr index_type half = 1 << 30;
  const auto refusals = [](const replica_plan& plan) {
    std::vector<std::string> found;
    for (const std::int64_t rank : {0, 1})
      found.push_back(fixture::refusal([&] { rank_layout().make(plan, rank, 1); }));
    return found;
  };
  // Rank 1 computes what both sources send it.
  for (const auto& message : refusals(two_ranks({0, half - 1, 0, half}, {0, 5, 0, 5})))
    CHECK(message.empty());
  for (const auto& message : refusals(two_ranks({0, half, 0, half}, {0, 5, 0, 5})))
    CHECK(fixture::names(message, {"rank 1", "2147483648", "2^31 - 1"}));
  // Activations that move in count too.
  replica_plan moving = two_ranks({9, half - 4, 0, half - 5}, {9, 5, 0, 5});
  moving.moves = {{0, 0, 1, 8}};
  for (const auto& message : refusals(moving)) CHECK(message.empty());
  moving.moves = {{0, 0, 1, 9}};
  for (const auto& message : refusals(moving))
    CHECK(fixture::names(message, {"rank 1", "2147483648"}));

  // Offsets are right up to the last row.
  rank_layout layout;
  layout.make(two_ranks({0, half - 1, 0, half}, {0, 5, 0, 5}), 1, 1);
  CHECK(layout.rows_here() == 2147483647);
  CHECK(layout.arrival.to == index_values{0, half - 1, 2147483647});
  CHECK(layout.kept_arrival.base == index_values{0, half - 1});
}
