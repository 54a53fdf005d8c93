// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <lrmoe/compaction/expert_order.hpp>
#include <lrmoe/compaction/gather_rows.hpp>
#include <lrmoe/compaction/kept_pairs.hpp>
#include <lrmoe/context.hpp>
#include <lrmoe/estimator/estimator.hpp>
#include <lrmoe/exchange/device_blocks.hpp>
#include <lrmoe/exchange/exchange_sizes.hpp>
#include <lrmoe/exchange/rank_layout.hpp>
#include <lrmoe/exchange/row_kernels.hpp>
#include <lrmoe/memory/saved_activations.hpp>
#include <lrmoe/memory/upload.hpp>

namespace lrmoe {

/// Rows that the experts of this rank compute in forward.
template <class Element, class Device>
struct arrived_rows {
  std::int64_t size = 0;             // N_here
  gathered_rows<Element, Device> x;  // (N_here, D)
  row_groups<Device> groups;         // S slots
};

/// Kept rows that the experts of this rank compute in backward.
template <class Element, class Device>
struct arrived_kept {
  std::int64_t size = 0;                      // M_here
  gathered_rows<Element, Device> x;           // (M_here, D)
  vector_view<const index_type, Device> pre;  // (M_here) row of saved g and u, or empty: as it is
  row_groups<Device> groups;                  // S slots
  vector_view<const accumulate_t<Element>, Device> weights;  // (M_here)
  vector_view<const float, Device> factors;                  // (M_here)
};

/// Carries rows between the ranks that own tokens and the ranks that compute experts, there and back, in
/// forward and backward. Every message has the size that the plan says, so sizes are never sent, and in
/// backward only kept pairs travel. A rank by itself copies nothing: rows are gathered where they are.
///
/// A call goes: plan (host); begin; dispatch, combine; then, in forward where only kept pairs save their
/// activations, else in backward, departing and announce; then send_gradients and return_gradients. From
/// dispatch on, all but departing and pack are collective.
///
/// Order     as the communicator's all_to_all
/// Numerics  rows are copied, never added: results do not depend on the exchange
template <class Element, backend Backend>
class row_exchange {
 public:
  using device_type = typename Backend::device_type;
  using execution_space = typename Backend::execution_space;
  using real = accumulate_t<Element>;
  using indices = vector_view<const index_type, device_type>;
  using floats = vector_view<const float, device_type>;
  using matrix = matrix_view<Element, device_type>;
  using const_matrix = matrix_view<const Element, device_type>;

  explicit row_exchange(context<Backend>& on)
      : context_(on),
        blocks_(on.space, on.memory, memory_category::token_buffers, "row_exchange::blocks"),
        arrived_index_(on.space, on.memory, memory_category::token_buffers,
                       "row_exchange::arrived"),
        kept_weights_(on.space, on.memory, memory_category::token_buffers,
                      "row_exchange::kept_weights"),
        kept_factors_(on.space, on.memory, memory_category::token_buffers,
                      "row_exchange::kept_factors"),
        saved_x_(on.space, on.memory, memory_category::saved_activations, "row_exchange::x") {}

  /// Whether there are no other ranks, so that nothing is sent or copied.
  bool alone() const {
    if constexpr (may_exchange) return context_.ranks.size() == 1;
    return true;
  }

  /// Lay out the messages of a call on this rank, which holds S slots. On the host; sends nothing.
  /// Throws    argument_error, on every rank alike, when a rank would get more than 2^31 - 1 rows
  void plan(const replica_plan& made, std::int64_t S) {
    if (alone()) return;
    layout_.make(made, context_.ranks.rank(), S);
    pack_blocks();
  }

  /// What the planned call carries, for the memory model.
  exchange_sizes sizes() const {
    if (alone()) return {};
    return {.many = true,
            .words = static_cast<std::int64_t>(words_.size()),
            .here = layout_.rows_here(),
            .kept_here = layout_.kept_here(),
            .moved_here = layout_.moved_here(),
            .moved_away = layout_.moved_sent.back(),
            .listed = layout_.listed_sent.back(),
            .listed_here = layout_.listed_received.back(),
            .moves = layout_.moves};
  }

