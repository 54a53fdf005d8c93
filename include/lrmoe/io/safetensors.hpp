// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <lrmoe/types.hpp>

// Needs nlohmann-json in the include path of whoever includes this header; the library's other headers do
// not.

/// Files of named tensors in the safetensors format:
///   bytes 0-7   n, the length of the header, little endian
///   n bytes     JSON: {"__metadata__": {key: text}, name: {"dtype", "shape", "data_offsets"}, ...}
///   the rest    the tensors, row-major and little endian, each at its offsets, without gaps
/// Source: https://github.com/huggingface/safetensors (format description).
namespace lrmoe::safetensors {

static_assert(std::endian::native == std::endian::little,
              "lrmoe::safetensors copies numbers as they are in the file: little endian");

/// A file cannot be read or written, breaks the format, or lacks what is asked for.
struct file_error : error {
  using error::error;
};

/// Longest header accepted, as in other readers: a damaged length must not cost gigabytes of memory.
inline constexpr std::uint64_t max_header_bytes = 100'000'000;

enum class dtype { f64, f32, bf16, f16, i64, i32, u8, boolean, other };

namespace detail {

template <class... Parts>
[[noreturn]] void refuse_file(std::string_view path, const Parts&... parts) {
  std::ostringstream message;
  message << "lrmoe: safetensors: " << path << ": ";
  (message << ... << parts);
  throw file_error(message.str());
}
template <class... Parts>
void require_file(bool condition, std::string_view path, const Parts&... parts) {
  if (!condition) refuse_file(path, parts...);
}

struct dtype_row {
  dtype type;
  std::string_view name;
  int bytes;
};
inline constexpr std::array<dtype_row, 8> dtypes{{{dtype::f64, "F64", 8},
                                                  {dtype::f32, "F32", 4},
                                                  {dtype::bf16, "BF16", 2},
                                                  {dtype::f16, "F16", 2},
                                                  {dtype::i64, "I64", 8},
                                                  {dtype::i32, "I32", 4},
                                                  {dtype::u8, "U8", 1},
                                                  {dtype::boolean, "BOOL", 1}}};

constexpr int bytes_of(dtype type) {
  for (const auto& row : dtypes)
    if (row.type == type) return row.bytes;
  return 0;
}
inline std::string_view name_of(dtype type) {
  for (const auto& row : dtypes)
    if (row.type == type) return row.name;
  return "of another dtype";
}
inline dtype dtype_named(std::string_view name) {
  for (const auto& row : dtypes)
    if (row.name == name) return row.type;
  return dtype::other;
}
constexpr bool is_floating(dtype type) {
  return type == dtype::f64 || type == dtype::f32 || type == dtype::bf16 || type == dtype::f16;
}

/// The file's dtype of a C++ type.
template <class T>
constexpr dtype dtype_of() {
  if constexpr (std::is_same_v<T, double>) {
    return dtype::f64;
  } else if constexpr (std::is_same_v<T, float>) {
    return dtype::f32;
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    return dtype::bf16;
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    return dtype::i64;
  } else if constexpr (std::is_same_v<T, std::int32_t>) {
    return dtype::i32;
  } else if constexpr (std::is_same_v<T, std::uint8_t>) {
    return dtype::u8;
  } else {
    static_assert(std::is_same_v<T, bool>,
                  "lrmoe::safetensors: the element type must be double, float, lrmoe::bfloat16, "
                  "std::int64_t, std::int32_t, std::uint8_t or bool");
    return dtype::boolean;
  }
}

inline float float_of_half(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fU;
  const std::uint32_t fraction = bits & 0x3ffU;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t widened = exponent == 31 ? 255 : exponent - 15 + 127;
  return std::bit_cast<float>(sign | widened << 23 | fraction << 13);
}

/// The nearest bfloat16, ties to even. Rounding to float on the way must not decide a tie, so what float
/// cannot hold is kept in its last bit (rounding to odd).
inline bfloat16 bfloat16_of(double value) {
  const auto nearest = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearest) == value) return bfloat16(nearest);
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::abs(static_cast<double>(nearest)) > std::abs(value)) --bits;
  return bfloat16(std::bit_cast<float>(bits | 1U));
}

