// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <sstream>
#include <string>

#include <lrmoe/memory/layer_memory.hpp>

namespace lrmoe::detail {

/// Largest n in [0, most] for which fits(n) holds, or -1; fits must not become true again as n grows.
template <class Fits>
std::int64_t largest_that_fits(std::int64_t most, const Fits& fits) {
  std::int64_t good = -1, bad = most + 1;
  while (bad - good > 1) {
    const std::int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

/// Message for a call that does not fit its budget: what it needs by category, what there is, and the
/// nearest settings that fit.
///   need(layer_call) -> memory_use
template <class Need>
std::string budget_refusal(const ledger& account, const layer_shape& shape, const layer_call& call,
                           std::int64_t available, const Need& need) {
  std::ostringstream message;
  const auto list = [&](const auto& bytes_of) {
    const char* separator = "";
    for (std::size_t i = 0; i < num_memory_categories; ++i) {
      const auto category = static_cast<memory_category>(i);
      if (bytes_of(category) == 0) continue;
      message << separator << name_of(category) << " " << bytes_of(category);
      separator = ", ";
    }
  };
  const memory_use use = need(call);
  message << "lrmoe: moe_layer: " << call.T << " tokens";
  if (call.pairs > 0) message << " with " << call.kept << " of " << call.pairs << " pairs kept";
  message << " need " << use.total() << " bytes (";
  list([&](memory_category category) { return use[category]; });
  message << "), and " << std::max<std::int64_t>(available, 0) << " of a budget of "
          << account.budget_bytes() << " bytes are available (in use: ";
  list([&](memory_category category) { return account.live_bytes(category); });
  message << "). What fits: ";

  const auto fits = [&](const layer_call& other) { return need(other).total() <= available; };
  const auto with_kept = [&](std::int64_t kept) {
    layer_call other = call;
    other.kept = kept;
    other.kept_dx = std::min(other.kept_dx, kept);
    other.kept_dw = std::min(other.kept_dw, kept);
    return other;
  };
  if (call.pairs > 0 && call.scores) {
    const std::int64_t kept =
        largest_that_fits(call.kept, [&](std::int64_t n) { return fits(with_kept(n)); });
    if (kept > 0) message << kept << " pairs kept; ";
  }
  for (const auto& [saved, name] : {std::pair{saved_activations::proxy, "proxy"},
                                    std::pair{saved_activations::recompute, "recompute"}}) {
    layer_call other = call;
    other.saved = saved;
    if (call.backward && call.scores && fits(other))
      message << "saved_activations::" << name << "; ";
  }
  const std::int64_t tokens = largest_that_fits(call.T, [&](std::int64_t T) {
    layer_call other = call;
    const auto scaled = [&](std::int64_t n) {
      return call.T == 0 ? n : (n * T + call.T - 1) / call.T;
    };
    other.T = T;
    other.pairs = scaled(call.pairs);
    other.kept = scaled(call.kept);
    other.kept_dx = scaled(call.kept_dx);
    other.kept_dw = scaled(call.kept_dw);
    return fits(other);
  });
  if (tokens > 0) message << tokens << " tokens; ";
  message << "a budget of " << account.budget_bytes() - available + use.total() << " bytes";
  if (call.pairs == 0 && call.T > 0)
    message << " at least, K = " << shape.K << " pairs a token to come";
  return message.str();
}

}  // namespace lrmoe::detail