  /// Take the memory of a forward, and send the layout to the device. Throws memory_error.
  /// N rows of this source, M of them kept; `saved` is what backward needs of the received x.
  void begin(std::int64_t D, std::int64_t N, std::int64_t M, bool backward,
             saved_activations saved) {
    if (alone()) return;
    const std::int64_t here = layout_.rows_here(), tail = layout_.moved_here();
    upload_blocks();
    arrived_ = arrived_index_.template vector<index_type>(here + tail);
    const bool keeps_x = backward && saved != saved_activations::proxy;
    x_ = (keeps_x ? saved_x_ : scratch("x")).template matrix<Element>(here + tail, D);
    if (backward) {
      arriving_weights_ = kept_weights_.template vector<real>(layout_.kept_here());
      arriving_factors_ = kept_factors_.template vector<float>(layout_.kept_here());
      if (!keeps_x) kept_x_ = saved_x_.template matrix<Element>(layout_.kept_here(), D);
    }
    source_rows(std::max(N, M), D);
    holder_rows(std::max(here, layout_.kept_here()), D);
  }

  /// Take the memory of a backward, before it adds to a gradient; F is 0 when g and u do not move.
  /// Throws memory_error.
  void begin_backward(std::int64_t D, std::int64_t F, std::int64_t N, std::int64_t M) {
    if (alone()) return;
    source_rows(std::max(N, M), D);
    holder_rows(std::max(layout_.rows_here(), layout_.kept_here()), D);
    headers("headers", M);
    headers("arrived_headers", layout_.kept_here());
    for (const char* name : {"kept_index", "kept_x", "kept_pre"})
      scratch(name).template vector<index_type>(layout_.kept_here());
    scratch("d_weights").template vector<real>(layout_.kept_here());
    if (!layout_.moves) return;
    scratch("departing_rows").template vector<index_type>(M);
    scratch("departing_factors").template vector<float>(M);
    scratch("list").template vector<index_type>(layout_.listed_sent.back());
    scratch("arrived_list").template vector<index_type>(layout_.listed_received.back());
    scratch("moved").template vector<index_type>(layout_.moved_sent.back());
    scratch("moved_x").template matrix<Element>(layout_.moved_sent.back(), D);
    scratch("moved_pre").template matrix<Element>(layout_.moved_sent.back(), 2 * F);
  }

  /// Send the rows of x to the experts.
  /// Shapes    x (T, D); order of N rows by segment; groups: those of a rank that is alone
  arrived_rows<Element, device_type> dispatch(const const_matrix& x,
                                              const expert_order<device_type>& order,
                                              const row_groups<device_type>& groups,
                                              std::int64_t N) {
    if constexpr (may_exchange) {
      if (!alone()) {
        const auto& space = context_.space;
        const auto D = static_cast<std::int64_t>(x.extent(1));
        const matrix sending = source_rows(N, D);
        spread_rows(space, x, indices(order.row_of_pair), 0, sending);
        send(sending.data(), layout_.sent, x_.data(), layout_.received, D);
        const std::int64_t here = layout_.rows_here();
        fill_index(space, arrival_, here, arrived_);
        // Rows that move in later keep the place where they arrive.
        detail::continue_index(space, here, arrived_);
        return {here, {x_, arrived_}, {groups_, layout_.groups}};
      }
    }
    return {N, {x, order.token_of_row, order.row_of_pair}, groups};
  }

  /// Bring y, and with a backward to come ||h||, back to the tokens' ranks.
  /// Shapes    y (N_here, D) and here_norms (N_here) in the order of dispatch; norms (N)
  /// Ensures   returns y of the N rows of this source; norms may be the same view as here_norms where the
  ///           rank is alone
  const_matrix combine(const matrix& y, const vector_view<float, device_type>& here_norms,
                       const vector_view<float, device_type>& norms, std::int64_t N,
                       bool with_norms) {
    if constexpr (may_exchange) {
      if (!alone()) {
        const auto D = static_cast<std::int64_t>(y.extent(1));
        const matrix leaving = holder_rows(layout_.rows_here(), D);
        scatter_rows(context_.space, const_matrix(y), indices(arrived_), leaving);
        const matrix returned = source_rows(N, D);
        send(leaving.data(), layout_.received, returned.data(), layout_.sent, D);
        if (with_norms) {
          const auto packed = scratch("norms").template vector<float>(layout_.rows_here());
          detail::scatter_values(context_.space, floats(here_norms), indices(arrived_), packed);
          send(packed.data(), layout_.received, norms.data(), layout_.sent, 1);
        }
        return returned;
      }
    }
    return y;
  }

