// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <concepts>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <type_traits>

#include <lrmoe/bfloat16.hpp>

namespace bench {

/// Writes a contiguous row-major host view as a NumPy file, format 1.0. NumPy has no bfloat16: its bits are
/// written as unsigned 16-bit numbers.
template <class View>
void write_npy(const std::filesystem::path& path, const View& view) {
  using value_type = typename View::non_const_value_type;
  constexpr bool is_bits = std::is_same_v<value_type, lrmoe::bfloat16>;
  static_assert(is_bits || std::floating_point<value_type>,
                "bench::write_npy: float, double and bfloat16 only");
  std::string extents;
  for (std::size_t i = 0; i < View::rank(); ++i) extents += std::to_string(view.extent(i)) + ",";
  std::string header = std::string("{'descr': '<") + (is_bits ? "u" : "f") +
                       std::to_string(sizeof(value_type)) +
                       "', 'fortran_order': False, 'shape': (" + extents + "), }";
  // Magic, version and length take 10 bytes; data must start at a multiple of 64.
  header.resize((header.size() + 11 + 63) / 64 * 64 - 11, ' ');
  header += '\n';
  std::ofstream file(path, std::ios::binary);
  file << std::string("\x93NUMPY\x01\x00", 8) << static_cast<char>(header.size() & 0xff)
       << static_cast<char>(header.size() >> 8) << header;
  file.write(reinterpret_cast<const char*>(view.data()),
             static_cast<std::streamsize>(view.size() * sizeof(value_type)));
  if (!file.flush()) {
    throw std::runtime_error("cannot write '" + path.string() +
                             "': is the folder writable and the disk not full?");
  }
}

}  // namespace bench
