// A folder of its own for a test, and the text of errors.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "error.hpp"

namespace train_test {

struct temporary_folder {
  std::string path;

  temporary_folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lrmoe_train_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw train::error("no temporary folder: " + pattern);
    path = pattern;
  }
  ~temporary_folder() { std::filesystem::remove_all(path); }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
};

inline std::string content_of(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

inline void set_content(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

/// What an action that must fail says; "no error" if it does not fail.
template <class Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const train::error& problem) {
    return problem.what();
  }
  return "no error";
}

}  // namespace train_test

/// Checks that a text names all the given pieces.
#define CHECK_NAMES(text, ...)                              \
  do {                                                      \
    const std::string checked_text = (text);                \
    INFO(checked_text);                                     \
    for (const std::string piece : {__VA_ARGS__}) {         \
      INFO("should name: " << piece);                       \
      CHECK(checked_text.find(piece) != std::string::npos); \
    }                                                       \
  } while (false)