  /// The selection in the order in which its rows are sent in backward: a segment's rows that move follow
  /// those of the segment they move to.
  selection<device_type> departing(const selection<device_type>& selected) {
    if constexpr (may_exchange) {
      if (!alone() && layout_.moves) {
        const auto M = static_cast<std::int64_t>(selected.rows.extent(0));
        const auto rows = scratch("departing_rows").template vector<index_type>(M);
        const auto factors = scratch("departing_factors").template vector<float>(M);
        const selection<device_type> leaving{rows, factors, selected.inclusion};
        detail::reorder_selection(context_.space, departure_, selected, leaving);
        return leaving;
      }
    }
    return selected;
  }

  /// Tell the ranks that compute them which rows are kept, at what weight and factor. Moves the
  /// activations of pairs whose backward runs elsewhere.
  /// Shapes    selected and leaving as given to and returned by departing; order by segment; kept made from
  ///           leaving; pre (N_here + moved, 2F) holds g and u, or is empty where they are not saved
  /// Ensures   the result describes the kept rows that arrived, their activations where forward left them
  arrived_kept<Element, device_type> announce(const const_matrix& x,
                                              const expert_order<device_type>& order,
                                              const selection<device_type>& selected,
                                              const selection<device_type>& leaving,
                                              const kept_pairs<real, device_type>& kept,
                                              const matrix& pre) {
    if constexpr (may_exchange) {
      if (!alone()) {
        send_headers(order, leaving, kept);
        if (layout_.moves) move_activations(order, selected, pre);
        return locate_kept();
      }
    }
    return {static_cast<std::int64_t>(kept.tokens.extent(0)),
            {x, kept.tokens, kept.kept_of_pair},
            selected.rows,
            kept.groups,
            kept.weights,
            selected.factors};
  }

  /// Keep x of the announced rows alone, and forget the rest.
  /// Ensures   the rows as backward will see them: in order, without an index
  arrived_kept<Element, device_type> pack(arrived_kept<Element, device_type> rows) {
    if constexpr (may_exchange) {
      if (!alone()) {
        gather_rows(context_.space, const_matrix(x_), rows.x.index, kept_x_);
        return packed_kept();
      }
    }
    rows.pre = {};
    return rows;
  }

  /// The rows that pack kept, in backward.
  arrived_kept<Element, device_type> packed(const const_matrix& x,
                                            const selection<device_type>& selected,
                                            const kept_pairs<real, device_type>& kept) const {
    if constexpr (may_exchange) {
      if (!alone()) return packed_kept();
    }
    return {static_cast<std::int64_t>(kept.tokens.extent(0)),
            {x, kept.tokens, kept.kept_of_pair},
            {},
            kept.groups,
            kept.weights,
            selected.factors};
  }

  /// Send dO of the kept rows to the ranks that compute them.
  /// Shapes    d_out (T, D); the result (M_here, D) in expert order, valid until return_gradients
  gathered_rows<Element, device_type> send_gradients(const const_matrix& d_out,
                                                     const kept_pairs<real, device_type>& kept) {
    if constexpr (may_exchange) {
      if (!alone()) {
        const auto D = static_cast<std::int64_t>(d_out.extent(1));
        const auto M = static_cast<std::int64_t>(kept.tokens.extent(0));
        const matrix sending = source_rows(M, D);
        spread_rows(context_.space, d_out, indices(kept.kept_of_pair), 0, sending);
        const matrix received = holder_rows(layout_.kept_here(), D);
        send(sending.data(), layout_.kept_sent, received.data(), layout_.kept_received, D);
        return {received, kept_index()};
      }
    }
    return {d_out, kept.tokens, kept.kept_of_pair};
  }

