// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include <Kokkos_Array.hpp>

#include <lrmoe/detail/row_blocks.hpp>

/// Kernels over the rows of matrices, written once for processors and GPUs. On a processor a thread has a
/// row to itself and walks it in long blocks, which compilers vectorise; on a GPU the lanes of a warp share
/// a row and take chunks of 16 bytes, of which a lane loads some before it uses the first.
///
///   const bool chunked = in_chunks<Space>(columns, from, to);
///   for_each_row("label", space, rows, KOKKOS_LAMBDA(const row_lanes<Space>& lanes, std::int64_t i) {
///     lanes.template for_each_block<Element, ahead>(
///         columns, chunked,
///         [&]<class Block>(const Block& block, typename Block::values& values) {
///           block.for_each([&](int d) { values[d] *= 2; });
///           block.store(&to(i, 0), values);
///         },
///         &from(i, 0));
///   });
namespace lrmoe::detail {

template <class ExecutionSpace>
inline constexpr bool on_gpu =
    !Kokkos::SpaceAccessibility<Kokkos::HostSpace,
                                typename ExecutionSpace::memory_space>::accessible;

/// Whether rows of so many columns are whole chunks of 16 bytes in each of the matrices. Only GPUs ask.
template <class ExecutionSpace, class... Matrices>
bool in_chunks([[maybe_unused]] std::int64_t columns,
               [[maybe_unused]] const Matrices&... matrices) {
  if constexpr (on_gpu<ExecutionSpace>) {
    const auto whole = [&](const auto& matrix) {
      constexpr std::size_t element = sizeof(*matrix.data());
      return matrix.size() == 0 ||
             (reinterpret_cast<std::uintptr_t>(matrix.data()) % 16 == 0 &&
              matrix.stride(0) * element % 16 == 0 && columns * element % 16 == 0);
    };
    return (... && whole(matrices));
  } else {
    return true;
  }
}

template <class Candidate>
KOKKOS_FORCEINLINE_FUNCTION void keep_first(const Candidate& candidate, Candidate& best) {
  if (candidate.before(best)) best = candidate;
}

/// The reduction to the first candidate of an order, as Kokkos wants it.
template <class Candidate>
struct first_of {
  using reducer = first_of;
  using value_type = Candidate;
  using result_view_type = Kokkos::View<Candidate, Kokkos::AnonymousSpace, Kokkos::MemoryUnmanaged>;
  Candidate& best;

  KOKKOS_FUNCTION void join(Candidate& to, const Candidate& from) const { keep_first(from, to); }
  KOKKOS_FUNCTION void init(Candidate& to) const { to = Candidate{}; }
  KOKKOS_FUNCTION Candidate& reference() const { return best; }
  KOKKOS_FUNCTION result_view_type view() const { return result_view_type(&best); }
  KOKKOS_FUNCTION bool references_scalar() const { return true; }
};

/// Numbers of a row that are looked at several times. A lane of a GPU keeps its first ones; all others are
/// asked for again, on a processor too, where they are near.
template <class ValueOf, int kept>
struct row_values {
  using value_type = std::remove_cvref_t<decltype(std::declval<ValueOf>()(index_type{}))>;
  index_type size;
  ValueOf value_of;
  Kokkos::Array<value_type, kept> of_lane;
};

/// The lanes that share a row: on a processor a single one.
template <class ExecutionSpace, bool Gpu = on_gpu<ExecutionSpace>>
class row_lanes {
 public:
  /// body(block, values...) for every block of columns, with what `rows` have there. A lane of a GPU loads
  /// `ahead` blocks of the rows before it computes with the first, if blocks are chunks.
  template <class Element, int ahead, class Body, class... Row>
  KOKKOS_FORCEINLINE_FUNCTION void for_each_block(std::int64_t columns, bool /* chunked */,
                                                  const Body& body, const Row*... rows) const {
    constexpr int size = host_block<Element>::size;
    const auto visit = [&](const host_block<Element>& block) {
      with_values(block, body, block.fetch(rows)...);
    };
    std::int64_t first = 0;
    for (; first + size <= columns; first += size) visit({first, size});
    if (first < columns) visit({first, static_cast<int>(columns - first)});
  }

  /// The total of a row, known to every lane: body(block, total, values...) adds what a block has.
  template <class Element, int ahead, class Body, class... Row>
  KOKKOS_FORCEINLINE_FUNCTION accumulate_t<Element> sum_blocks(std::int64_t columns, bool chunked,
                                                               const Body& body,
                                                               const Row*... rows) const {
    accumulate_t<Element> total = 0;
    for_each_block<Element, ahead>(
        columns, chunked,
        [&](const auto& block, auto&... values) { body(block, total, values...); }, rows...);
    return total;
  }