template <class To, class From>
To convert_floating(From value) {
  if constexpr (std::is_same_v<From, bfloat16>) {
    return convert_floating<To>(static_cast<float>(value));
  } else if constexpr (!std::is_same_v<To, bfloat16>) {
    return static_cast<To>(value);
  } else if constexpr (std::is_same_v<From, double>) {
    return bfloat16_of(value);
  } else {
    return bfloat16(value);
  }
}

/// `count` numbers at `from`, stored as Stored, to To.
template <class Stored, class To, class Convert>
void convert_run(const std::byte* from, std::span<To> to, const Convert& convert) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    Stored value;
    std::memcpy(static_cast<void*>(&value), from + i * sizeof(Stored), sizeof(Stored));
    to[i] = convert(value);
  }
}

template <class To, class Refuse>
void convert(dtype type, const std::byte* from, std::span<To> to, const Refuse& refuse) {
  if constexpr (is_floating(dtype_of<To>())) {
    const auto as_is = [](auto value) { return convert_floating<To>(value); };
    const auto half = [](std::uint16_t bits) { return convert_floating<To>(float_of_half(bits)); };
    switch (type) {
      case dtype::f64:
        return convert_run<double>(from, to, as_is);
      case dtype::f32:
        return convert_run<float>(from, to, as_is);
      case dtype::bf16:
        return convert_run<bfloat16>(from, to, as_is);
      default:
        return convert_run<std::uint16_t>(from, to, half);
    }
  } else {
    const auto checked = [&](auto value) {
      const auto wide = static_cast<std::int64_t>(value);
      if (wide < static_cast<std::int64_t>(std::numeric_limits<To>::min()) ||
          wide > static_cast<std::int64_t>(std::numeric_limits<To>::max())) {
        refuse(wide);
      }
      return static_cast<To>(wide);
    };
    switch (type) {
      case dtype::i64:
        return convert_run<std::int64_t>(from, to, checked);
      case dtype::i32:
        return convert_run<std::int32_t>(from, to, checked);
      default:
        return convert_run<std::uint8_t>(from, to, checked);
    }
  }
}

/// A file descriptor that closes itself.
class descriptor {
 public:
  explicit descriptor(int value) : value_(value) {}
  descriptor(descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~descriptor() { close(); }
  int get() const { return value_; }
  /// Whether what was written is known to have arrived.
  bool close() {
    const int value = std::exchange(value_, -1);
    return value < 0 || ::close(value) == 0;
  }

 private:
  int value_;
};

inline std::string text_of(const std::vector<std::int64_t>& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + ")";
}

/// The product of the extents, or -1 when it exceeds 2^63 - 1.
inline std::int64_t product(const std::vector<std::int64_t>& shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (count > std::numeric_limits<std::int64_t>::max() / extent) return -1;
    count *= extent;
  }
  return count;
}

/// Elements that pass through host memory at once, where they cannot go directly.
inline constexpr std::int64_t staged_elements = std::int64_t{1} << 22;

template <class View>
constexpr bool on_host =
    Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename View::memory_space>::accessible;

template <class View>
std::vector<std::int64_t> shape_of(const View& view) {
  static_assert(std::is_same_v<typename View::array_layout, Kokkos::LayoutRight>,
                "lrmoe::safetensors: the view must be row-major, Kokkos::LayoutRight");
  require(view.span_is_contiguous(), "safetensors: the view '", view.label(),
          "' has gaps between its rows: pass a contiguous one");
  std::vector<std::int64_t> shape;
  // Not `i < rank`: nvcc warns of an unsigned number below the 0 of a single value.
  for (std::size_t i = 0; i != View::rank(); ++i)
    shape.push_back(static_cast<std::int64_t>(view.extent(i)));
  return shape;
}

/// The elements of a contiguous view from `first` on, as a row.
template <class View>
auto part(const View& view, std::int64_t first, std::int64_t count) {
  return Kokkos::View<typename View::value_type*, Kokkos::LayoutRight, typename View::device_type,
                      Kokkos::MemoryUnmanaged>(view.data() + first,
                                               static_cast<std::size_t>(count));
}
template <class T>
auto host_row(T* data, std::int64_t count) {
  return Kokkos::View<T*, Kokkos::LayoutRight, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(
      data, static_cast<std::size_t>(count));
}

}  // namespace detail

