// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <concepts>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lrmoe/context.hpp>
#include <lrmoe/exchange/agreement.hpp>
#include <lrmoe/experts/parameters.hpp>
#include <lrmoe/optimizer/adamw.hpp>
#include <lrmoe/optimizer/block_list.hpp>
#include <lrmoe/optimizer/expert_parts.hpp>
#include <lrmoe/optimizer/home_state.hpp>
#include <lrmoe/optimizer/state_owner.hpp>
#include <lrmoe/placement/placement.hpp>

namespace lrmoe {

/// What the optimizer keeps of a parameter.
enum class optimizer_value { master, first_moment, second_moment };

/// AdamW for the routed experts of one layer on R ranks. The ownership says which rank holds the state of
/// which parameters; the placement, which may be another one each step, says who computes with them.
/// One step, each line called by all ranks:
///
///   squares += optimizer.reduce(gradients, placement);              // of each layer
///   scale = clip_scale(std::sqrt(squares), max_norm);
///   optimizer.update({.step = t, .rate = rate, .gradient_scale = scale});
///   optimizer.send_weights(next, gate_up, down);
///
/// Shapes    gate_up (S, D, 2F) and down (S, F, D) by the slots of this rank. The gradient of a replica
///           lies in the lowest slot of its rank that holds the expert; what other slots hold counts
///           nowhere. Weights go to every slot that holds the expert.
/// Numerics  gradients are summed over an expert's replicas in ascending rank order, in the accumulation
///           type: bitwise repeatable. Where experts have one replica, neither R nor the ownership changes
///           a bit of the weights, if the gradient_scale is the same: the squared norm is the same only up
///           to rounding, since ranks add up their parts.
/// Memory    master weights, moments and messages in the ledger's `optimizer`, apart from the workspace that
///           layers plan with; the summed gradient in `gradients`. Nothing is allocated for sizes already
///           seen.
/// Throws    argument_error for a placement of other ranks or experts and views of other extents;
///           memory_error; rank_error as the communicator
/// Cost      one all_to_all for reduce and one for send_weights; all ranks know their sizes from the
///           placement
template <class Element, backend Backend, state_owner Ownership = home_state>
class expert_optimizer {
 public:
  using execution_space = typename Backend::execution_space;
  using device_type = typename Backend::device_type;
  using accumulate_type = accumulate_t<Element>;
  using values_view = vector_view<accumulate_type, device_type>;
  using weights_view = tensor_view<Element, device_type>;

  static constexpr std::int64_t default_chunk = std::int64_t{1} << 20;  ///< values of save()

  /// The state is all zero: give it weights by initialise() or restore(). The context must outlive it.
  expert_optimizer(context<Backend>& on, const layer_shape& shape,
                   const adamw_settings& settings = {}, const Ownership& ownership = {})
      : context_(&on),
        shape_(shape),
        settings_(settings),
        ownership_(ownership),
        extents_{on.ranks.size(), shape.E, 3 * shape.D * shape.F},
        traffic_(on.ranks.size()),
        scratch_(on.space, on.memory, memory_category::optimizer),
        state_(on.space, on.memory, memory_category::optimizer, "expert_optimizer::state"),
        summed_(on.space, on.memory, memory_category::gradients, "expert_optimizer::gradient") {
    shape.validate();
    settings.validate();
    first_owned_.assign(1, 0);
    for (std::int64_t e = 0; e < shape.E; ++e)
      first_owned_.push_back(first_owned_.back() + owned(e).size());
    values_ = state_.template matrix<accumulate_type>(3, owned_parameters());
    gradient_ = summed_.template vector<accumulate_type>(owned_parameters());
    scratch("chunk").template vector<accumulate_type>(std::min(extents_.parameters, default_chunk));
    Kokkos::deep_copy(context_->space, values_, accumulate_type(0));
    Kokkos::deep_copy(context_->space, gradient_, accumulate_type(0));
  }

  const ownership_extents& extents() const { return extents_; }
  std::int64_t owned_parameters() const { return first_owned_.back(); }
  /// The parameters of expert e whose state this rank holds.
  parameter_range owned(std::int64_t e) const { return range(e, context_->ranks.rank()); }
  /// Master weights or moments of this rank (owned_parameters()), by expert.
  values_view values(optimizer_value which) const {
    return Kokkos::subview(values_, static_cast<int>(which), Kokkos::ALL);
  }
  /// What reduce() summed up, in the same order.
  values_view gradient() const { return gradient_; }

