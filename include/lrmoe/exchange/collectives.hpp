// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <type_traits>
#include <vector>

#include <lrmoe/exchange/communicator.hpp>

// Small host values between ranks, on any communicator.
namespace lrmoe {

/// Every rank's values, by rank.
/// Shapes    mine (n), all (R, n); n is the same on all ranks
/// Throws    argument_error for another size of all; rank_error as the communicator
template <communicator Communicator, class T>
void all_gather(Communicator& ranks, std::span<const T> mine, std::span<T> all) {
  static_assert(std::is_trivially_copyable_v<T>, "values of this type cannot be sent as bytes");
  require(all.size() == mine.size() * static_cast<std::size_t>(ranks.size()),
          "all_gather: ", all.size(), " values cannot hold ", mine.size(), " of each of ",
          ranks.size(), " ranks: pass (R, n)");
  ranks.all_gather(reinterpret_cast<const std::byte*>(mine.data()),
                   static_cast<std::int64_t>(mine.size_bytes()),
                   reinterpret_cast<std::byte*>(all.data()));
}

/// One value of every rank, all (R).
template <communicator Communicator, class T>
void all_gather(Communicator& ranks, const T& mine, std::span<T> all) {
  all_gather(ranks, std::span<const T>(&mine, 1), all);
}

/// Replaces each value by its sum over the ranks.
/// Shapes    values (n) with the same n on all ranks; gathered is scratch, at least (R, n) after the call
/// Numerics  added in ascending rank order: the same bits on every rank and in every run
/// Cost      one all_gather of n values; nothing is allocated once gathered has its size
template <communicator Communicator, class T>
void sum_over_ranks(Communicator& ranks, std::span<T> values, std::vector<T>& gathered) {
  const std::size_t n = values.size();
  const std::size_t needed = n * static_cast<std::size_t>(ranks.size());
  if (gathered.size() < needed) gathered.resize(needed);
  all_gather(ranks, std::span<const T>(values), std::span<T>(gathered).first(needed));
  for (std::size_t i = 0; i < n; ++i) {
    T sum = gathered[i];
    for (std::size_t at = n + i; at < needed; at += n) sum += gathered[at];
    values[i] = sum;
  }
}

/// The sum of one value over the ranks; as above.
template <communicator Communicator, class T>
T sum_over_ranks(Communicator& ranks, T value) {
  std::vector<T> gathered;
  sum_over_ranks(ranks, std::span<T>(&value, 1), gathered);
  return value;
}

/// Where each of n parts begins when they lie one behind the other: offsets (n+1) of counts (n), times a
/// unit (bytes of one row, for offsets of all_to_all).
template <class Count>
void offsets_from_counts(std::span<const Count> counts, std::span<std::int64_t> offsets,
                         std::int64_t unit = 1) {
  require(offsets.size() == counts.size() + 1, "offsets_from_counts: ", offsets.size(),
          " offsets for ", counts.size(), " counts: pass one more than counts");
  offsets[0] = 0;
  for (std::size_t i = 0; i < counts.size(); ++i)
    offsets[i + 1] = offsets[i] + static_cast<std::int64_t>(counts[i]) * unit;
}

}  // namespace lrmoe
