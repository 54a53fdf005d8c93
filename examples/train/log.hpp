// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "checkpoint.hpp"

namespace train {

/// One JSON object per line: {"type": "settings" | "step" | "validation" | "summary", ...}.
class json_log {
 public:
  /// Starts an empty log, or with `continue_after` >= 0 keeps the lines up to that step, so that a
  /// resumed run leaves the log of an uninterrupted one.
  json_log(const std::string& path, std::int64_t continue_after) : path_(path) {
    std::string kept;
    if (continue_after >= 0) {
      std::ifstream old(path);
      for (std::string line; std::getline(old, line);) {
        const json entry = json::parse(line, nullptr, false);
        if (entry.is_object() && entry.value("step", std::int64_t{0}) <= continue_after &&
            entry.value("type", "") != "summary")
          kept += line + '\n';
      }
    }
    write_atomically(path, {{kept.data(), kept.size()}});
    stream_.open(path, std::ios::app);
    require(stream_.good(), "cannot write the log {}: {}", path, std::strerror(errno));
  }

  void write(const json& entry) {
    stream_ << entry.dump() << '\n' << std::flush;
    require(stream_.good(), "writing the log {} failed: {}; free some space and use --resume",
            path_, std::strerror(errno));
  }

 private:
  std::string path_;
  std::ofstream stream_;
};

}  // namespace train
