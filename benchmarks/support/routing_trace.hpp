// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace bench {

/// Recorded routing: how many pairs every source had for every expert, call by call. As a file:
///   {"format": "lrmoe routing trace", "version": 1,
///    "R", "E", "K", "tokens", "layers", "description", "counts": [call][source][expert]}
/// R ranks of at most `tokens` tokens with K experts each. Calls are in the order in which a model makes
/// them: call c is of layer c mod layers, in step c / layers.
struct routing_trace {
  std::int64_t R = 0;
  std::int64_t E = 0;
  std::int64_t K = 0;
  std::int64_t tokens = 0;
  std::int64_t layers = 1;
  std::string description;
  std::vector<std::vector<std::int32_t>> calls{};  // (R, E) each

  /// Appends a call. Throws std::invalid_argument for another number of counts than R E.
  void add(std::vector<std::int32_t> source_counts) {
    if (source_counts.size() != static_cast<std::size_t>(R * E)) {
      throw std::invalid_argument("routing trace: " + std::to_string(source_counts.size()) +
                                  " counts given for R = " + std::to_string(R) +
                                  " and E = " + std::to_string(E));
    }
    calls.push_back(std::move(source_counts));
  }

  /// Throws std::runtime_error naming the file and what is wrong with it.
  static routing_trace read(const std::filesystem::path& path) {
    const auto refuse = [&](const std::string& why) {
      throw std::runtime_error("'" + path.string() + "' is no routing trace: " + why);
    };
    std::ifstream stream(path);
    if (!stream) throw std::runtime_error("cannot read '" + path.string() + "'");
    routing_trace trace;
    try {
      const auto document = nlohmann::json::parse(stream);
      if (document.value("format", "") != "lrmoe routing trace" ||
          document.value("version", 0) != 1)
        refuse("its format is not 'lrmoe routing trace', version 1");
      trace.R = document.at("R");
      trace.E = document.at("E");
      trace.K = document.at("K");
      trace.tokens = document.at("tokens");
      trace.layers = document.value("layers", 1);
      trace.description = document.value("description", "");
      if (trace.R < 1 || trace.E < 1 || trace.K < 1 || trace.K > trace.E || trace.tokens < 0 ||
          trace.layers < 1)
        refuse("R, E, K, tokens and layers are not the extents of a model");
      for (const auto& call : document.at("counts")) {
        std::vector<std::int32_t> counts;
        for (const auto& of_source : call) {
          std::int64_t pairs = 0;
          for (const auto& n : of_source) {
            const std::int64_t count = n.get<std::int64_t>();
            if (count < 0 || count > trace.tokens)
              refuse("a count is " + std::to_string(count) + " with " +
                     std::to_string(trace.tokens) + " tokens a rank");
            pairs += count;
            counts.push_back(static_cast<std::int32_t>(count));
          }
          if (of_source.size() != static_cast<std::size_t>(trace.E) ||
              pairs > trace.tokens * trace.K)
            refuse("call " + std::to_string(trace.calls.size()) + " has a source of " +
                   std::to_string(of_source.size()) + " experts and " + std::to_string(pairs) +
                   " pairs");
        }
        if (counts.size() != static_cast<std::size_t>(trace.R * trace.E))
          refuse("call " + std::to_string(trace.calls.size()) + " is not of " +
                 std::to_string(trace.R) + " sources");
        trace.calls.push_back(std::move(counts));
      }
      if (trace.calls.size() % static_cast<std::size_t>(trace.layers) != 0)
        refuse(std::to_string(trace.calls.size()) + " calls are no whole steps of " +
               std::to_string(trace.layers) + " layers");
    } catch (const nlohmann::json::exception& problem) {
      refuse(problem.what());
    }
    return trace;
  }

  /// Writes the file, which appears whole or not at all; one line a call.
  /// Throws std::runtime_error when it cannot be written.
  void write(const std::filesystem::path& path) const {
    const std::filesystem::path partial = path.string() + ".partial";
    std::ofstream stream(partial);
    const nlohmann::ordered_json head{{"format", "lrmoe routing trace"},
                                      {"version", 1},
                                      {"R", R},
                                      {"E", E},
                                      {"K", K},
                                      {"tokens", tokens},
                                      {"layers", layers},
                                      {"description", description}};
    std::string text = head.dump();
    text.back() = ',';
    stream << text << "\n\"counts\": [";
    for (std::size_t c = 0; c < calls.size(); ++c) {
      stream << (c > 0 ? ",\n" : "\n") << '[';
      for (std::size_t i = 0; i < calls[c].size(); ++i) {
        const std::size_t e = i % static_cast<std::size_t>(E);
        stream << (e > 0 ? "," : i > 0 ? "],[" : "[") << calls[c][i];
      }
      stream << "]]";
    }
    stream << "\n]}\n" << std::flush;
    if (!stream)
      throw std::runtime_error("cannot write '" + partial.string() +
                               "': is its folder there, writable and not full?");
    stream.close();
    std::filesystem::rename(partial, path);
  }
};

}  // namespace bench
