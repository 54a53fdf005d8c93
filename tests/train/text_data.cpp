// The split of text into training and validation.
#include "text_data.hpp"

#include <set>
#include <string>

#include "catch.hpp"
#include "temporary_folder.hpp"

using namespace train;
using namespace train_test;

namespace {

std::string numbered_text(std::size_t size) {
  std::string text(size, ' ');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 7 % 251);
  return text;
}

}  // namespace

TEST_CASE("training windows never touch a byte of validation, and both stay inside the text",
          "[train]") {
  const int context = 5;
  for (std::size_t size : {12u, 13u, 17u, 18u, 100u, 119u, 120u, 121u, 125u, 239u, 700u, 733u}) {
    INFO("text of " << size << " bytes");
    const text_data data(numbered_text(size), context, "test");
    std::set<std::int64_t> validation;
    for (std::int64_t block = 0; block < data.validation_blocks(); ++block) {
      const std::int64_t start = data.validation_start(block);
      for (std::int64_t i = start; i <= start + context; ++i) validation.insert(i);
    }
    CHECK(data.validation_blocks() >= 1);
    CHECK(validation.size() == static_cast<std::size_t>(data.validation_blocks() * (context + 1)));
    CHECK(*validation.rbegin() < static_cast<std::int64_t>(size));
    CHECK(data.training_windows() >= 1);
    std::set<std::int64_t> starts, touched;
    for (std::int64_t window = 0; window < data.training_windows(); ++window) {
      const std::int64_t start = data.training_start(window);
      starts.insert(start);
      for (std::int64_t i = start; i <= start + context; ++i) touched.insert(i);
    }
    CHECK(starts.size() == static_cast<std::size_t>(data.training_windows()));
    CHECK(*touched.rbegin() < static_cast<std::int64_t>(size));
    for (std::int64_t byte : touched) CHECK(validation.count(byte) == 0);
    // Every byte belongs to one side, but for a rest too short for a window.
    CHECK(touched.size() + validation.size() + context >= size);
  }
}

TEST_CASE("inputs are the bytes of the text and targets the bytes that follow", "[train]") {
  const std::string text = numbered_text(300);
  const text_data data(text, 7, "test");
  tokens input("input", 14), target("target", 14);
  data.copy(40, 7, input, target);
  for (int c = 0; c < 7; ++c) {
    CHECK(input(7 + c) == static_cast<unsigned char>(text[40 + c]));
    CHECK(target(7 + c) == static_cast<unsigned char>(text[41 + c]));
  }
}

TEST_CASE("the order of data depends on seed, step and sequence only", "[train]") {
  const text_data data(numbered_text(5000), 10, "test");
  std::set<std::int64_t> seen;
  for (int step = 0; step < 10; ++step) {
    for (int sequence = 0; sequence < 10; ++sequence) {
      const auto start = data.training_start(3, step, sequence);
      CHECK(start == data.training_start(3, step, sequence));
      seen.insert(start);
    }
  }
  CHECK(seen.size() > 90);
  int equal = 0;
  for (int step = 0; step < 100; ++step)
    equal += data.training_start(3, step, 0) == data.training_start(4, step, 0);
  CHECK(equal < 10);
}

TEST_CASE("text that cannot be used is an error that names the sizes", "[train]") {
  CHECK_NAMES(message_of([] { text_data("", 8, "a.txt"); }), "a.txt", "empty");
  CHECK_NAMES(message_of([] { text_data("too short", 8, "a.txt"); }), "9 bytes", "at least 18",
              "--context");
  const temporary_folder place;
  set_content(place.path + "/empty.txt", "");
  const auto read = [](const std::string& file) {
    return message_of([&] { text_data(std::vector<std::string>{file}, 8); });
  };
  CHECK_NAMES(read(place.path + "/empty.txt"), "empty.txt", "is empty");
  CHECK_NAMES(read(place.path + "/missing.txt"), "missing.txt", "No such file");
  CHECK_NAMES(read(place.path), "is a folder");
}

TEST_CASE("several files are one text", "[train]") {
  const temporary_folder place;
  set_content(place.path + "/a", "abcdefgh");
  set_content(place.path + "/b", "ijklmnop");
  const text_data data({place.path + "/a", place.path + "/b"}, 3);
  CHECK(data.size() == 16);
  tokens input("input", 3), target("target", 3);
  data.copy(6, 0, input, target);
  CHECK(input(1) == 'h');
  CHECK(target(1) == 'i');
}