/// What the header says of one tensor.
struct tensor_info {
  dtype type = dtype::other;
  std::string type_name;  ///< as in the file, also where this library does not know it
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0, end = 0;  ///< bytes, counted from the end of the header

  std::int64_t size() const { return detail::product(shape); }
};

/// Reads single tensors of a file, of any size: nothing but the header stays in memory.
///   Element type of the reader     dtype in the file            value
///   double, float, bfloat16        F64 F32 BF16 F16             exact or rounded to nearest, ties to even
///   int64, int32, uint8, bool      I64 I32 U8 BOOL              exact; refused where it does not fit
/// Throws    file_error for a file that cannot be read, breaks the format or lacks the tensor;
///           argument_error for a destination of another size, or numbers of another kind
/// Threads   const functions may be called by several at once
class reader {
 public:
  /// Opens the file and checks the whole header: lengths, offsets, overlaps, gaps, sizes, names.
  explicit reader(std::string path);

  const std::string& path() const { return path_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::map<std::string, tensor_info>& tensors() const { return tensors_; }
  bool contains(const std::string& name) const { return tensors_.count(name) != 0; }

  /// Throws file_error that lists the names most like this one.
  const tensor_info& info(const std::string& name) const;
  /// Throws file_error when the tensor's shape is not this one.
  const tensor_info& require_shape(const std::string& name,
                                   const std::vector<std::int64_t>& shape) const;
  /// Throws file_error when there is no such entry.
  const std::string& metadata(const std::string& key) const;

  /// All elements, row-major.
  template <class T>
  std::vector<T> read(const std::string& name) const;
  template <class T>
  void read(const std::string& name, std::span<T> to) const;
  /// Elements first, first + 1, ... as many as `to` holds.
  template <class T>
  void read_part(const std::string& name, std::int64_t first, std::span<T> to) const;
  /// Into a contiguous row-major view of the tensor's shape in any memory space.
  /// Order     returns when the view is filled; fences as Kokkos::deep_copy without a space
  template <class View>
  requires Kokkos::is_view_v<View>
  void read(const std::string& name, const View& to) const;

 private:
  using json = nlohmann::json;

  template <class... Parts>
  void require_file(bool condition, const Parts&... parts) const {
    detail::require_file(condition, path_, parts...);
  }
  void read_bytes(std::int64_t offset, std::span<std::byte> to) const;
  json parse(const std::string& text) const;
  tensor_info parse_tensor(const std::string& name, const json& entry) const;
  void require_cover() const;

  std::string path_;
  detail::descriptor file_{-1};
  std::int64_t data_begin_ = 0, data_bytes_ = 0;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, tensor_info> tensors_;
};

/// Writes a file of named tensors.
/// Ensures   equal content gives equal bytes, whatever the order of calls: wider dtypes come first, names
///           in ascending order, so that every tensor is aligned
///           the file is replaced in one step: a reader, or a crash, sees the old content or the new
/// Expects   memory behind spans and views lives, unchanged, until write() returns
class writer {
 public:
  /// Produces elements first, first + 1, ... of a tensor; called with ascending ranges while writing.
  template <class T>
  using producer = std::function<void(std::int64_t first, std::span<T> to)>;

  void set_metadata(std::string key, std::string value) {
    metadata_[std::move(key)] = std::move(value);
  }

  /// Throws argument_error for a name used before and for a size that is not the shape's.
  template <class T>
  void add(const std::string& name, std::vector<std::int64_t> shape, std::span<const T> values);
  template <class View>
  requires Kokkos::is_view_v<View>
  void add(const std::string& name, const View& view);
  /// Elements that need not be in memory at once.
  template <class T>
  void add_produced(const std::string& name, std::vector<std::int64_t> shape, producer<T> produce);

  /// Throws file_error, with the file as it was.
  void write(const std::string& path) const;

 private:
  struct entry {
    dtype type;
    std::vector<std::int64_t> shape;
    std::function<void(const std::function<void(const void*, std::size_t)>&)> emit;
  };

  std::string header(std::vector<const entry*>& order) const;