  /// to(i)[d] = from[d] for i in [0, n), but where to(i) is null. A lane of a GPU loads what it has of the row
  /// before it stores, and fills one copy after the other.
  template <class Element, class To>
  KOKKOS_FORCEINLINE_FUNCTION void copy(const Element* from, std::int64_t columns,
                                        bool /* chunked */, index_type n, const To& to) const {
    for (index_type i = 0; i < n; ++i) {
      Element* const row = to(i);
      if (row == nullptr) continue;
      for (std::int64_t d = 0; d < columns; ++d) row[d] = from[d];
    }
  }

  /// The sum of the row's squares, known to every lane.
  template <class Element>
  KOKKOS_FORCEINLINE_FUNCTION accumulate_t<Element> sum_squares(const Element* row,
                                                                std::int64_t columns,
                                                                bool /* chunked */) const {
    accumulate_t<Element> sum = 0;
    for (std::int64_t d = 0; d < columns; ++d) {
      const auto value = static_cast<accumulate_t<Element>>(row[d]);
      sum += value * value;
    }
    return sum;
  }

  /// body() once for the row.
  template <class Body>
  KOKKOS_FORCEINLINE_FUNCTION void once(const Body& body) const {
    body();
  }

  /// body(i) for i in [0, n); lanes of a GPU share them, and each knows afterwards what the others wrote.
  template <class Body>
  KOKKOS_FORCEINLINE_FUNCTION void for_each(index_type n, const Body& body) const {
    for (index_type i = 0; i < n; ++i) body(i);
  }

  /// The sum of term(i) for i in [0, n), known to every lane.
  template <class Real, class Term>
  KOKKOS_FORCEINLINE_FUNCTION Real sum(index_type n, const Term& term) const {
    Real total = 0;
    for (index_type i = 0; i < n; ++i) total += term(i);
    return total;
  }

  /// The numbers value_of(i), i in [0, n), to be looked at several times.
  template <class ValueOf>
  KOKKOS_FORCEINLINE_FUNCTION row_values<ValueOf, 0> values(index_type n,
                                                            const ValueOf& value_of) const {
    return {n, value_of, {}};
  }

  /// The sum of term(i, value) over values, known to every lane.
  template <class ValueOf, int kept, class Term>
  KOKKOS_FORCEINLINE_FUNCTION auto sum(const row_values<ValueOf, kept>& values,
                                       const Term& term) const {
    typename row_values<ValueOf, kept>::value_type total = 0;
    for (index_type i = 0; i < values.size; ++i) total += term(i, values.value_of(i));
    return total;
  }

  /// The one of candidate(i, value) over values that is before() all others, known to every lane; Candidate{},
  /// which comes last in that order, where there is none.
  template <class Candidate, class Values, class CandidateOf>
  KOKKOS_FORCEINLINE_FUNCTION Candidate first(const Values& values,
                                              const CandidateOf& candidate) const {
    Candidate best{};
    for (index_type i = 0; i < values.size; ++i) keep_first(candidate(i, values.value_of(i)), best);
    return best;
  }
};

template <class ExecutionSpace>
class row_lanes<ExecutionSpace, true> {
 public:
  using member_type = typename Kokkos::TeamPolicy<ExecutionSpace>::member_type;
  KOKKOS_FORCEINLINE_FUNCTION explicit row_lanes(const member_type& team) : team_(team) {}

