// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "checksum.hpp"
#include "error.hpp"
#include "host.hpp"
#include "random.hpp"

namespace train {

/// Bytes of text files, split into training and validation.
///
/// The text is cut into blocks of C+1 bytes (C inputs and the target of the last); every k-th
/// block, k at most 20, is for validation. Training windows start anywhere such that they lie
/// between two validation blocks, so no byte of validation is ever trained on.
class text_data {
 public:
  text_data(const std::vector<std::string>& files, std::int64_t context)
      : text_data(read(files), context,
                  files.size() == 1 ? files.front() : fmt::format("{} files", files.size())) {}

  text_data(std::string text, std::int64_t context, const std::string& name)
      : text_(std::move(text)), context_(context), block_(context + 1) {
    const auto size = static_cast<std::int64_t>(text_.size());
    require(size > 0, "the text ({}) is empty: give a file with text to --data", name);
    require(
        size >= 2 * block_,
        "the text ({}) has {} bytes, but --context {} needs at least {}, one block of {} bytes to "
        "train on and one to validate: give more text or a smaller --context",
        name, size, context, 2 * block_, block_);
    period_ = std::min(validation_every, size / block_);  // in blocks
    periods_ = size / (period_ * block_);
    starts_per_period_ = (period_ - 2) * block_ + 1;
    const std::int64_t rest = std::min(size - periods_ * period_ * block_, (period_ - 1) * block_);
    starts_ = periods_ * starts_per_period_ + std::max<std::int64_t>(0, rest - context_);
    checksum_ = checksum(text_.data(), text_.size());
  }

  std::int64_t size() const { return static_cast<std::int64_t>(text_.size()); }
  std::uint64_t content_checksum() const { return checksum_; }
  std::int64_t validation_blocks() const { return periods_; }
  std::int64_t training_windows() const { return starts_; }

  /// First byte of a training window, window in [0, training_windows()).
  std::int64_t training_start(std::int64_t window) const {
    const std::int64_t period = std::min(window / starts_per_period_, periods_);
    return period * period_ * block_ + (window - period * starts_per_period_);
  }

  /// First byte of a validation block, block in [0, validation_blocks()).
  std::int64_t validation_start(std::int64_t block) const {
    return ((block + 1) * period_ - 1) * block_;
  }

  /// Sequence `sequence` of step `step` depends on the seed and these two numbers only: all methods
  /// see the same data in the same order, a smaller batch sees its first sequences.
  std::int64_t training_start(std::uint64_t seed, std::int64_t step, std::int64_t sequence) const {
    const auto window =
        random_below(static_cast<std::uint64_t>(starts_), ~seed, static_cast<std::uint64_t>(step),
                     static_cast<std::uint64_t>(sequence));
    return training_start(static_cast<std::int64_t>(window));
  }

  /// Bytes start .. start+C-1 into input, start+1 .. start+C into target, from row `row` on.
  void copy(std::int64_t start, std::int64_t row, const tokens& input, const tokens& target) const {
    for (std::int64_t c = 0; c < context_; ++c) {
      input(row + c) = static_cast<unsigned char>(text_[static_cast<std::size_t>(start + c)]);
      target(row + c) = static_cast<unsigned char>(text_[static_cast<std::size_t>(start + c + 1)]);
    }
  }

 private:
  static constexpr std::int64_t validation_every = 20;

  static std::string read(const std::vector<std::string>& files) {
    std::string text;
    for (const std::string& file : files) {
      std::error_code ignored;
      require(!std::filesystem::is_directory(file, ignored),
              "cannot read text from {}: it is a folder; name its files", file);
      std::ifstream stream(file, std::ios::binary);
      require(stream.good(), "cannot open the text file {}: {}", file, std::strerror(errno));
      text.append(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
      require(!stream.bad(), "reading the text file {} failed: {}", file, std::strerror(errno));
    }
    return text;
  }

  std::string text_;
  std::int64_t context_;
  std::int64_t block_;              // C + 1 bytes
  std::int64_t period_;             // blocks from one validation block to the next
  std::int64_t periods_;            // full periods in the text
  std::int64_t starts_per_period_;  // places where a training window may start
  std::int64_t starts_;
  std::uint64_t checksum_;
};

}  // namespace train