  std::map<std::string, std::string> metadata_;
  std::map<std::string, entry> tensors_;
};

// --------------------------------------------------------------------------------- reader

inline reader::reader(std::string path)
    : path_(std::move(path)), file_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
  require_file(file_.get() >= 0, "cannot open it: ", std::strerror(errno));
  struct stat status {};
  require_file(::fstat(file_.get(), &status) == 0 && S_ISREG(status.st_mode),
               "it is not a regular file");
  const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
  require_file(file_bytes >= 8, "it has ", file_bytes,
               " bytes, fewer than the 8 that tell the header's length: it is truncated or not a "
               "safetensors file");
  std::uint64_t length = 0;
  read_bytes(0, std::as_writable_bytes(std::span(&length, 1)));
  require_file(length <= max_header_bytes, "its header would have ", length,
               " bytes, more than the ", max_header_bytes,
               " accepted: it is damaged or not a safetensors file");
  require_file(length <= file_bytes - 8, "its header would have ", length, " bytes, the file has ",
               file_bytes - 8, " after the length: it is truncated");
  data_begin_ = static_cast<std::int64_t>(8 + length);
  data_bytes_ = static_cast<std::int64_t>(file_bytes) - data_begin_;

  std::string text(length, '\0');
  read_bytes(8, std::as_writable_bytes(std::span(text)));
  const json header = parse(text);
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      require_file(value.is_object(), "its __metadata__ is not an object");
      for (const auto& [key, content] : value.items()) {
        require_file(content.is_string(), "its metadata '", key, "' is not text");
        metadata_[key] = content.get<std::string>();
      }
    } else {
      tensors_[name] = parse_tensor(name, value);
    }
  }
  require_cover();
}

inline nlohmann::json reader::parse(const std::string& text) const {
  // The parser would keep the last of two equal names.
  std::set<std::string> names;
  const auto unique = [&](int depth, json::parse_event_t event, const json& parsed) {
    if (event == json::parse_event_t::key && depth == 1) {
      const auto& name = parsed.get_ref<const std::string&>();
      require_file(names.insert(name).second, "its header has the name '", name, "' twice");
    }
    return true;
  };
  json header;
  try {
    header = json::parse(text, unique);
  } catch (const json::exception& problem) {
    detail::refuse_file(path_, "its header is not JSON: ", problem.what());
  }
  require_file(header.is_object(), "its header is not a JSON object");
  return header;
}

inline tensor_info reader::parse_tensor(const std::string& name, const json& entry) const {
  const auto is_extent = [](const json& value) {
    return value.is_number_unsigned() &&
           value.get<std::uint64_t>() <=
               static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  };
  const auto are_extents = [&](const char* key) {
    return entry.contains(key) && entry[key].is_array() &&
           std::all_of(entry[key].begin(), entry[key].end(), is_extent);
  };
  require_file(
      entry.is_object() && entry.contains("dtype") && entry["dtype"].is_string() &&
          are_extents("shape") && are_extents("data_offsets") && entry["data_offsets"].size() == 2,
      "its header does not give tensor '", name, "' a dtype, a shape and two data_offsets");
  tensor_info info;
  info.type_name = entry["dtype"].get<std::string>();
  info.type = detail::dtype_named(info.type_name);
  info.shape = entry["shape"].get<std::vector<std::int64_t>>();
  info.begin = entry["data_offsets"][0].get<std::int64_t>();
  info.end = entry["data_offsets"][1].get<std::int64_t>();
  require_file(info.begin <= info.end && info.end <= data_bytes_, "tensor '", name,
               "' would lie at bytes ", info.begin, " to ", info.end, " of the ", data_bytes_,
               " after the header: the file is truncated or damaged");
  if (info.type == dtype::other) return info;
  const std::int64_t size = info.size();
  const int width = detail::bytes_of(info.type);
  require_file(size >= 0 && size <= std::numeric_limits<std::int64_t>::max() / width &&
                   info.end - info.begin == size * width,
               "tensor '", name, "' of shape ", detail::text_of(info.shape), " and dtype ",
               info.type_name, " has ", info.end - info.begin,
               " bytes, which is not what they make");
  return info;
}