  /// Master weights from the weights that a placement's lowest ranks hold, moments zero. Collective.
  void initialise(const placement& now, const tensor_view<const Element, device_type>& gate_up,
                  const tensor_view<const Element, device_type>& down) {
    check(now, gate_up, down);
    traffic_.clear();
    visit_held(now, true,
               [&](int to, auto, auto, auto part) { traffic_.count_send(to, part.size()); });
    visit_owned(now, true,
                [&](int from, auto, auto part) { traffic_.count_receive(from, part.size()); });
    auto [send, receive] = prepare_messages<Element>();
    spread_.clear();
    const auto master = values(optimizer_value::master);
    const auto into_state = [&](std::int64_t e, std::int64_t first) {
      return master.data() + state_index(e, first);
    };
    elements_.clear();
    visit_held(now, true, [&](int to, std::int64_t e, std::int64_t slot, parameter_range part) {
      Element* const message = to == rank() ? nullptr : send + traffic_.take_send(to, part.size());
      detail::for_expert_parts(shape_, gate_up, down, slot, part,
                               [&](const Element* from, std::int64_t first, std::int64_t count) {
                                 if (message != nullptr)
                                   elements_.add(from, message + (first - part.begin), count);
                                 else
                                   spread_.add(from, into_state(e, first), count);
                               });
    });
    elements_.run(space(), scratch("blocks"));
    exchange(send, receive);
    visit_owned(now, true, [&](int from, std::int64_t e, parameter_range part) {
      if (from != rank())
        spread_.add(receive + traffic_.take_receive(from, part.size()), into_state(e, part.begin),
                    part.size());
    });
    spread_.run(space(), scratch("blocks"));
    Kokkos::deep_copy(space(), values(optimizer_value::first_moment), accumulate_type(0));
    Kokkos::deep_copy(space(), values(optimizer_value::second_moment), accumulate_type(0));
  }

  /// Sums every expert's gradient over its replicas at the owners of its state. Collective.
  /// Returns the squared norm of all experts' gradients, each expert counted once: the same on all ranks.
  double reduce(const expert_gradients<accumulate_type, device_type>& gradients,
                const placement& now) {
    check(now, gradients.gate_up, gradients.down);
    traffic_.clear();
    visit_held(now, false,
               [&](int to, auto, auto, auto part) { traffic_.count_send(to, part.size()); });
    visit_owned(now, false,
                [&](int from, auto, auto part) { traffic_.count_receive(from, part.size()); });
    auto [send, receive] = prepare_messages<accumulate_type>();
    packed_.clear();
    visit_held(now, false, [&](int to, auto, std::int64_t slot, parameter_range part) {
      if (to == rank()) return;
      accumulate_type* const message = send + traffic_.take_send(to, part.size());
      detail::for_expert_parts(
          shape_, gradients.gate_up, gradients.down, slot, part,
          [&](const accumulate_type* from, std::int64_t first, std::int64_t count) {
            packed_.add(from, message + (first - part.begin), count);
          });
    });
    packed_.run(space(), scratch("blocks"));
    exchange(send, receive);

    sums_.clear();
    for (std::int64_t e = 0; e < shape_.E; ++e) {
      const parameter_range part = owned(e);
      if (part.size() == 0) continue;
      sources_.clear();
      for (const index_type from : now.holders(e))
        sources_.push_back(from == rank() ? nullptr
                                          : receive + traffic_.take_receive(from, part.size()));
      const index_type own = now.find(e, static_cast<index_type>(rank()));
      // An own gradient is read where it lies, in two tensors: so the sum is cut in two.
      const std::int64_t slot = own < 0 ? 0 : now.slots()[static_cast<std::size_t>(own)];
      detail::for_expert_parts(
          shape_, gradients.gate_up, gradients.down, slot, part,
          [&](const accumulate_type* here, std::int64_t first, std::int64_t count) {
            sums_.begin(gradient_.data() + state_index(e, first), count);
            for (const accumulate_type* source : sources_)
              sums_.add(source == nullptr ? here : source + (first - part.begin));
          });
    }
    const auto squares = scratch("squares").template vector<double>(sums_.num_blocks());
    sums_.run(space(), squares, scratch("blocks"), scratch("sources"));
    host_squares_.resize(squares.extent(0));
    Kokkos::deep_copy(space(),
                      Kokkos::View<double*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(
                          host_squares_.data(), host_squares_.size()),
                      squares);
    space().fence("lrmoe::expert_optimizer::reduce");
    double total = 0.0;
    for (const double square : host_squares_) total += square;
    sum_over_ranks(context_->ranks, std::span(&total, 1), gathered_);
    return total;
  }