  template <class Element, int ahead, class Body, class... Row>
  KOKKOS_FORCEINLINE_FUNCTION void for_each_block(std::int64_t columns, bool chunked,
                                                  const Body& body, const Row*... rows) const {
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team_, warp), [&](const int lane) {
      const auto visit = [&](const auto& block, const auto&... chunks) {
        with_values(block, body, chunks...);
      };
      walk<Element, ahead>(lane, columns, chunked, visit, rows...);
    });
  }

  template <class Element, int ahead, class Body, class... Row>
  KOKKOS_FORCEINLINE_FUNCTION accumulate_t<Element> sum_blocks(std::int64_t columns, bool chunked,
                                                               const Body& body,
                                                               const Row*... rows) const {
    using real = accumulate_t<Element>;
    real total = 0;
    Kokkos::parallel_reduce(
        Kokkos::ThreadVectorRange(team_, warp),
        [&](const int lane, real& part) {
          const auto add = [&](const auto& block, auto&... values) {
            body(block, part, values...);
          };
          const auto visit = [&](const auto& block, const auto&... chunks) {
            with_values(block, add, chunks...);
          };
          walk<Element, ahead>(lane, columns, chunked, visit, rows...);
        },
        total);
    return total;
  }

  template <class Element, class To>
  KOKKOS_FORCEINLINE_FUNCTION void copy(const Element* from, std::int64_t columns, bool chunked,
                                        index_type n, const To& to) const {
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team_, warp), [&](const int lane) {
      if (chunked) {
        copy_blocks<lane_block<Element, static_cast<int>(16 / sizeof(Element))>, 8>(lane, from,
                                                                                    columns, n, to);
      } else {
        copy_blocks<lane_block<Element, 1>, 1>(lane, from, columns, n, to);
      }
    });
  }

  template <class Element>
  KOKKOS_FORCEINLINE_FUNCTION accumulate_t<Element> sum_squares(const Element* row,
                                                                std::int64_t columns,
                                                                bool chunked) const {
    return sum_blocks<Element, 4>(
        columns, chunked,
        [&](const auto& block, auto& squares, const auto& values) {
          block.sum(squares, [&](const int d) { return values[d] * values[d]; });
        },
        row);
  }

  template <class Body>
  KOKKOS_FORCEINLINE_FUNCTION void once(const Body& body) const {
    Kokkos::single(Kokkos::PerThread(team_), body);
  }

  template <class Body>
  KOKKOS_FORCEINLINE_FUNCTION void for_each(index_type n, const Body& body) const {
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team_, n), body);
  }

  template <class Real, class Term>
  KOKKOS_FORCEINLINE_FUNCTION Real sum(index_type n, const Term& term) const {
    Real total = 0;
    Kokkos::parallel_reduce(
        Kokkos::ThreadVectorRange(team_, n), [&](index_type i, Real& part) { part += term(i); },
        total);
    return total;
  }

  template <class ValueOf>
  KOKKOS_FORCEINLINE_FUNCTION auto values(index_type n, const ValueOf& value_of) const {
    row_values<ValueOf, values_of_lane> read{n, value_of, {}};
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team_, warp), [&](const int lane) {
      for (int j = 0; j < values_of_lane && j * warp < n; ++j) {
        const index_type i = j * warp + lane;
        if (i < n) read.of_lane[j] = value_of(i);
      }
    });
    return read;
  }

  template <class ValueOf, int kept, class Term>
  KOKKOS_FORCEINLINE_FUNCTION auto sum(const row_values<ValueOf, kept>& values,
                                       const Term& term) const {
    using real = typename row_values<ValueOf, kept>::value_type;
    real total = 0;
    Kokkos::parallel_reduce(
        Kokkos::ThreadVectorRange(team_, warp),
        [&](const int lane, real& part) {
          for_each_value(lane, values,
                         [&](const index_type i, const real value) { part += term(i, value); });
        },
        total);
    return total;
  }

  template <class Candidate, class Values, class CandidateOf>
  KOKKOS_FORCEINLINE_FUNCTION Candidate first(const Values& values,
                                              const CandidateOf& candidate) const {
    Candidate best{};
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team_, warp), [&](const int lane) {
      for_each_value(lane, values, [&](const index_type i, const auto value) {
        keep_first(candidate(i, value), best);
      });
    });
    return first_of_lanes(best);
  }

 private:
  static constexpr int warp = 32;
  static constexpr int values_of_lane = 8;

  template <class Values, class Body>
  static KOKKOS_FORCEINLINE_FUNCTION void for_each_value(int lane, const Values& values,
                                                         const Body& body) {
    for (int j = 0; j < values_of_lane && j * warp < values.size; ++j) {
      const index_type i = j * warp + lane;
      if (i < values.size) body(i, values.of_lane[j]);
    }
    for (index_type i = values_of_lane * warp + lane; i < values.size; i += warp)
      body(i, values.value_of(i));
  }

  template <class Candidate>
  KOKKOS_FORCEINLINE_FUNCTION Candidate first_of_lanes(const Candidate& of_lane) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if constexpr (requires { of_lane.rank_bits(); }) {
      const std::uint32_t bits = of_lane.rank_bits();
      const std::uint32_t first = __reduce_max_sync(~0U, bits);
      return Candidate::of(first,
                           __reduce_min_sync(~0U, bits == first ? of_lane.id : Candidate{}.id));
    }
