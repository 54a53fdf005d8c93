// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <utility>
#include <variant>

#include <lrmoe/exchange/communicator.hpp>

namespace lrmoe {

/// One of several communicators, chosen when the program runs.
///   any_communicator<single_rank, logical::communicator, mpi::communicator>
template <communicator... Models>
class any_communicator {
 public:
  template <class Model>
  requires(std::same_as<Model, Models> || ...) any_communicator(Model chosen)
      : model_(std::move(chosen)) {}

  int rank() const {
    return std::visit([](const auto& model) { return model.rank(); }, model_);
  }
  int size() const {
    return std::visit([](const auto& model) { return model.size(); }, model_);
  }
  std::int64_t bytes_sent() const {
    return std::visit([](const auto& model) { return model.bytes_sent(); }, model_);
  }

  void all_gather(const std::byte* mine, std::int64_t bytes, std::byte* all) {
    std::visit([&](auto& model) { model.all_gather(mine, bytes, all); }, model_);
  }
  template <class ExecutionSpace>
  void all_to_all(const ExecutionSpace& space, const std::byte* send,
                  std::span<const std::int64_t> send_offsets, std::byte* receive,
                  std::span<const std::int64_t> receive_offsets) {
    std::visit(
        [&](auto& model) { model.all_to_all(space, send, send_offsets, receive, receive_offsets); },
        model_);
  }

  /// The one that was chosen.
  const std::variant<Models...>& model() const { return model_; }

 private:
  std::variant<Models...> model_;
};

}  // namespace lrmoe