/// Every byte after the header belongs to exactly one tensor.
inline void reader::require_cover() const {
  std::vector<std::pair<const std::string*, const tensor_info*>> order;
  for (const auto& [name, info] : tensors_) order.emplace_back(&name, &info);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  std::int64_t covered = 0;
  const std::string* before = nullptr;
  for (const auto& [name, info] : order) {
    require_file(info->begin >= covered, "tensors '", before == nullptr ? *name : *before,
                 "' and '", *name, "' overlap at byte ", info->begin);
    require_file(info->begin == covered, "bytes ", covered, " to ", info->begin,
                 " after the header belong to no tensor");
    covered = info->end;
    before = name;
  }
  require_file(covered == data_bytes_, "bytes ", covered, " to ", data_bytes_,
               " after the header belong to no tensor");
}

inline const tensor_info& reader::info(const std::string& name) const {
  if (const auto found = tensors_.find(name); found != tensors_.end()) return found->second;
  // Names of a model differ in the middle: a number, a word.
  const auto likeness = [&](const std::string& other) {
    const auto head = std::mismatch(name.begin(), name.end(), other.begin(), other.end()).first;
    const auto tail = std::mismatch(name.rbegin(), name.rend(), other.rbegin(), other.rend()).first;
    const auto alike = (head - name.begin()) + (tail - name.rbegin());
    return 2 * alike - static_cast<std::ptrdiff_t>(other.size());
  };
  std::vector<std::pair<std::ptrdiff_t, const std::string*>> others;
  for (const auto& [other, unused] : tensors_) others.emplace_back(likeness(other), &other);
  const auto shown = std::min<std::size_t>(3, others.size());
  std::partial_sort(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(shown),
                    others.end(), [](const auto& a, const auto& b) {
                      return a.first != b.first ? a.first > b.first : *a.second < *b.second;
                    });
  std::ostringstream text;
  for (std::size_t i = 0; i < shown; ++i)
    text << (i == 0 ? "; most like it: '" : ", '") << *others[i].second << "'";
  detail::refuse_file(path_, "there is no tensor '", name, "' among its ", tensors_.size(),
                      text.str());
}

inline const tensor_info& reader::require_shape(const std::string& name,
                                                const std::vector<std::int64_t>& shape) const {
  const tensor_info& found = info(name);
  require_file(found.shape == shape, "tensor '", name, "' has shape ", detail::text_of(found.shape),
               ", expected ", detail::text_of(shape));
  return found;
}

inline const std::string& reader::metadata(const std::string& key) const {
  const auto found = metadata_.find(key);
  require_file(found != metadata_.end(), "there is no metadata '", key, "' among its ",
               metadata_.size());
  return found->second;
}

inline void reader::read_bytes(std::int64_t offset, std::span<std::byte> to) const {
  for (std::size_t done = 0; done < to.size();) {
    const ssize_t got = ::pread(file_.get(), to.data() + done, to.size() - done,
                                static_cast<off_t>(offset + static_cast<std::int64_t>(done)));
    if (got < 0 && errno == EINTR) continue;
    require_file(got >= 0, "reading failed: ", std::strerror(errno));
    require_file(got > 0, "it became shorter while it was read");
    done += static_cast<std::size_t>(got);
  }
}

template <class T>
void reader::read_part(const std::string& name, std::int64_t first, std::span<T> to) const {
  const tensor_info& tensor = info(name);
  constexpr dtype wanted = detail::dtype_of<T>();
  require_file(tensor.type != dtype::other, "tensor '", name, "' has dtype ", tensor.type_name,
               ", which this library does not read");
  require(detail::is_floating(tensor.type) == detail::is_floating(wanted), "safetensors: tensor '",
          name, "' of ", path_, " is ", tensor.type_name, " and is not converted to ",
          detail::name_of(wanted), ": read it as ",
          detail::is_floating(wanted) ? "an integer type" : "a floating type");
  const auto count = static_cast<std::int64_t>(to.size());
  require(first >= 0 && first <= tensor.size() && count <= tensor.size() - first,
          "safetensors: elements ", first, " to ", first, " + ", count, " of tensor '", name,
          "', which has ", tensor.size(), " in ", path_, ": ask for fewer");
  const int width = detail::bytes_of(tensor.type);
  const std::int64_t begin = data_begin_ + tensor.begin + first * width;
  if (tensor.type == wanted && wanted != dtype::boolean) {
    read_bytes(begin, std::as_writable_bytes(to));
    return;
  }
  std::vector<std::byte> staged(
      static_cast<std::size_t>(std::min(count, detail::staged_elements) * width));
  for (std::int64_t done = 0; done < count; done += detail::staged_elements) {
    const auto now = static_cast<std::size_t>(std::min(count - done, detail::staged_elements));
    const std::span bytes(staged.data(), now * static_cast<std::size_t>(width));
    read_bytes(begin + done * width, bytes);
    detail::convert(tensor.type, bytes.data(), to.subspan(static_cast<std::size_t>(done), now),
                    [&](std::int64_t value) {
                      detail::refuse_file(path_, "tensor '", name, "' holds ", value,
                                          ", which does not fit into ", detail::name_of(wanted));
                    });
  }
}