  /// One step of AdamW on this rank's state, with the gradient that reduce() left. Not collective.
  void update(const adamw_step& now) {
    adamw(space(), settings_, now, values(optimizer_value::master),
          values(optimizer_value::first_moment), values(optimizer_value::second_moment),
          vector_view<const accumulate_type, device_type>(gradient_),
          vector_view<Element, device_type>());
  }

  /// Fresh weights, rounded to Element, into the slots of any placement; empty slots stay as they are.
  /// Collective.
  void send_weights(const placement& next, const weights_view& gate_up, const weights_view& down) {
    check(next, gate_up, down);
    traffic_.clear();
    visit_owned(next, false,
                [&](int to, auto, auto part) { traffic_.count_send(to, part.size()); });
    visit_held(next, false,
               [&](int from, auto, auto, auto part) { traffic_.count_receive(from, part.size()); });
    auto [send, receive] = prepare_messages<Element>();
    rounded_.clear();
    const auto master = values(optimizer_value::master);
    visit_owned(next, false, [&](int to, std::int64_t e, parameter_range part) {
      const accumulate_type* const from = master.data() + state_index(e, part.begin);
      if (to != rank()) {
        rounded_.add(from, send + traffic_.take_send(to, part.size()), part.size());
        return;
      }
      for_slots(next, e, [&](std::int64_t slot) {
        detail::for_expert_parts(shape_, gate_up, down, slot, part,
                                 [&](Element* weights, std::int64_t first, std::int64_t count) {
                                   rounded_.add(from + (first - part.begin), weights, count);
                                 });
      });
    });
    rounded_.run(space(), scratch("blocks"));
    exchange(send, receive);
    elements_.clear();
    visit_held(next, false, [&](int from, std::int64_t e, auto, parameter_range part) {
      if (from == rank()) return;
      const Element* const message = receive + traffic_.take_receive(from, part.size());
      for_slots(next, e, [&](std::int64_t slot) {
        detail::for_expert_parts(shape_, gate_up, down, slot, part,
                                 [&](Element* weights, std::int64_t first, std::int64_t count) {
                                   elements_.add(message + (first - part.begin), weights, count);
                                 });
      });
    });
    elements_.run(space(), scratch("blocks"));
  }

  /// Hands all state to sink(optimizer_value, expert, first parameter, span of values) on the root rank:
  /// by expert, then master weights, first and second moments, then in chunks by parameter. The values do
  /// not depend on R, the ownership or the placement, so what one number of ranks saves any other may
  /// restore, bit for bit. Collective; what the sink throws on the root, agree() tells to all ranks.
  template <class Sink>
  requires std::invocable<Sink&, optimizer_value, std::int64_t, std::int64_t,
                          std::span<const accumulate_t<Element>>>
  void save(Sink&& sink, int root = 0, std::int64_t chunk_values = default_chunk) {
    for_chunks(root, chunk_values, [&](const chunk& now) {
      gather_or_scatter(now, root, true);
      agree(context_->ranks, [&] {
        if (rank() != root) return;
        const auto values = to_host(now.whole.size());
        sink(now.which, now.expert, now.whole.begin, std::span<const accumulate_type>(values));
      });
    });
  }

  /// Fills all state from source(optimizer_value, expert, first parameter, span to fill) on the root rank,
  /// called in the order of save(). Collective; exceptions as there, and the state is then incomplete.
  template <class Source>
  requires std::invocable<Source&, optimizer_value, std::int64_t, std::int64_t,
                          std::span<accumulate_t<Element>>>
  void restore(Source&& source, int root = 0, std::int64_t chunk_values = default_chunk) {
    for_chunks(root, chunk_values, [&](const chunk& now) {
      agree(context_->ranks, [&] {
        if (rank() != root) return;
        host_values_.resize(static_cast<std::size_t>(now.whole.size()));
        source(now.which, now.expert, now.whole.begin, std::span<accumulate_type>(host_values_));
        from_host();
      });
      gather_or_scatter(now, root, false);
    });
  }

 private:
  /// Offsets of one all_to_all. Messages are counted first and taken in the same order afterwards; what a
  /// rank has for itself is no message.
  class traffic {
   public:
    explicit traffic(int ranks)
        : sent_(static_cast<std::size_t>(ranks) + 1), received_(sent_.size()) {}

    void clear() {
      std::fill(sent_.begin(), sent_.end(), 0);
      std::fill(received_.begin(), received_.end(), 0);
    }
    void count_send(int to, std::int64_t count) { sent_[index(to) + 1] += count; }
    void count_receive(int from, std::int64_t count) { received_[index(from) + 1] += count; }

