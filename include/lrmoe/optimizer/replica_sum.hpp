// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include <lrmoe/context.hpp>
#include <lrmoe/experts/parameters.hpp>
#include <lrmoe/optimizer/block_list.hpp>
#include <lrmoe/optimizer/expert_parts.hpp>
#include <lrmoe/optimizer/state_owner.hpp>
#include <lrmoe/placement/placement.hpp>

namespace lrmoe {

/// Adds up the gradients of an expert's replicas and leaves the sum on every rank that holds one: what
/// gradient_reduction::all_reduce names, for optimizer state that lives with each replica.
/// An expert on k ranks is cut into k even parts, one for each holder, in ascending rank order: it gets its
/// part from all others, adds them up and sends them the sum.
///
/// Shapes    gradients.gate_up (S, D, 2F) and gradients.down (S, F, D) by the slots of this rank; shared
///           experts are left alone. The gradient of a replica lies in the lowest slot of its rank that holds
///           the expert, and the sum replaces it there; no other slot is read or written.
/// Numerics  added in ascending rank order, in the type of the gradients: bitwise the same on all holders,
///           from run to run, and as the sums of expert_optimizer. Experts on one rank keep their bits.
/// Memory    messages sent and received, in the ledger's `optimizer`. Nothing is allocated for sizes
///           already seen.
/// Throws    argument_error for a placement of other ranks or experts and views of other extents;
///           memory_error; rank_error as the communicator
/// Cost      two all_to_all, none if no expert has replicas; each of k holders sends 2 (k-1)/k of the
///           gradient's bytes, and as much memory holds the messages. The host waits for nothing else.
template <class Accumulate, backend Backend>
class replica_sum {
 public:
  using execution_space = typename Backend::execution_space;
  using device_type = typename Backend::device_type;

  /// The context must outlive it.
  replica_sum(context<Backend>& on, const layer_shape& shape)
      : context_(&on), shape_(shape), scratch_(on.space, on.memory, memory_category::optimizer) {
    shape.validate();
  }

  /// Collective: all ranks pass the same placement.
  void all_reduce(const expert_gradients<Accumulate, device_type>& gradients,
                  const placement& now) {
    check(gradients, now);
    if (now.replicas() == now.E()) return;
    count_messages(now);
    Accumulate* const others = message_memory("others' parts", offsets_of_others_);
    Accumulate* const own = message_memory("own parts", offsets_of_own_);
    copy_others(gradients, now, others, true);
    exchange(others, offsets_of_others_, own, offsets_of_own_);
    add_up(gradients, now, own);
    // What was sent comes back summed, so both messages keep their sizes and their memory.
    exchange(own, offsets_of_own_, others, offsets_of_others_);
    copy_others(gradients, now, others, false);
  }

 private:
  /// One of k of an expert, on this rank.
  struct replica {
    std::int64_t k;
    std::int64_t own;  // this rank among the holders
    std::int64_t slot;
  };

  int rank() const { return context_->ranks.rank(); }
  const execution_space& space() const { return context_->space; }

  void check(const expert_gradients<Accumulate, device_type>& gradients,
             const placement& now) const {
    require(now.R() == context_->ranks.size() && now.E() == shape_.E,
            "replica_sum: a placement of ", now.E(), " experts on ", now.R(),
            " ranks, for a layer of ", shape_.E, " on ", context_->ranks.size(),
            ": pass the layer's placement");
    detail::require_extents("replica_sum", "gate_up gradient", gradients.gate_up, now.S(), shape_.D,
                            2 * shape_.F);
    detail::require_extents("replica_sum", "down gradient", gradients.down, now.S(), shape_.F,
                            shape_.D);
  }

  /// Part j of k, whose sum is made on holder j.
  parameter_range part_of(std::int64_t k, std::int64_t j) const {
    const std::int64_t n = 3 * shape_.D * shape_.F;
    return {n * j / k, n * (j + 1) / k};
  }

  /// f(replica, its holders) for what this rank shares with others, by expert.
  template <class F>
  void visit_shared(const placement& now, const F& f) const {
    for (std::size_t h = 0; h < now.ranks().size(); ++h) {
      if (now.ranks()[h] != rank()) continue;
      const auto e = static_cast<std::size_t>(now.experts()[h]);
      const auto holders = now.holders(now.experts()[h]);
      if (holders.size() < 2) continue;
      f(replica{static_cast<std::int64_t>(holders.size()),
                static_cast<std::int64_t>(h) - now.offsets()[e], now.slots()[h]},
        holders);
    }
  }

  /// f(rank, replica, its place j among the holders) for every message, by expert for each rank.
  template <class F>
  void visit_messages(const placement& now, const F& f) const {
    visit_shared(now, [&](const replica& at, std::span<const index_type> holders) {
      for (std::int64_t j = 0; j < at.k; ++j)
        if (j != at.own) f(static_cast<std::size_t>(holders[static_cast<std::size_t>(j)]), at, j);
    });
  }

