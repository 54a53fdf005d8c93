// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <lrmoe/types.hpp>

namespace lrmoe {

/// Bins of pair sizes (roots of scores): four an octave, from 2^-48 to 2^16; what lies beyond falls
/// into the first or last bin.
struct size_bins {
  static constexpr int per_octave = 4;
  static constexpr int lowest_exponent = -48;
  static constexpr int count = 64 * per_octave;

  /// Bin of a size. The exponent and the two leading bits of a float's fraction count quarter octaves,
  /// so this is a shift. NaN and infinity fall into the last bin.
  KOKKOS_FUNCTION static int of(float size) {
    constexpr int first = (127 + lowest_exponent) * per_octave;
    if (size <= 0.0F) return 0;
    if (!(size <= std::numeric_limits<float>::max())) return count - 1;
    const auto quarter = static_cast<int>(Kokkos::bit_cast<std::uint32_t>(size) >> 21);
    return Kokkos::min(Kokkos::max(quarter - first, 0), count - 1);
  }

  /// Size that stands for a bin: its middle.
  static double middle(int bin) {
    const int octave = bin / per_octave;
    return std::ldexp(1.0 + (bin % per_octave + 0.5) / per_octave, lowest_exponent + octave);
  }

  /// All middles, ascending.
  static const std::array<double, count>& middles() {
    static const auto table = [] {
      std::array<double, count> sizes{};
      for (int bin = 0; bin < count; ++bin) sizes[static_cast<std::size_t>(bin)] = middle(bin);
      return sizes;
    }();
    return table;
  }
};

/// What earlier calls of a layer showed: of every expert how its pairs' sizes spread, and how much
/// noise the selections added. Exponential moving averages, so that a plan follows slow drift and is
/// not upset by one odd batch. On the host; equal on all ranks when all are fed the same numbers.
class score_history {
 public:
  /// decay: weight of the past in each update, in [0, 1). Throws argument_error.
  explicit score_history(double decay = 0.9) : decay_(decay) {
    require(decay >= 0.0 && decay < 1.0, "score_history: decay = ", decay,
            " is outside [0, 1): 0 remembers the last call alone");
  }

  /// A history as another one's shares and noise_correction describe it: of every expert
  /// size_bins::count shares, or none where it was unknown. Throws argument_error.
  static score_history restored(std::span<const std::vector<float>> shares_of_experts,
                                double noise_correction, double decay = 0.9) {
    score_history made(decay);
    constexpr auto bins = static_cast<std::size_t>(size_bins::count);
    require(noise_correction > 0.0 && std::isfinite(noise_correction),
            "score_history: noise_correction = ", noise_correction, " must be positive and finite");
    made.noise_ratio_ = noise_correction;
    made.shares_.assign(shares_of_experts.size() * bins, 0.0F);
    made.seen_.assign(shares_of_experts.size(), 0);
    made.in_use_.assign(shares_of_experts.size(), {});
    for (std::size_t e = 0; e < shares_of_experts.size(); ++e) {
      const auto& shares = shares_of_experts[e];
      require(shares.empty() || shares.size() == bins, "score_history: expert ", e, " has ",
              shares.size(), " shares, expected ", bins, " or none");
      float sum = 0;
      for (const float share : shares) {
        require(share >= 0.0F && share <= 1.0F, "score_history: a share of expert ", e, " is ",
                share, ", outside [0, 1]");
        sum += share;
      }
      if (!(sum > 0.0F)) continue;
      std::copy(shares.begin(), shares.end(),
                made.shares_.begin() + static_cast<std::ptrdiff_t>(e * bins));
      made.find_bins_in_use(e);
      made.seen_[e] = 1;
    }
    return made;
  }

  /// Whether no call had pairs yet.
  bool empty() const {
    return std::find(seen_.begin(), seen_.end(), std::uint8_t{1}) == seen_.end();
  }
  std::int64_t E() const { return static_cast<std::int64_t>(seen_.size()); }