    /// Offsets from counts; in bytes for the communicator, in values for take_*().
    void close(int self, std::int64_t value_bytes) {
      for (auto* offsets : {&sent_, &received_}) {
        (*offsets)[index(self) + 1] = 0;
        for (std::size_t r = 1; r < offsets->size(); ++r) (*offsets)[r] += (*offsets)[r - 1];
      }
      next_sent_ = sent_;
      next_received_ = received_;
      for (auto* offsets : {&sent_, &received_})
        for (std::int64_t& offset : *offsets) offset *= value_bytes;
    }
    std::int64_t values_sent() const { return next_sent_.back(); }
    std::int64_t values_received() const { return next_received_.back(); }
    std::int64_t take_send(int to, std::int64_t count) { return take(next_sent_, to, count); }
    std::int64_t take_receive(int from, std::int64_t count) {
      return take(next_received_, from, count);
    }
    std::span<const std::int64_t> sent_bytes() const { return sent_; }
    std::span<const std::int64_t> received_bytes() const { return received_; }

   private:
    static std::size_t index(int r) { return static_cast<std::size_t>(r); }
    static std::int64_t take(std::vector<std::int64_t>& next, int r, std::int64_t count) {
      const std::int64_t at = next[index(r)];
      next[index(r)] += count;
      return at;
    }
    std::vector<std::int64_t> sent_, received_, next_sent_, next_received_;
  };

  /// Part of one expert's values, for checkpoints.
  struct chunk {
    optimizer_value which;
    std::int64_t expert;
    parameter_range whole;
  };

  int rank() const { return context_->ranks.rank(); }
  const execution_space& space() const { return context_->space; }
  buffer<device_type>& scratch(std::string_view name) { return scratch_[name]; }
  parameter_range range(std::int64_t e, std::int64_t r) const {
    return ownership_.range(e, r, extents_);
  }
  std::int64_t state_index(std::int64_t e, std::int64_t parameter) const {
    return first_owned_[static_cast<std::size_t>(e)] + parameter - owned(e).begin;
  }

  template <class View>
  void check(const placement& now, const View& gate_up, const View& down) const {
    require(now.R() == extents_.R && now.E() == extents_.E, "expert_optimizer: a placement of ",
            now.E(), " experts on ", now.R(), " ranks, for a layer of ", extents_.E, " on ",
            extents_.R, ": pass the layer's placement");
    detail::require_extents("expert_optimizer", "gate_up", gate_up, now.S(), shape_.D,
                            2 * shape_.F);
    detail::require_extents("expert_optimizer", "down", down, now.S(), shape_.F, shape_.D);
  }

  /// f(owner rank, expert, lowest slot, range) for what this rank holds a replica of; by expert for each
  /// rank. With lowest_only, of those experts that no lower rank holds.
  template <class F>
  void visit_held(const placement& now, bool lowest_only, const F& f) const {
    for (std::size_t h = 0; h < now.ranks().size(); ++h) {
      if (now.ranks()[h] != rank()) continue;
      const std::int64_t e = now.experts()[h];
      if (lowest_only && now.holders(e).front() != rank()) continue;
      for (int r = 0; r < context_->ranks.size(); ++r) {
        const parameter_range part = range(e, r);
        if (part.size() > 0) f(r, e, std::int64_t{now.slots()[h]}, part);
      }
    }
  }

  /// f(holding rank, expert, range) for what this rank owns; by expert for each rank. The counterpart of
  /// visit_held() on the other ranks.
  template <class F>
  void visit_owned(const placement& now, bool lowest_only, const F& f) const {
    for (std::int64_t e = 0; e < shape_.E; ++e) {
      const parameter_range part = owned(e);
      if (part.size() == 0) continue;
      for (const index_type r : now.holders(e)) {
        f(static_cast<int>(r), e, part);
        if (lowest_only) break;
      }
    }
  }

  /// f(slot) for every slot of this rank that holds the expert.
  template <class F>
  void for_slots(const placement& at, std::int64_t e, const F& f) const {
    const auto slots = at.expert_of_slot().subspan(static_cast<std::size_t>(rank() * at.S()),
                                                   static_cast<std::size_t>(at.S()));
    for (std::size_t s = 0; s < slots.size(); ++s)
      if (slots[s] == e) f(static_cast<std::int64_t>(s));
  }

  /// Memory for the messages that have been counted.
  template <class T>
  std::pair<T*, T*> prepare_messages() {
    traffic_.close(rank(), sizeof(T));
    return {scratch("send").template vector<T>(traffic_.values_sent()).data(),
            scratch("receive").template vector<T>(traffic_.values_received()).data()};
  }

