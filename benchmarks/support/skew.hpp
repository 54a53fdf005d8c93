// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

/// How unevenly tokens spread over experts:
///   balanced   equal counts (they differ by 1 where E does not divide P)
///   zipf<s>    L[e] in proportion to rank^-s, at most T; which expert has which rank is shuffled
///   one_hot    every token goes to the same K experts
struct skew {
  std::string name;

  /// Exponent of zipf, 0 for balanced. Throws std::invalid_argument for an unknown name.
  double exponent() const {
    if (name == "balanced") return 0.0;
    std::size_t used = 0;
    double s = -1;
    try {
      if (name.starts_with("zipf")) s = std::stod(name.substr(4), &used);
    } catch (const std::exception&) {  // not a number: reported below
    }
    if (!(s >= 0.0 && s <= 10.0) || used + 4 != name.size()) {
      throw std::invalid_argument("routing '" + name + "' is none of balanced, one_hot and zipf" +
                                  "<exponent> (zipf0.6, say; exponents from 0 to 10)");
    }
    return s;
  }

  /// Pairs of each expert: E counts of at most T whose sum is T K.
  std::vector<std::int64_t> counts(std::int64_t T, std::int64_t E, std::int64_t K) const {
    std::vector<std::int64_t> of_rank(static_cast<std::size_t>(E), 0);
    if (name == "one_hot") {
      std::fill_n(of_rank.begin(), K, T);
      return of_rank;
    }
    // Shares of what is left, hottest first, each cut at T: what is cut passes to the colder ones.
    const double s = exponent();
    const auto weight = [s](std::int64_t rank) { return std::pow(static_cast<double>(rank), -s); };
    std::vector<double> weight_from(static_cast<std::size_t>(E + 1), 0.0);
    for (std::int64_t rank = E; rank >= 1; --rank) {
      weight_from[static_cast<std::size_t>(rank - 1)] =
          weight_from[static_cast<std::size_t>(rank)] + weight(rank);
    }
    std::int64_t left = T * K;
    for (std::int64_t rank = 1; rank <= E; ++rank) {
      const auto i = static_cast<std::size_t>(rank - 1);
      const std::int64_t share =
          std::llround(static_cast<double>(left) * weight(rank) / weight_from[i]);
      const std::int64_t least = std::max<std::int64_t>(0, left - (E - rank) * T);
      of_rank[i] = std::clamp(share, least, std::min(T, left));
      left -= of_rank[i];
    }
    std::shuffle(of_rank.begin(), of_rank.end(), std::mt19937_64(1));
    return of_rank;
  }
};

/// Experts (T, K) of every token, row-major, with exactly these counts: distinct in each token, and
/// an expert's tokens spread over the batch.
inline std::vector<std::int32_t> assign_experts(const std::vector<std::int64_t>& counts,
                                                std::int64_t T, std::int64_t K) {
  std::vector<std::int64_t> token(static_cast<std::size_t>(T));
  std::iota(token.begin(), token.end(), 0);
  std::shuffle(token.begin(), token.end(), std::mt19937_64(2));
  std::vector<std::int32_t> experts(static_cast<std::size_t>(T * K));
  // Deal the pairs out round by round: an expert has at most T, so no token gets it twice.
  std::int64_t dealt = 0;
  for (std::size_t e = 0; e < counts.size(); ++e) {
    for (std::int64_t i = 0; i < counts[e]; ++i, ++dealt) {
      experts[static_cast<std::size_t>(token[static_cast<std::size_t>(dealt % T)] * K +
                                       dealt / T)] = static_cast<std::int32_t>(e);
    }
  }
  return experts;
}

}  // namespace bench