template <class T>
void reader::read(const std::string& name, std::span<T> to) const {
  const tensor_info& tensor = info(name);
  require(tensor.type == dtype::other || static_cast<std::int64_t>(to.size()) == tensor.size(),
          "safetensors: tensor '", name, "' of ", path_, " has ", tensor.size(),
          " elements, shape ", detail::text_of(tensor.shape), ", the destination ", to.size(),
          ": give it as many");
  read_part(name, 0, to);
}

template <class T>
std::vector<T> reader::read(const std::string& name) const {
  static_assert(!std::is_same_v<T, bool>, "a std::vector<bool> has no span: read std::uint8_t");
  const tensor_info& tensor = info(name);
  std::vector<T> values(static_cast<std::size_t>(tensor.type == dtype::other ? 0 : tensor.size()));
  read(name, std::span<T>(values));
  return values;
}

template <class View>
requires Kokkos::is_view_v<View>
void reader::read(const std::string& name, const View& to) const {
  using T = typename View::non_const_value_type;
  static_assert(std::is_same_v<typename View::value_type, T>, "the view must not be const");
  const auto shape = detail::shape_of(to);
  const tensor_info& tensor = info(name);
  require(tensor.shape == shape, "safetensors: tensor '", name, "' of ", path_, " has shape ",
          detail::text_of(tensor.shape), ", the view ", detail::text_of(shape),
          ": give it the same");
  const auto size = static_cast<std::int64_t>(to.size());
  if constexpr (detail::on_host<View>) {
    Kokkos::fence("lrmoe::safetensors: before the host writes into a view");
    read_part(name, 0, std::span<T>(to.data(), to.size()));
  } else {
    std::vector<T> staged(static_cast<std::size_t>(std::min(size, detail::staged_elements)));
    for (std::int64_t first = 0; first < size; first += detail::staged_elements) {
      const auto now = std::min(size - first, detail::staged_elements);
      read_part(name, first, std::span(staged.data(), static_cast<std::size_t>(now)));
      Kokkos::deep_copy(detail::part(to, first, now), detail::host_row(staged.data(), now));
    }
  }
}

// --------------------------------------------------------------------------------- writer

template <class T>
void writer::add_produced(const std::string& name, std::vector<std::int64_t> shape,
                          producer<T> produce) {
  const std::int64_t size = detail::product(shape);
  require(
      std::all_of(shape.begin(), shape.end(), [](std::int64_t n) { return n >= 0; }) && size >= 0,
      "safetensors: tensor '", name, "' cannot have shape ", detail::text_of(shape),
      ": extents are not negative and their product is below 2^63");
  require(name != "__metadata__",
          "safetensors: '__metadata__' cannot name a tensor: use set_metadata");
  auto emit = [size, produce = std::move(produce)](
                  const std::function<void(const void*, std::size_t)>& sink) {
    const auto staged =
        std::make_unique<T[]>(static_cast<std::size_t>(std::min(size, detail::staged_elements)));
    for (std::int64_t first = 0; first < size; first += detail::staged_elements) {
      const auto now = static_cast<std::size_t>(std::min(size - first, detail::staged_elements));
      produce(first, std::span<T>(staged.get(), now));
      sink(staged.get(), now * sizeof(T));
    }
  };
  const bool added =
      tensors_.emplace(name, entry{detail::dtype_of<T>(), std::move(shape), std::move(emit)})
          .second;
  require(added, "safetensors: two tensors have the name '", name, "': give each its own");
}

