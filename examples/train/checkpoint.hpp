// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "checksum.hpp"
#include "error.hpp"
#include "parameters.hpp"

// A checkpoint file:
//   fixed header   magic (8 bytes), version (u32), bytes of the description (u32), bytes of the
//                  payload (u64), checksum of description and payload (u64); little endian
//   description    JSON text: settings, progress, tensors [{name, size}]
//   payload        for each tensor that every rank holds: value, first moment, second moment, as floats;
//                  then, for each MoE layer, for each expert: the same three of all its parameters
namespace train {

/// Of each MoE layer: weights and moments of all experts (E, 3, 3 D F).
using expert_states = std::vector<std::vector<float>>;

using json = nlohmann::ordered_json;

/// Replaces a file in one step: readers see the old content or the new, also after a power cut.
inline void write_atomically(const std::string& path,
                             const std::vector<std::pair<const void*, std::size_t>>& pieces) {
  const std::string temporary = path + ".tmp";
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  require(file >= 0, "cannot create {}: {}", temporary, std::strerror(errno));
  const auto fail = [&](const char* what) {
    const int code = errno;
    ::close(file);
    ::unlink(temporary.c_str());
    throw error(fmt::format("{} {} failed: {}; {} is as it was before", what, temporary,
                            std::strerror(code), path));
  };
  for (const auto& [data, size] : pieces) {
    const char* bytes = static_cast<const char*>(data);
    for (std::size_t done = 0; done < size;) {
      const ssize_t written = ::write(file, bytes + done, size - done);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail("writing");
      done += static_cast<std::size_t>(written);
    }
  }
  if (::fsync(file) != 0) fail("flushing");
  ::close(file);
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int code = errno;
    ::unlink(temporary.c_str());
    throw error(fmt::format("renaming {} to {} failed: {}", temporary, path, std::strerror(code)));
  }
  // The rename itself is durable once the folder is.
  const auto folder = std::filesystem::absolute(path).parent_path();
  if (const int handle = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); handle >= 0) {
    ::fsync(handle);
    ::close(handle);
  }
}

class checkpoint {
 public:
  /// `settings` are what a run must share to continue, `progress` is what it needs besides tensors.
  static void write(const std::string& path, const json& settings, const json& progress,
                    const parameter_list& parameters, const expert_states& experts = {}) {
    const std::string description = json{
        {"settings", settings},
        {"progress", progress},
        {"tensors",
         describe(parameters, experts)}}.dump();
    fixed_header header;
    header.description_bytes = static_cast<std::uint32_t>(description.size());
    header.payload_bytes = payload_bytes(parameters, experts);
    header.content_checksum = checksum(description.data(), description.size());
    std::vector<std::pair<const void*, std::size_t>> pieces{
        {&header, sizeof header}, {description.data(), description.size()}};
    const auto add = [&](const float* data, std::size_t count) {
      const std::size_t size_bytes = count * sizeof(float);
      header.content_checksum = checksum(data, size_bytes, header.content_checksum);
      pieces.emplace_back(data, size_bytes);
    };
    for (const parameter& p : parameters) {
      if (p.expert) continue;
      for (const vector& part : {p.value, p.first_moment, p.second_moment})
        add(part.data(), part.size());
    }
    for (const auto& layer : experts) add(layer.data(), layer.size());
    write_atomically(path, pieces);
  }

  /// Fills the parameters and the experts, which have the size they shall get, and returns the progress. Everything is verified first: after an error
  /// the parameters are unchanged.
  static json read(const std::string& path, const json& settings, parameter_list& parameters,
                   expert_states& experts) {
    std::ifstream stream(path, std::ios::binary);
    require(stream.good(), "cannot open the checkpoint {}: {}", path, std::strerror(errno));
    const std::string content{std::istreambuf_iterator<char>(stream),
                              std::istreambuf_iterator<char>()};
    fixed_header header;
    require(content.size() >= sizeof header,
            "the checkpoint {} is truncated: {} bytes, its header alone has {}; use an older copy "
            "or start anew",
            path, content.size(), sizeof header);
    std::memcpy(&header, content.data(), sizeof header);
    const fixed_header known;
    require(std::memcmp(header.magic, known.magic, sizeof header.magic) == 0,
            "{} is not a checkpoint of this program: it does not start with {}", path,
            std::string(known.magic, sizeof known.magic));
    require(header.version == known.version,
            "the checkpoint {} has format version {}, this program reads version {}: continue with "
            "the program that wrote it or start anew",
            path, header.version, known.version);
    const std::uint64_t expected = sizeof header + header.description_bytes + header.payload_bytes;
    require(content.size() == expected,
            "the checkpoint {} is {}: {} bytes instead of {}; use an older copy or start anew",
            path, content.size() < expected ? "truncated" : "damaged", content.size(), expected);
    const std::uint64_t found =
        checksum(content.data() + sizeof header, content.size() - sizeof header);
    require(found == header.content_checksum,
            "the checkpoint {} is damaged: the checksum of its content is {:016x}, its header says "
            "{:016x}; use an older copy or start anew",
            path, found, header.content_checksum);
    const json description = json::parse(content.substr(sizeof header, header.description_bytes));
    require_equal_settings(path, description.at("settings"), settings);
    require(description.at("tensors") == describe(parameters, experts) &&
                header.payload_bytes == payload_bytes(parameters, experts),
            "the checkpoint {} holds other tensors than this model: continue with the program that "
            "wrote it or start anew",
            path);
    const char* source = content.data() + sizeof header + header.description_bytes;
    const auto take = [&](float* to, std::size_t count) {
      std::memcpy(to, source, count * sizeof(float));
      source += count * sizeof(float);
    };
    for (parameter& p : parameters) {
      if (p.expert) continue;
      for (const vector& part : {p.value, p.first_moment, p.second_moment})
        take(part.data(), part.size());
    }
    for (auto& layer : experts) take(layer.data(), layer.size());
    return description.at("progress");
  }

 private:
  struct fixed_header {
    char magic[8] = {'L', 'R', 'M', 'O', 'E', 'C', 'K', 'P'};
    std::uint32_t version = 2;
    std::uint32_t description_bytes = 0;
    std::uint64_t payload_bytes = 0;
    std::uint64_t content_checksum = 0;
  };
  static_assert(sizeof(fixed_header) == 32);

  static json describe(const parameter_list& parameters, const expert_states& experts) {
    json tensors = json::array();
    for (const parameter& p : parameters)
      if (!p.expert) tensors.push_back({{"name", p.name}, {"size", p.size()}});
    for (std::size_t i = 0; i < experts.size(); ++i)
      tensors.push_back(
          {{"name", fmt::format("experts of layer {}", i)}, {"size", experts[i].size()}});
    return tensors;
  }

  static std::uint64_t payload_bytes(const parameter_list& parameters,
                                     const expert_states& experts) {
    auto count = 3 * static_cast<std::uint64_t>(parameters.dense_size());
    for (const auto& layer : experts) count += layer.size();
    return sizeof(float) * count;
  }

  static void require_equal_settings(const std::string& path, const json& written,
                                     const json& wanted) {
    for (const auto& [key, value] : wanted.items()) {
      const json before = written.contains(key) ? written.at(key) : json();
      require(before == value,
              "the checkpoint {} does not fit this run: it was written with {} = {}, this run has "
              "{}; repeat the settings of the first run or start anew in another --output",
              path, key, before.dump(), value.dump());
    }
  }
};

}  // namespace train