  /// Bring dx and dw of the kept rows back to their source.
  /// Shapes    dx (M_here, D), here_weights (M_here) in expert order; d_weights (M); the result (M, D) in
  ///           the order of `leaving`
  const_matrix return_gradients(const matrix& dx,
                                const vector_view<real, device_type>& here_weights,
                                const vector_view<real, device_type>& d_weights) {
    if constexpr (may_exchange) {
      if (!alone()) {
        const auto D = static_cast<std::int64_t>(dx.extent(1));
        const auto M = static_cast<std::int64_t>(d_weights.extent(0));
        const matrix leaving = holder_rows(layout_.kept_here(), D);
        const indices arrived = kept_index();
        scatter_rows(context_.space, const_matrix(dx), arrived, leaving);
        const matrix returned = source_rows(M, D);
        send(leaving.data(), layout_.kept_received, returned.data(), layout_.kept_sent, D);
        const auto packed = scratch("d_weights").template vector<real>(layout_.kept_here());
        detail::scatter_values(context_.space, vector_view<const real, device_type>(here_weights),
                               arrived, packed);
        send(packed.data(), layout_.kept_received, d_weights.data(), layout_.kept_sent, 1);
        return returned;
      }
    }
    return dx;
  }

  std::int64_t token_buffer_bytes() const {
    return blocks_.size_bytes() + arrived_index_.size_bytes() + kept_weights_.size_bytes() +
           kept_factors_.size_bytes();
  }
  std::int64_t saved_bytes() const { return saved_x_.size_bytes(); }

 private:
  static constexpr bool may_exchange = !std::is_same_v<typename Backend::communicator, single_rank>;
  using header = kept_header<real>;

  buffer<device_type>& scratch(const char* name) {
    return context_.scratch[std::string("row_exchange::") + name];
  }
  matrix source_rows(std::int64_t rows, std::int64_t D) {
    return scratch("source_rows").template matrix<Element>(rows, D);
  }
  matrix holder_rows(std::int64_t rows, std::int64_t D) {
    return scratch("holder_rows").template matrix<Element>(rows, D);
  }
  vector_view<header, device_type> headers(const char* name, std::int64_t count) {
    return scratch(name).template vector<header>(count);
  }

  /// Rows of `columns` values each, by the row offsets of both sides.
  template <class T>
  void send(const T* from, const std::vector<std::int64_t>& sent, T* to,
            const std::vector<std::int64_t>& received, std::int64_t columns) {
    const auto bytes = [&](const std::vector<std::int64_t>& rows, std::vector<std::int64_t>& out) {
      out.resize(rows.size());
      const std::int64_t each = columns * static_cast<std::int64_t>(sizeof(T));
      for (std::size_t r = 0; r < rows.size(); ++r) out[r] = rows[r] * each;
    };
    bytes(sent, sent_bytes_);
    bytes(received, received_bytes_);
    context_.ranks.all_to_all(context_.space, reinterpret_cast<const std::byte*>(from), sent_bytes_,
                              reinterpret_cast<std::byte*>(to), received_bytes_);
  }

  indices kept_index() {
    const auto index = scratch("kept_index").template vector<index_type>(layout_.kept_here());
    fill_index(context_.space, kept_arrival_, layout_.kept_here(), index);
    return index;
  }

  void send_headers(const expert_order<device_type>& order, const selection<device_type>& leaving,
                    const kept_pairs<real, device_type>& kept) {
    const auto sending = headers("headers", static_cast<std::int64_t>(leaving.rows.extent(0)));
    detail::fill_headers(context_.space, indices(order.offsets), leaving, kept.weights, sending);
    const auto received = headers("arrived_headers", layout_.kept_here());
    send(sending.data(), layout_.kept_sent, received.data(), layout_.kept_received, 1);
  }

  /// Sources name the rows that move to the ranks that hold their activations; these send them on, behind
  /// the activations that the receiver has of its own.
  void move_activations(const expert_order<device_type>& order,
                        const selection<device_type>& selected, const matrix& pre) {
    const auto& space = context_.space;
    const auto list = scratch("list").template vector<index_type>(layout_.listed_sent.back());
    detail::fill_list(space, indices(order.offsets), listed_, selected, list);
    const auto arrived_list =
        scratch("arrived_list").template vector<index_type>(layout_.listed_received.back());
    send(list.data(), layout_.listed_sent, arrived_list.data(), layout_.listed_received, 1);

    const std::int64_t away = layout_.moved_sent.back();
    const auto moved = scratch("moved").template vector<index_type>(away);
    detail::find_listed(space, moved_, indices(arrived_list), moved);
    if (pre.extent(1) != 0) send_moved("moved_pre", pre, indices(moved));
    detail::map_index(space, indices(arrived_), moved);
    send_moved("moved_x", x_, indices(moved));
  }

