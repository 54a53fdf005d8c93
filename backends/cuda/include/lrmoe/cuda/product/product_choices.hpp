// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <istream>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <lrmoe/error.hpp>

namespace lrmoe::cuda {

enum class product_provider { loop, grouped, hopper };

inline constexpr std::array product_providers{product_provider::loop, product_provider::grouped,
                                              product_provider::hopper};

constexpr std::string_view name_of(product_provider provider) {
  constexpr std::array<std::string_view, product_providers.size()> names{"loop", "grouped",
                                                                         "hopper"};
  return names[static_cast<std::size_t>(provider)];
}

/// Products that are measured together: the groups and their mean rows count by their powers of two. Whether a
/// gradient is added to or overwritten is not part of it: to add, every provider reads the same numbers more.
struct shape_class {
  std::string element;
  std::string operation;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t groups = 0;
  std::int64_t rows = 0;

  bool is(std::string_view e, std::string_view o, std::int64_t n_, std::int64_t k_,
          std::int64_t groups_, std::int64_t rows_) const {
    return n == n_ && k == k_ && groups == groups_ && rows == rows_ && element == e &&
           operation == o;
  }
};

/// The nearest power of two below, at least 1.
constexpr std::int64_t power_of_two_below(std::int64_t value) {
  return value < 1 ? 1
                   : static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(value)));
}

/// Measured rates of the providers by shape class. As text one line each,
///   bfloat16 multiply_rows n=1536 k=2048 groups=128 rows=1024 loop=412.3 grouped=301.7 hopper=650
/// with rates in GFLOP/s; 0 is not measured. Lines that begin with # are comments.
class product_choices {
 public:
  struct entry {
    shape_class shape;
    std::array<double, product_providers.size()> gflops{};
    int calls = 0;         ///< of the measurement, see measured_product
    bool adds = false;     ///< what its measured calls do with a gradient
    bool decided = false;  ///< nothing is left to be measured

    product_provider fastest() const {
      return product_providers[static_cast<std::size_t>(
          std::max_element(gflops.begin(), gflops.end()) - gflops.begin())];
    }
    double& rate(product_provider provider) { return gflops[static_cast<std::size_t>(provider)]; }
  };

  const std::vector<entry>& entries() const { return entries_; }

  /// The entry of a class, null if there is none.
  entry* find(std::string_view element, std::string_view operation, std::int64_t n, std::int64_t k,
              std::int64_t groups, std::int64_t rows) {
    for (entry& each : entries_)
      if (each.shape.is(element, operation, n, k, groups, rows)) return &each;
    return nullptr;
  }
  entry& add(const shape_class& shape) { return entries_.emplace_back(entry{shape}); }

  void save(std::ostream& to) const {
    const std::streamsize digits = to.precision(9);
    for (const entry& each : entries_) {
      const shape_class& s = each.shape;
      to << s.element << " " << s.operation << " n=" << s.n << " k=" << s.k
         << " groups=" << s.groups << " rows=" << s.rows;
      for (const auto provider : product_providers)
        to << " " << name_of(provider) << "=" << each.gflops[static_cast<std::size_t>(provider)];
      to << "\n";
    }
    to.precision(digits);
  }

  /// Adds what save() wrote; a class that is there already is replaced.
  /// Throws    argument_error naming the first line that is not understood; nothing is changed then
  void load(std::istream& from) {
    std::vector<entry> read;
    std::string line;
    for (int number = 1; std::getline(from, line); ++number)
      if (!line.empty() && line.front() != '#') read.push_back(parse(line, number));
    for (const entry& each : read) {
      const shape_class& s = each.shape;
      entry* known = find(s.element, s.operation, s.n, s.k, s.groups, s.rows);
      (known != nullptr ? *known : add(s)) = each;
    }
  }

  /// One line per class with the provider that is used, for people.
  std::string text() const {
    std::ostringstream result;
    result.precision(4);
    for (const entry& each : entries_) {
      const shape_class& s = each.shape;
      result << s.element << " " << s.operation << ", n " << s.n << ", k " << s.k << ", "
             << s.groups << " groups of about " << s.rows << " rows: ";
      if (!each.decided) {
        result << "not measured yet\n";
        continue;
      }
      result << name_of(each.fastest()) << " (";
      for (const auto provider : product_providers)
        result << (provider == product_providers.front() ? "" : ", ") << name_of(provider) << " "
               << each.gflops[static_cast<std::size_t>(provider)];
      result << " GFLOP/s)\n";
    }
    return result.str();
  }

 private:
  static entry parse(const std::string& line, int number) {
    std::istringstream words(line);
    entry result;
    shape_class& s = result.shape;
    words >> s.element >> s.operation;
    bool whole = value(words, "n=", s.n) && value(words, "k=", s.k) &&
                 value(words, "groups=", s.groups) && value(words, "rows=", s.rows);
    for (const auto provider : product_providers)
      whole = whole && value(words, std::string(name_of(provider)) + "=", result.rate(provider)) &&
              result.rate(provider) >= 0.0;
    result.decided = whole && result.rate(result.fastest()) > 0.0;
    require(result.decided && (words >> std::ws).eof(), "product_choices: line ", number,
            " is not a choice: '", line,
            "'; expected: ELEMENT OPERATION n=N k=N groups=N rows=N loop=RATE grouped=RATE "
            "hopper=RATE, one rate at least above 0");
    return result;
  }

  template <class T>
  static bool value(std::istringstream& words, std::string_view key, T& to) {
    std::string word;
    if (!(words >> word) || word.compare(0, key.size(), key) != 0) return false;
    std::istringstream number(word.substr(key.size()));
    return static_cast<bool>(number >> to) &&
           number.peek() == std::istringstream::traits_type::eof();
  }

  std::vector<entry> entries_;
};

}  // namespace lrmoe::cuda