#endif
    Candidate best{};
    Kokkos::parallel_reduce(
        Kokkos::ThreadVectorRange(team_, warp),
        [&](int, Candidate& so_far) { keep_first(of_lane, so_far); }, first_of<Candidate>{best});
    return best;
  }

  template <class Element, int ahead, class Body, class... Row>
  static KOKKOS_FORCEINLINE_FUNCTION void walk(int lane, std::int64_t columns, bool chunked,
                                               const Body& body, const Row*... rows) {
    if (chunked) {
      walk_blocks<lane_block<Element, static_cast<int>(16 / sizeof(Element))>, ahead>(
          lane, columns, body, rows...);
    } else {
      walk_blocks<lane_block<Element, 1>, 1>(lane, columns, body, rows...);
    }
  }

  template <class Block, int ahead, class Body, class... Row>
  static KOKKOS_FORCEINLINE_FUNCTION void walk_blocks(int lane, std::int64_t columns,
                                                      const Body& body, const Row*... rows) {
    constexpr int stride = warp * Block::size;
    for (std::int64_t first = lane * Block::size; first < columns; first += ahead * stride) {
      const int left = static_cast<int>(Kokkos::min<std::int64_t>(columns - first, ahead * stride));
      visit<Block, ahead, stride>(first, left, body,
                                  loaded_blocks<Block, ahead, stride>(first, left, rows)...);
    }
  }

  template <class Block, int ahead, int stride>
  struct loaded_blocks {
    typename Block::chunk chunk[ahead];

    template <class Element>
    KOKKOS_FORCEINLINE_FUNCTION loaded_blocks(std::int64_t first, int left, const Element* row) {
      for (int j = 0; j < ahead; ++j) {
        if (j * stride < left) chunk[j] = Block(first + j * stride).fetch(row);
      }
    }
  };

  template <class Block, int ahead, class Element, class To>
  static KOKKOS_FORCEINLINE_FUNCTION void copy_blocks(int lane, const Element* from,
                                                      std::int64_t columns, index_type n,
                                                      const To& to) {
    constexpr int stride = warp * Block::size;
    for (std::int64_t first = lane * Block::size; first < columns; first += ahead * stride) {
      const int left = static_cast<int>(Kokkos::min<std::int64_t>(columns - first, ahead * stride));
      const loaded_blocks<Block, ahead, stride> loaded(first, left, from);
      for (index_type i = 0; i < n; ++i) {
        Element* const row = to(i);
        if (row == nullptr) continue;
        visit<Block, ahead, stride>(
            first, left, [&](const Block& block, const auto& chunk) { block.put(row, chunk); },
            loaded);
      }
    }
  }

  template <class Block, int ahead, int stride, class Body, class... Loaded>
  static KOKKOS_FORCEINLINE_FUNCTION void visit(std::int64_t first, int left, const Body& body,
                                                const Loaded&... loaded) {
    for (int j = 0; j < ahead; ++j) {
      if (j * stride < left) body(Block(first + j * stride), loaded.chunk[j]...);
    }
  }

  const member_type& team_;
};

/// Row kernels of a GPU: warps of a block have rows of their own.
template <class ExecutionSpace, class Body>
struct row_team {
  std::int64_t rows;
  Body body;

  KOKKOS_FUNCTION void operator()(
      const typename Kokkos::TeamPolicy<ExecutionSpace>::member_type& team) const {
    const std::int64_t row =
        static_cast<std::int64_t>(team.league_rank()) * team.team_size() + team.team_rank();
    if (row < rows) body(row_lanes<ExecutionSpace>(team), row);
  }
};

/// body(lanes, i) for every row i in [0, rows), asynchronously on the space.
template <class ExecutionSpace, class Body>
void for_each_row(const std::string& label, const ExecutionSpace& space, std::int64_t rows,
                  const Body& body) {
  if constexpr (on_gpu<ExecutionSpace>) {
    constexpr int warps = 4, warp = 32;
    // Registers for what is loaded ahead, and still so many rows under way that memory is kept busy.
    constexpr int blocks_at_once = 6;
    if (rows == 0) return;
    Kokkos::parallel_for(
        label,
        Kokkos::TeamPolicy<ExecutionSpace, Kokkos::LaunchBounds<warps * warp, blocks_at_once>>(
            space, static_cast<int>((rows + warps - 1) / warps), warps, warp),
        row_team<ExecutionSpace, Body>{rows, body});
  } else {
    Kokkos::parallel_for(label, Kokkos::RangePolicy<ExecutionSpace>(space, 0, rows),
                         [=](const std::int64_t i) { body(row_lanes<ExecutionSpace>{}, i); });
  }
}

}  // namespace lrmoe::detail
