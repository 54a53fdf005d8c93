// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <lrmoe/types.hpp>

namespace lrmoe::detail {

/// Pairs of an expert on the rank that would run them all.
struct anchored_load {
  index_type expert = 0;
  index_type rank = 0;
  index_type pairs = 0;
};

/// Pairs of an expert that another rank runs instead.
struct expert_export {
  index_type item = 0;  ///< of the anchored loads
  index_type to = 0;
  index_type pairs = 0;
};

/// What a rank may run, and how many copies of others' experts it may take.
struct rank_limit {
  std::int64_t pairs = 0;
  std::int64_t copies = 0;
};

/// Asks whether exports can bring every rank of [first, last) to its limit. Overloaded ranks, most loaded first,
/// give pairs of their experts, hottest first, to ranks with room; each export takes one free slot of its
/// receiver. Greedy: a "no" does not prove that there is no way.
class export_oracle {
 public:
  struct rules {
    index_type kept_at_home = 0;  ///< pairs of an expert that must stay, if it has as many
    std::int64_t least_export =
        1;                  ///< no smaller export; 0: need / number of ranks with room, rounded up
    bool best_fit = false;  ///< to the least room that suffices, instead of to the most room
  };

  /// Items of ranks in [first, last). Ties: hottest expert, then lowest item.
  void set(std::int64_t first, std::int64_t last, std::span<const anchored_load> items) {
    items_ = items;
    first_ = first;
    const auto ranks = static_cast<std::size_t>(last - first);
    load_.assign(ranks, 0);
    order_.resize(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      load_[local(items[i].rank)] += items[i].pairs;
      order_[i] = descending(items[i].pairs, i);
    }
    std::sort(order_.begin(), order_.end());
    // By rank, each rank's in that order.
    begin_.assign(ranks + 2, 0);
    for (const auto& item : items) ++begin_[local(item.rank) + 2];
    for (std::size_t r = 2; r < begin_.size(); ++r) begin_[r] += begin_[r - 1];
    sorted_.resize(items.size());
    for (const std::uint64_t key : order_)
      sorted_[begin_[local(items[number(key)].rank) + 1]++] = static_cast<index_type>(number(key));
    donors_.resize(ranks);
    for (std::size_t r = 0; r < ranks; ++r) donors_[r] = descending(load_[r], r);
    std::sort(donors_.begin(), donors_.end());
    total_ = highest_ = 0;
    for (const std::int64_t load : load_) total_ += load, highest_ = std::max(highest_, load);
  }

  std::int64_t total() const { return total_; }
  std::int64_t highest() const { return highest_; }
  std::int64_t ranks() const { return static_cast<std::int64_t>(load_.size()); }
  std::int64_t mean_rounded_up() const { return (total_ + ranks() - 1) / ranks(); }
  std::int64_t load(std::int64_t rank) const { return load_[local(rank)]; }
  /// Items of a rank, hottest first.
  std::span<const index_type> items_of(std::int64_t rank) const {
    const std::size_t r = local(rank);
    return std::span(sorted_).subspan(begin_[r], begin_[r + 1] - begin_[r]);
  }

  /// Appends the exports and returns true, or leaves them as they were and returns false.
  ///   limit(rank)   rank_limit of ranks in [first, last)
  template <class Limit>
  bool run(const rules& by, const Limit& limit, std::vector<expert_export>& exports) {
    const std::size_t before = exports.size();
    room_.clear();
    used_.assign(load_.size(), 0);
    limits_.resize(load_.size());
    std::int64_t excess = 0, slack = 0;
    for (std::size_t r = 0; r < load_.size(); ++r) {
      limits_[r] = limit(first_ + static_cast<std::int64_t>(r));
      const std::int64_t room = limits_[r].pairs - load_[r];
      excess += std::max<std::int64_t>(0, -room);
      if (room <= 0 || limits_[r].copies <= 0) continue;
      slack += room;
      room_.push_back(ascending(room, r));
    }
    if (excess > slack) return false;
    std::sort(room_.begin(), room_.end());
    for (const std::uint64_t key : donors_) {
      const std::size_t donor = number(key);
      std::int64_t need = load_[donor] - limits_[donor].pairs;
      for (std::size_t k = begin_[donor]; k < begin_[donor + 1] && need > 0; ++k) {
        const index_type item = sorted_[k];
        const index_type pairs = items_[static_cast<std::size_t>(item)].pairs;
        std::int64_t available = pairs - std::min(pairs, by.kept_at_home);
        while (need > 0 && available > 0 && !room_.empty()) {
          const std::int64_t wanted = std::min(need, available);
          auto at = room_.end() - 1;
          if (by.best_fit) {
            const auto fits = std::lower_bound(room_.begin(), room_.end(), ascending_from(wanted));
            if (fits != room_.end())
              at = std::lower_bound(fits, room_.end(), ascending_from(size(*fits) + 1)) - 1;
          }
          const std::size_t to = inverse_number(*at);
          const std::int64_t room = size(*at), moved = std::min(wanted, room);
          const std::int64_t least =
              by.least_export > 0
                  ? by.least_export
                  : std::max<std::int64_t>(1, (need + static_cast<std::int64_t>(room_.size()) - 1) /
                                                  static_cast<std::int64_t>(room_.size()));
          if (moved < least) break;
          exports.push_back({item, static_cast<index_type>(first_ + static_cast<std::int64_t>(to)),
                             static_cast<index_type>(moved)});
          need -= moved;
          available -= moved;
          room_.erase(at);
          if (room > moved && ++used_[to] < limits_[to].copies) {
            const std::uint64_t left = ascending(room - moved, to);
            room_.insert(std::lower_bound(room_.begin(), room_.end(), left), left);
          }
        }
      }
      if (need > 0) {
        exports.resize(before);
        return false;
      }
    }
    return true;
  }

 private:
  // Sorting whole numbers is faster than sorting structs: a size of 32 bits, then a number.
  static constexpr std::uint64_t low = 0xffffffffU;
  static std::uint64_t descending(std::int64_t size, std::size_t number) {
    return ((low - clipped(size)) << 32) | number;
  }
  static std::size_t number(std::uint64_t key) { return key & low; }
  /// Of equal sizes, the lowest number last.
  static std::uint64_t ascending(std::int64_t size, std::size_t number) {
    return (clipped(size) << 32) | (low - number);
  }
  static std::uint64_t ascending_from(std::int64_t size) { return clipped(size) << 32; }
  static std::size_t inverse_number(std::uint64_t key) { return low - (key & low); }
  static std::int64_t size(std::uint64_t key) { return static_cast<std::int64_t>(key >> 32); }
  static std::uint64_t clipped(std::int64_t size) {
    return std::min(static_cast<std::uint64_t>(size), low);
  }
  std::size_t local(std::int64_t rank) const { return static_cast<std::size_t>(rank - first_); }

  std::span<const anchored_load> items_;
  std::int64_t first_ = 0, total_ = 0, highest_ = 0;
  std::vector<std::int64_t> load_;
  std::vector<std::uint64_t> order_, donors_, room_;
  std::vector<std::size_t> begin_;
  std::vector<index_type> sorted_, used_;
  std::vector<rank_limit> limits_;
};

}  // namespace lrmoe::detail