  /// f(values, offset in the part, count) for the parts of a range in each of the two tensors.
  template <class F>
  void for_parts(const expert_gradients<Accumulate, device_type>& gradients, std::int64_t slot,
                 parameter_range part, const F& f) const {
    detail::for_expert_parts(shape_, gradients.gate_up, gradients.down, slot, part,
                             [&](Accumulate* values, std::int64_t first, std::int64_t count) {
                               f(values, first - part.begin, count);
                             });
  }

  /// Bytes of the others' parts that this rank has, and of its own part that others have.
  void count_messages(const placement& now) {
    const auto R = static_cast<std::size_t>(context_->ranks.size());
    offsets_of_others_.assign(R + 1, 0);
    offsets_of_own_.assign(R + 1, 0);
    constexpr auto value_bytes = static_cast<std::int64_t>(sizeof(Accumulate));
    visit_messages(now, [&](std::size_t peer, const replica& at, std::int64_t j) {
      offsets_of_others_[peer + 1] += value_bytes * part_of(at.k, j).size();
      offsets_of_own_[peer + 1] += value_bytes * part_of(at.k, at.own).size();
    });
    for (std::size_t r = 0; r < R; ++r) {
      offsets_of_others_[r + 1] += offsets_of_others_[r];
      offsets_of_own_[r + 1] += offsets_of_own_[r];
    }
  }

  /// Where each rank's next message begins, in values.
  void start_messages() {
    next_of_others_ = offsets_of_others_;
    next_of_own_ = offsets_of_own_;
    for (auto* next : {&next_of_others_, &next_of_own_})
      for (std::int64_t& offset : *next) offset /= static_cast<std::int64_t>(sizeof(Accumulate));
  }
  static std::int64_t take(std::int64_t& next, std::int64_t count) {
    next += count;
    return next - count;
  }

  Accumulate* message_memory(const char* name, const std::vector<std::int64_t>& offsets) {
    return scratch_[name]
        .template vector<Accumulate>(offsets.back() / static_cast<std::int64_t>(sizeof(Accumulate)))
        .data();
  }

  void exchange(const Accumulate* send, const std::vector<std::int64_t>& from, Accumulate* receive,
                const std::vector<std::int64_t>& to) {
    context_->ranks.all_to_all(space(), reinterpret_cast<const std::byte*>(send), from,
                               reinterpret_cast<std::byte*>(receive), to);
  }

  /// Copies other holders' parts of the gradient to their messages, or the sums back from there.
  void copy_others(const expert_gradients<Accumulate, device_type>& gradients, const placement& now,
                   Accumulate* messages, bool to_messages) {
    start_messages();
    copies_.clear();
    visit_messages(now, [&](std::size_t peer, const replica& at, std::int64_t j) {
      const parameter_range part = part_of(at.k, j);
      Accumulate* const message = messages + take(next_of_others_[peer], part.size());
      for_parts(gradients, at.slot, part, [&](Accumulate* here, std::int64_t i, std::int64_t n) {
        to_messages ? copies_.add(here, message + i, n) : copies_.add(message + i, here, n);
      });
    });
    copies_.run(space(), scratch_["blocks"]);
  }

  /// Sums of this rank's parts, in the gradient and in every message that came from another holder.
  void add_up(const expert_gradients<Accumulate, device_type>& gradients, const placement& now,
              Accumulate* own) {
    start_messages();
    sums_.clear();
    copies_.clear();
    visit_shared(now, [&](const replica& at, std::span<const index_type> holders) {
      const parameter_range part = part_of(at.k, at.own);
      sources_.clear();
      for (const index_type from : holders)
        sources_.push_back(
            from == rank() ? nullptr
                           : own + take(next_of_own_[static_cast<std::size_t>(from)], part.size()));
      // The own gradient is read where it lies, in two tensors: so the sum is cut in two. It is made where
      // its first summand lies, as the others are still to be read when it begins.
      for_parts(gradients, at.slot, part, [&](Accumulate* here, std::int64_t i, std::int64_t n) {
        const auto place = [&](Accumulate* source) {
          return source == nullptr ? here : source + i;
        };
        Accumulate* const sum = place(sources_.front());
        sums_.begin(sum, n);
        for (Accumulate* source : sources_) sums_.add(place(source));
        for (Accumulate* source : std::span(sources_).subspan(1))
          copies_.add(sum, place(source), n);
      });
    });
    sums_.run(space(), scratch_["squares"].template vector<double>(sums_.num_blocks()),
              scratch_["blocks"], scratch_["sources"]);
    copies_.run(space(), scratch_["blocks"]);
  }

  context<Backend>* context_;
  layer_shape shape_;
  workspace<device_type> scratch_;
  // (R+1)  of messages in bytes, and where the next one begins, in values. Others' parts: this rank sends
  // them and gets their sums; its own: it gets them and sends their sums.
  std::vector<std::int64_t> offsets_of_others_, offsets_of_own_;
  std::vector<std::int64_t> next_of_others_, next_of_own_;
  std::vector<Accumulate*> sources_;
  detail::copy_list<Accumulate, Accumulate> copies_;
  detail::sum_list<Accumulate> sums_;
};

}  // namespace lrmoe