  /// Take in the sizes of one call: pairs of each expert in each bin, (E, size_bins::count).
  /// An expert without pairs keeps what it had. Another E starts anew. Throws argument_error.
  void record_sizes(std::span<const index_type> histogram) {
    constexpr auto bins = static_cast<std::size_t>(size_bins::count);
    require(histogram.size() % bins == 0, "score_history: a histogram of ", histogram.size(),
            " numbers is not a multiple of ", bins, " bins: pass (E, size_bins::count)");
    if (shares_.size() != histogram.size()) {
      shares_.assign(histogram.size(), 0.0F);
      seen_.assign(histogram.size() / bins, 0);
      in_use_.assign(seen_.size(), {});
    }
    for (std::size_t e = 0; e < seen_.size(); ++e) {
      const auto now = histogram.subspan(e * bins, bins);
      std::int64_t pairs = 0;
      for (const index_type n : now) pairs += n;
      if (pairs == 0) continue;
      const auto past = static_cast<float>(seen_[e] != 0 ? decay_ : 0.0);
      const auto scale =
          static_cast<float>((seen_[e] != 0 ? 1.0 - decay_ : 1.0) / static_cast<double>(pairs));
      float* const share = &shares_[e * bins];
      for (std::size_t b = 0; b < bins; ++b) {
        const float value = past * share[b] + scale * static_cast<float>(now[b]);
        // What is left of a bin that fell out of use is forgotten before it is denormal and slow.
        share[b] = value < least_share ? 0.0F : value;
      }
      find_bins_in_use(e);
      seen_[e] = 1;
    }
  }

  /// Take in the V / sum s that a call's forecast promised (plan::noise_forecast) and what it got.
  /// Nothing is taken from calls that planned or added no noise.
  void record_noise(double planned, double achieved) {
    if (!(planned > 0.0) || !(achieved > 0.0)) return;
    if (!std::isfinite(planned) || !std::isfinite(achieved)) return;
    const double ratio = std::clamp(achieved / planned, 1.0 / 16.0, 16.0);
    noise_ratio_ = std::exp(decay_ * std::log(noise_ratio_) + (1.0 - decay_) * std::log(ratio));
  }

  /// Whether expert e ever had pairs.
  bool knows(std::int64_t e) const { return seen_[static_cast<std::size_t>(e)] != 0; }
  /// Share of expert e's pairs in every bin, (size_bins::count); sums to 1 up to rounding, or is all 0
  /// if unknown.
  std::span<const float> shares(std::int64_t e) const {
    return std::span(shares_).subspan(static_cast<std::size_t>(e * size_bins::count),
                                      static_cast<std::size_t>(size_bins::count));
  }
  /// Bins [begin, end) outside which an expert's shares are 0.
  struct bin_range {
    std::int32_t begin = 0;
    std::int32_t end = 0;
  };
  bin_range bins_in_use(std::int64_t e) const { return in_use_[static_cast<std::size_t>(e)]; }
  /// Achieved over planned noise, 1 without a record: what forecasts from this history err by.
  double noise_correction() const { return noise_ratio_; }

 private:
  /// For an expert with a share above 0.
  void find_bins_in_use(std::size_t e) {
    const float* const share = &shares_[e * static_cast<std::size_t>(size_bins::count)];
    bin_range used{0, size_bins::count};
    while (share[used.begin] == 0.0F) ++used.begin;
    while (share[used.end - 1] == 0.0F) --used.end;
    in_use_[e] = used;
  }

  static constexpr float least_share =
      0x1p-40F;  // less than a pair of the most that a call can have

  double decay_;
  double noise_ratio_ = 1.0;
  std::vector<float> shares_;       // (E, size_bins::count)
  std::vector<bin_range> in_use_;   // (E)
  std::vector<std::uint8_t> seen_;  // (E)
};

}  // namespace lrmoe