  template <class T>
  void exchange(const T* send, T* receive) {
    context_->ranks.all_to_all(space(), reinterpret_cast<const std::byte*>(send),
                               traffic_.sent_bytes(), reinterpret_cast<std::byte*>(receive),
                               traffic_.received_bytes());
  }

  template <class F>
  void for_chunks(int root, std::int64_t chunk_values, const F& f) {
    require(root >= 0 && root < context_->ranks.size(), "expert_optimizer: root = ", root,
            " must be in [0, R = ", context_->ranks.size(), ")");
    require(chunk_values >= 1, "expert_optimizer: chunk_values = ", chunk_values,
            " must be at least 1");
    for (std::int64_t e = 0; e < shape_.E; ++e)
      for (const auto which :
           {optimizer_value::master, optimizer_value::first_moment, optimizer_value::second_moment})
        for (std::int64_t begin = 0; begin < extents_.parameters; begin += chunk_values)
          f(chunk{which, e, {begin, std::min(begin + chunk_values, extents_.parameters)}});
  }

  /// Moves a chunk from its owners to the root's buffer, or back.
  void gather_or_scatter(const chunk& now, int root, bool gather) {
    const auto part_of = [&](int r) {
      const parameter_range of = range(now.expert, r);
      const std::int64_t begin = std::max(of.begin, now.whole.begin);
      return parameter_range{begin, std::max(begin, std::min(of.end, now.whole.end))};
    };
    const auto R = static_cast<std::size_t>(context_->ranks.size());
    const parameter_range own = part_of(rank());
    // The owners' parts lie one behind the other at the root; an owner has one part, for the root.
    at_root_.assign(R + 1, 0);
    at_owner_.assign(R + 1, 0);
    for (std::size_t r = 0; r < R; ++r) {
      const bool for_root = static_cast<int>(r) == root;
      at_root_[r + 1] =
          at_root_[r] + (rank() == root ? value_bytes(part_of(static_cast<int>(r))) : 0);
      at_owner_[r + 1] = at_owner_[r] + (for_root ? value_bytes(own) : 0);
    }
    auto* const chunk_values = reinterpret_cast<std::byte*>(
        scratch("chunk")
            .template vector<accumulate_type>(rank() == root ? now.whole.size() : 0)
            .data());
    std::byte* const state = own.size() == 0
                                 ? nullptr
                                 : reinterpret_cast<std::byte*>(values(now.which).data() +
                                                                state_index(now.expert, own.begin));
    if (gather)
      context_->ranks.all_to_all(space(), state, at_owner_, chunk_values, at_root_);
    else
      context_->ranks.all_to_all(space(), chunk_values, at_root_, state, at_owner_);
  }

  static std::int64_t value_bytes(parameter_range part) {
    return part.size() * static_cast<std::int64_t>(sizeof(accumulate_type));
  }

  using host_view = Kokkos::View<accumulate_type*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>;

  std::span<const accumulate_type> to_host(std::int64_t count) {
    host_values_.resize(static_cast<std::size_t>(count));
    Kokkos::deep_copy(space(), host_view(host_values_.data(), host_values_.size()),
                      scratch("chunk").template vector<accumulate_type>(count));
    space().fence("lrmoe::expert_optimizer::save");
    return host_values_;
  }

  void from_host() {
    const auto count = static_cast<std::int64_t>(host_values_.size());
    Kokkos::deep_copy(space(), scratch("chunk").template vector<accumulate_type>(count),
                      host_view(host_values_.data(), host_values_.size()));
  }

  context<Backend>* context_;
  layer_shape shape_;
  adamw_settings settings_;
  Ownership ownership_;
  ownership_extents extents_;
  std::vector<std::int64_t> first_owned_;  // (E+1)  where an expert's owned parameters begin
  traffic traffic_;
  workspace<device_type> scratch_;
  buffer<device_type> state_, summed_;
  matrix_view<accumulate_type, device_type> values_;  // (3, owned parameters)
  values_view gradient_;
  detail::copy_list<accumulate_type, accumulate_type> packed_;
  detail::copy_list<accumulate_type, Element> rounded_;
  detail::copy_list<Element, Element> elements_;
  detail::copy_list<Element, accumulate_type> spread_;
  detail::sum_list<accumulate_type> sums_;
  std::vector<const accumulate_type*> sources_;
  std::vector<double> host_squares_, gathered_;
  std::vector<accumulate_type> host_values_;
  std::vector<std::int64_t> at_root_, at_owner_;
};

}  // namespace lrmoe