  void send_moved(const char* name, const matrix& rows, const indices& index) {
    const auto columns = static_cast<std::int64_t>(rows.extent(1));
    const auto sending = scratch(name).template matrix<Element>(layout_.moved_sent.back(), columns);
    gather_rows(context_.space, const_matrix(rows), index, sending);
    send(sending.data(), layout_.moved_sent, rows.data() + layout_.rows_here() * columns,
         layout_.moved_received, columns);
  }

  /// Weights and factors of the kept rows in expert order, and where their activations are.
  arrived_kept<Element, device_type> locate_kept() {
    const std::int64_t M = layout_.kept_here();
    const auto x_rows = scratch("kept_x").template vector<index_type>(M);
    const auto pre_rows = scratch("kept_pre").template vector<index_type>(M);
    detail::locate_kept(context_.space, kept_arrival_, layout_.rows_here(),
                        vector_view<const header, device_type>(headers("arrived_headers", M)),
                        indices(arrived_), arriving_weights_, arriving_factors_, pre_rows, x_rows);
    return {M,
            {x_, x_rows},
            pre_rows,
            {kept_groups_, layout_.kept_groups},
            arriving_weights_,
            arriving_factors_};
  }

  arrived_kept<Element, device_type> packed_kept() const {
    return {layout_.kept_here(), {kept_x_},        {}, {kept_groups_, layout_.kept_groups},
            arriving_weights_,   arriving_factors_};
  }

  /// All blocks in one buffer, so that one copy brings them to the device.
  void pack_blocks() {
    words_.clear();
    const auto append = [&](const std::vector<index_type>& values) {
      words_.insert(words_.end(), values.begin(), values.end());
    };
    append(layout_.groups);
    append(layout_.kept_groups);
    for (const row_blocks* blocks : all_blocks()) {
      append(blocks->to);
      append(blocks->from);
      append(blocks->base);
    }
  }

  void upload_blocks() {
    const auto words = upload(context_.space, words_, blocks_);
    std::size_t next = 0;
    const auto take = [&](std::size_t count) {
      const indices part = Kokkos::subview(words, std::pair(next, next + count));
      next += count;
      return part;
    };
    groups_ = take(layout_.groups.size());
    kept_groups_ = take(layout_.kept_groups.size());
    device_blocks<device_type>* const on_device[] = {&arrival_, &kept_arrival_, &departure_,
                                                     &listed_, &moved_};
    const auto on_host = all_blocks();
    for (std::size_t i = 0; i < on_host.size(); ++i) {
      on_device[i]->to = take(on_host[i]->to.size());
      on_device[i]->from = take(on_host[i]->from.size());
      on_device[i]->base = take(on_host[i]->base.size());
    }
  }
  std::array<const row_blocks*, 5> all_blocks() const {
    return {&layout_.arrival, &layout_.kept_arrival, &layout_.departure, &layout_.listed,
            &layout_.moved};
  }

  context<Backend>& context_;
  buffer<device_type> blocks_, arrived_index_, kept_weights_, kept_factors_, saved_x_;

  // State of the current call.
  rank_layout layout_;
  std::vector<index_type> words_;  // layout_'s blocks, for the device
  std::vector<std::int64_t> sent_bytes_, received_bytes_;
  indices groups_, kept_groups_;
  device_blocks<device_type> arrival_, kept_arrival_, departure_, listed_, moved_;
  vector_view<index_type, device_type> arrived_;  // (N_here + moved): row of x_
  matrix x_;                                      // (N_here + moved, D) in arrival order
  matrix kept_x_;                                 // (M_here, D) in expert order
  vector_view<real, device_type> arriving_weights_;
  vector_view<float, device_type> arriving_factors_;
};

}  // namespace lrmoe
