// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <lrmoe/exchange/collectives.hpp>

namespace lrmoe {

namespace detail {

/// Every rank's text, by rank; lengths (R) are known to all.
template <communicator Communicator>
std::vector<std::string> gather_texts(Communicator& ranks, const std::string& mine,
                                      std::span<const std::int64_t> lengths) {
  const auto longest = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
  std::vector<char> padded(longest), all(longest * lengths.size());
  std::copy(mine.begin(), mine.end(), padded.begin());
  all_gather(ranks, std::span<const char>(padded), std::span<char>(all));
  std::vector<std::string> result;
  for (std::size_t r = 0; r < lengths.size(); ++r)
    result.emplace_back(all.data() + r * longest, static_cast<std::size_t>(lengths[r]));
  return result;
}

/// What happened on this rank goes to all: throws on every rank if it threw on any.
template <communicator Communicator>
void exchange_failure(Communicator& ranks, const std::exception_ptr& failure) {
  std::string message;
  if (failure) {
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& thrown) {
      message = thrown.what();
    } catch (...) {
      message = "an exception that is no std::exception";
    }
    message.resize(std::min<std::size_t>(message.size(), 4096));
    if (message.empty()) message = "no message";
  }
  // All is well in nearly every call, so that one must not allocate on usual numbers of ranks.
  constexpr int usual = 256;
  const auto R = static_cast<std::size_t>(ranks.size());
  std::array<std::int64_t, usual> few{};
  std::vector<std::int64_t> many(R > usual ? R : 0);
  const std::span<std::int64_t> lengths(R > usual ? many.data() : few.data(), R);
  std::vector<std::string> texts;
  try {
    all_gather(ranks, static_cast<std::int64_t>(message.size()), lengths);
    if (std::all_of(lengths.begin(), lengths.end(), [](std::int64_t n) { return n == 0; })) return;
    texts = gather_texts(ranks, message, lengths);
  } catch (...) {
    // The own exception is the cause, or tells of it.
    if (failure) std::rethrow_exception(failure);
    throw;
  }
  if (failure) std::rethrow_exception(failure);
  std::ostringstream list;
  list << "lrmoe: ";
  const char* separator = "rank ";
  for (std::size_t r = 0; r < R; ++r) {
    if (lengths[r] == 0) continue;
    list << separator << r << " failed: " << texts[r];
    separator = "; rank ";
  }
  throw rank_error(list.str());
}

}  // namespace detail

/// Runs a step that may fail on some ranks only, such as one that allocates or reads a file, before
/// operations that all ranks must reach. Every rank calls it; returns what the step returns.
/// Throws    if the step threw on any rank: there its own exception, elsewhere rank_error with the
///           numbers of the ranks that failed and their messages. The communicator stays usable.
/// Cost      one all_gather of 8 bytes; a second one, of the messages, after a failure
template <communicator Communicator, class Step>
auto agree(Communicator& ranks, Step&& step) {
  using result = std::invoke_result_t<Step>;
  std::exception_ptr failure;
  if constexpr (std::is_void_v<result>) {
    try {
      std::invoke(std::forward<Step>(step));
    } catch (...) {
      failure = std::current_exception();
    }
    detail::exchange_failure(ranks, failure);
  } else {
    std::optional<std::decay_t<result>> value;
    try {
      value.emplace(std::invoke(std::forward<Step>(step)));
    } catch (...) {
      failure = std::current_exception();
    }
    detail::exchange_failure(ranks, failure);
    return std::move(*value);
  }
}

/// Settings by name, as text.
using named_settings = std::vector<std::pair<std::string, std::string>>;

/// Checks that all ranks were started with the same settings; call it before anything else. The order of
/// the settings does not count.
/// Throws    argument_error on every rank, naming each setting that differs, its values and their ranks
/// Cost      one all_gather of 16 bytes; two of the texts when they differ
template <communicator Communicator>
void require_same_settings(Communicator& ranks, named_settings settings) {
  std::stable_sort(settings.begin(), settings.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string text;
  const auto append = [&](const std::string& part) {
    text += std::to_string(part.size()) + ':' + part;
  };
  for (const auto& [name, value] : settings) {
    append(name);
    append(value);
  }
  struct summary {
    std::int64_t length = 0;
    std::uint64_t hash = 14695981039346656037ULL;  // FNV-1a
    bool operator==(const summary&) const = default;
  };
  summary mine{static_cast<std::int64_t>(text.size())};
  for (const char c : text)
    mine.hash = (mine.hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  const auto R = static_cast<std::size_t>(ranks.size());
  std::vector<summary> all(R);
  all_gather(ranks, mine, std::span<summary>(all));
  if (std::all_of(all.begin(), all.end(), [&](const summary& other) { return other == all[0]; }))
    return;

  std::vector<std::int64_t> lengths;
  for (const summary& other : all) lengths.push_back(other.length);
  const std::vector<std::string> texts = detail::gather_texts(ranks, text, lengths);
  // name -> (value or none -> ranks)
  std::map<std::string, std::map<std::string, std::vector<std::size_t>>> by_name;
  for (std::size_t r = 0; r < R; ++r) {
    std::vector<std::string> parts;
    for (std::size_t at = 0; at < texts[r].size();) {
      const std::size_t colon = texts[r].find(':', at);
      const std::size_t size = std::stoull(texts[r].substr(at, colon - at));
      parts.push_back(texts[r].substr(colon + 1, size));
      at = colon + 1 + size;
    }
    for (std::size_t i = 0; i + 1 < parts.size(); i += 2)
      by_name[parts[i]]["'" + parts[i + 1] + "'"].push_back(r);
  }
  std::ostringstream message;
  message << "lrmoe: the ranks were started with different settings: ";
  const char* separator = "";
  for (auto& [name, values] : by_name) {
    std::vector<bool> has(R);
    for (const auto& [value, holders] : values)
      for (const std::size_t r : holders) has[r] = true;
    for (std::size_t r = 0; r < R; ++r)
      if (!has[r]) values["absent"].push_back(r);
    if (values.size() == 1) continue;
    message << separator << name << " is ";
    const char* between = "";
    for (const auto& [value, holders] : values) {
      message << between << value << (holders.size() == 1 ? " on rank" : " on ranks");
      for (std::size_t i = 0; i < holders.size(); ++i)
        message << (i == 0 ? " " : ", ") << holders[i];
      between = ", ";
    }
    separator = "; ";
  }
  message << ". Start every rank with the same";
  throw argument_error(message.str());
}

}  // namespace lrmoe
