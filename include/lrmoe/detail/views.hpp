// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <string_view>

#include <lrmoe/types.hpp>

namespace lrmoe::detail {

/// Require the extents of a matrix argument.
template <class View>
void require_extents(std::string_view entity, std::string_view name, const View& view,
                     std::int64_t rows, std::int64_t columns) {
  static_assert(View::rank() == 2);
  require(static_cast<std::int64_t>(view.extent(0)) == rows &&
              static_cast<std::int64_t>(view.extent(1)) == columns,
          entity, ": ", name, " is ", view.extent(0), " x ", view.extent(1), ", expected ", rows,
          " x ", columns, ": pass a row-major view of these extents");
}

template <class View>
void require_extents(std::string_view entity, std::string_view name, const View& view,
                     std::int64_t planes, std::int64_t rows, std::int64_t columns) {
  static_assert(View::rank() == 3);
  require(static_cast<std::int64_t>(view.extent(0)) == planes &&
              static_cast<std::int64_t>(view.extent(1)) == rows &&
              static_cast<std::int64_t>(view.extent(2)) == columns,
          entity, ": ", name, " is ", view.extent(0), " x ", view.extent(1), " x ", view.extent(2),
          ", expected ", planes, " x ", rows, " x ", columns,
          ": pass a row-major view of these extents");
}

/// Require that an output shares no byte with an input.
template <class Output, class Input>
void require_disjoint(std::string_view entity, std::string_view output_name, const Output& output,
                      std::string_view input_name, const Input& input) {
  if (output.size() == 0 || input.size() == 0) return;
  const auto begin = [](const auto& view) { return reinterpret_cast<std::uintptr_t>(view.data()); };
  const auto end = [&](const auto& view) {
    return begin(view) + view.span() * sizeof(typename std::decay_t<decltype(view)>::value_type);
  };
  require(end(output) <= begin(input) || end(input) <= begin(output), entity, ": ", output_name,
          " overlaps ", input_name, " in memory: give it storage of its own");
}

}  // namespace lrmoe::detail
