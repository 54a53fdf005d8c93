// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "host.hpp"
#include "random.hpp"

namespace train {

/// One trained tensor, flat, with everything the optimizer keeps for it.
struct parameter {
  std::string name;
  vector value;          // (size)
  vector gradient;       // (size), summed into by backward; that of experts is overwritten
  vector first_moment;   // (size)
  vector second_moment;  // (size)
  bool decayed = true;   // takes part in weight decay
  bool frozen = false;   // left as it is by the optimizer
  bool expert = false;   // slots of experts: other ranks have others, and an optimizer of their own

  std::int64_t size() const { return static_cast<std::int64_t>(value.extent(0)); }
};

/// Sum of squares, in double; each chunk in order, then the chunks.
inline double squared_norm(const vector& values) {
  constexpr std::int64_t chunk_size = 8192;
  const auto size = static_cast<std::int64_t>(values.extent(0));
  std::vector<double> sums(static_cast<std::size_t>((size + chunk_size - 1) / chunk_size));
  double* const sum_of_chunk = sums.data();
  for_chunks("train::parameters::squared_norm", size, chunk_size,
             [=](std::int64_t chunk, std::int64_t begin, std::int64_t end) {
               double sum = 0.0;
               const float* v = values.data();
#pragma omp simd reduction(+ : sum)
               for (std::int64_t i = begin; i < end; ++i) sum += double(v[i]) * double(v[i]);
               sum_of_chunk[chunk] = sum;
             });
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return total;
}

/// All trained tensors of a model in the order of their creation, which is also their order in a
/// checkpoint and their random stream. References stay valid.
class parameter_list {
 public:
  explicit parameter_list(std::uint64_t seed) : seed_(seed) {}

  /// A new tensor with normal random values.
  parameter& add_random(std::string name, std::int64_t size, double deviation) {
    parameter& result = add(std::move(name), size, true);
    const std::uint64_t stream = entries_.size();
    const vector value = result.value;
    const std::uint64_t seed = seed_;
    for_chunks("train::parameters::initialise", size, 4096,
               [=](std::int64_t, std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i)
                   value(i) = static_cast<float>(deviation) *
                              random_normal(seed, stream, static_cast<std::uint64_t>(i));
               });
    return result;
  }

  /// A new tensor of the slots of this rank, each with the values of its expert, which do not depend on where
  /// it is. Its moments are elsewhere.
  parameter& add_experts(std::string name, std::span<const lrmoe::index_type> expert_of_slot,
                         std::int64_t size, double deviation) {
    parameter& result =
        add(std::move(name), static_cast<std::int64_t>(expert_of_slot.size()) * size, true, true);
    const std::uint64_t stream = entries_.size();
    const std::uint64_t seed = seed_;
    for (std::size_t slot = 0; slot < expert_of_slot.size(); ++slot) {
      if (expert_of_slot[slot] == lrmoe::no_expert) continue;
      const std::int64_t first = expert_of_slot[slot] * size;
      float* const value = result.value.data() + static_cast<std::int64_t>(slot) * size;
      for_chunks("train::parameters::initialise", size, 4096,
                 [=](std::int64_t, std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i)
                     value[i] = static_cast<float>(deviation) *
                                random_normal(seed, stream, static_cast<std::uint64_t>(first + i));
                 });
    }
    return result;
  }

  /// A new tensor of ones, without weight decay (gains of norms).
  parameter& add_ones(std::string name, std::int64_t size) {
    parameter& result = add(std::move(name), size, false);
    Kokkos::deep_copy(result.value, 1.0f);
    return result;
  }

  /// All that backward adds to.
  void zero_gradients() {
    for (parameter& p : entries_)
      if (!p.expert) Kokkos::deep_copy(space(), p.gradient, 0.0f);
  }

  /// Numbers in tensors that every rank holds.
  std::int64_t dense_size() const {
    std::int64_t total = 0;
    for (const parameter& p : entries_) total += p.expert ? 0 : p.size();
    return total;
  }

  auto begin() { return entries_.begin(); }
  auto end() { return entries_.end(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }

 private:
  parameter& add(std::string name, std::int64_t size, bool decayed, bool expert = false) {
    const auto allocate = [&](const char* part, std::int64_t count) {
      return vector(name + "::" + part, static_cast<std::size_t>(count));
    };
    const std::int64_t moments = expert ? 0 : size;
    return entries_.emplace_back(
        parameter{name, allocate("value", size), allocate("gradient", size),
                  allocate("first_moment", moments), allocate("second_moment", moments), decayed,
                  false, expert});
  }

  std::uint64_t seed_;
  std::deque<parameter> entries_;
};

}  // namespace train
