// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace bench {

using json = nlohmann::ordered_json;

/// {"cpu", "cores", "gpu", "driver"}; what is unknown or absent is null.
inline json host_machine() {
  json cpu;
  std::ifstream cpu_info("/proc/cpuinfo");
  for (std::string line; cpu.is_null() && std::getline(cpu_info, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) cpu = line.substr(colon + 2);
  }
  return {{"cpu", cpu},
          {"cores", std::thread::hardware_concurrency()},
          {"gpu", nullptr},
          {"driver", nullptr}};
}

/// The machine in one line: its GPU if the run used one, processor and threads else, and the library of its
/// products.
inline std::string summary(const json& machine) {
  const auto text = [&](const char* key) {
    return machine.contains(key) && machine[key].is_string() ? machine[key].get<std::string>()
                                                             : std::string();
  };
  std::string line;
  if (!text("gpu").empty()) {
    line = text("gpu") + ", driver " + text("driver");
  } else {
    line = text("cpu").empty() ? "unknown processor" : text("cpu");
    if (machine.contains("threads"))
      line += ", " + std::to_string(machine["threads"].get<int>()) + " threads";
  }
  return text("blas").empty() ? line : line + ", " + text("blas");
}

/// What `git describe` says of the sources now, "-dirty" when they were changed; "unknown" without
/// git or a repository.
inline std::string source_commit(const std::string& source_dir) {
  const std::string command =
      "git -C '" + source_dir + "' describe --always --dirty --abbrev=12 2>/dev/null";
  std::string text;
  if (FILE* pipe = popen(command.c_str(), "r")) {
    char line[128];
    if (std::fgets(line, sizeof line, pipe) != nullptr) text = line;
    pclose(pipe);
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.empty() ? "unknown" : text;
}

inline std::string utc_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%FT%TZ", &parts);
  return text;
}

/// The command as a shell would take it.
inline std::string command_line(int argc, char** argv) {
  std::string command;
  for (int i = 0; i < argc; ++i) {
    const std::string word = argv[i];
    const bool plain = !word.empty() && word.find_first_of(" '\"\\$*?&|;<>()") == std::string::npos;
    command += (i > 0 ? " " : "") + (plain ? word : "'" + word + "'");
  }
  return command;
}

/// The results of one run in the form that all tools share:
///   {"tool", "command", "commit", "time", "machine",
///    "results": [{"name", "value", "unit", "baseline", "ratio", ...}]}
/// ratio is value over the value of the result named baseline, of this run.
class result_set {
 public:
  /// Adds a result; `fields` are appended to it. An empty baseline means that there is none.
  void add(const std::string& name, double value, const std::string& unit,
           const std::string& baseline = {}, const json& fields = json::object()) {
    json one{{"name", name},
             {"value", value},
             {"unit", unit},
             {"baseline", nullptr},
             {"ratio", nullptr}};
    if (!baseline.empty()) one["baseline"] = baseline;
    one.update(fields);
    results_.push_back(std::move(one));
  }

  /// The document. A baseline that was not measured leaves the ratio null.
  json document(const std::string& tool, const std::string& command, const std::string& commit,
                const json& machine) const {
    json results = results_;
    for (auto& one : results) {
      if (one["baseline"].is_null()) continue;
      for (const auto& other : results_) {
        if (one["baseline"] == other["name"] && other["value"] != 0.0) {
          one["ratio"] = one["value"].get<double>() / other["value"].get<double>();
        }
      }
    }
    return {{"tool", tool},       {"command", command}, {"commit", commit},
            {"time", utc_time()}, {"machine", machine}, {"results", results}};
  }

 private:
  json results_ = json::array();
};

/// A file that appears whole or not at all. Opening it first shows that the place can be written
/// before time is spent on results.
class result_file {
 public:
  explicit result_file(std::filesystem::path path)
      : path_(std::move(path)), partial_(path_.string() + ".partial"), stream_(partial_) {
    if (!stream_) {
      throw std::runtime_error("cannot write '" + partial_.string() +
                               "': give --json a file in a folder that exists and is writable");
    }
  }
  result_file(const result_file&) = delete;
  result_file& operator=(const result_file&) = delete;
  ~result_file() {
    std::error_code ignored;
    std::filesystem::remove(partial_, ignored);
  }

  void write(const json& document) {
    stream_ << document.dump(2) << '\n' << std::flush;
    if (!stream_) {
      throw std::runtime_error("writing '" + partial_.string() + "' failed: is the disk full?");
    }
    stream_.close();
    std::filesystem::rename(partial_, path_);
  }

 private:
  std::filesystem::path path_;
  std::filesystem::path partial_;
  std::ofstream stream_;
};

}  // namespace bench