template <class T>
void writer::add(const std::string& name, std::vector<std::int64_t> shape,
                 std::span<const T> values) {
  const std::int64_t size = detail::product(shape);
  require(static_cast<std::int64_t>(values.size()) == size, "safetensors: tensor '", name,
          "' of shape ", detail::text_of(shape), " has ", size, " elements, ", values.size(),
          " were given: pass as many");
  add_produced<T>(name, std::move(shape), [values](std::int64_t first, std::span<T> to) {
    std::copy_n(values.begin() + first, to.size(), to.begin());
  });
}

template <class View>
requires Kokkos::is_view_v<View>
void writer::add(const std::string& name, const View& view) {
  using T = typename View::non_const_value_type;
  add_produced<T>(name, detail::shape_of(view), [view](std::int64_t first, std::span<T> to) {
    const auto count = static_cast<std::int64_t>(to.size());
    Kokkos::deep_copy(detail::host_row(to.data(), count), detail::part(view, first, count));
  });
}

inline std::string writer::header(std::vector<const entry*>& order) const {
  std::vector<std::pair<std::string, const entry*>> named;
  for (const auto& [name, tensor] : tensors_) named.emplace_back(name, &tensor);
  std::stable_sort(named.begin(), named.end(), [](const auto& a, const auto& b) {
    return detail::bytes_of(a.second->type) > detail::bytes_of(b.second->type);
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata_.empty()) header["__metadata__"] = metadata_;
  std::int64_t offset = 0;
  for (const auto& [name, tensor] : named) {
    const std::int64_t size = detail::product(tensor->shape);
    const int width = detail::bytes_of(tensor->type);
    require(size <= (std::numeric_limits<std::int64_t>::max() - offset) / width,
            "safetensors: the tensors exceed 2^63 bytes: write several files");
    const std::int64_t end = offset + size * width;
    header[name] = {{"dtype", detail::name_of(tensor->type)},
                    {"shape", tensor->shape},
                    {"data_offsets", {offset, end}}};
    offset = end;
    order.push_back(tensor);
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception& problem) {
    require(false, "safetensors: names and metadata must be UTF-8: ", problem.what());
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  require(text.size() <= max_header_bytes, "safetensors: names and metadata make a header of ",
          text.size(), " bytes, more than ", max_header_bytes, ": write several files");
  return text;
}

inline void writer::write(const std::string& path) const {
  std::vector<const entry*> order;
  const std::string text = header(order);
  const std::string temporary = path + ".tmp" + std::to_string(::getpid());
  detail::descriptor file(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  detail::require_file(file.get() >= 0, temporary, "cannot create it: ", std::strerror(errno));
  // Unless all went well nothing is left behind.
  struct remover {
    const char* name;
    ~remover() {
      if (name != nullptr) ::unlink(name);
    }
  } leftover{temporary.c_str()};
  const auto sink = [&](const void* data, std::size_t bytes) {
    const auto* from = static_cast<const char*>(data);
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t written = ::write(file.get(), from + done, bytes - done);
      if (written < 0 && errno == EINTR) continue;
      detail::require_file(written > 0, path, "writing ", temporary,
                           " failed: ", std::strerror(errno), "; the file is as it was before");
      done += static_cast<std::size_t>(written);
    }
  };
  const std::uint64_t length = text.size();
  sink(&length, sizeof length);
  sink(text.data(), text.size());
  for (const entry* tensor : order) tensor->emit(sink);
  const bool arrived = ::fsync(file.get()) == 0;
  detail::require_file(file.close() && arrived, path, "writing ", temporary,
                       " failed: ", std::strerror(errno), "; the file is as it was before");
  detail::require_file(::rename(temporary.c_str(), path.c_str()) == 0, path, "renaming ", temporary,
                       " failed: ", std::strerror(errno));
  leftover.name = nullptr;
  // The rename outlasts a power cut once the folder is written too.
  const auto folder = std::filesystem::absolute(path).parent_path();
  const detail::descriptor handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (handle.get() >= 0) ::fsync(handle.get());
}

}  // namespace lrmoe::safetensors
