// Views with known surroundings: filled from double values or poisoned with NaN, at a chosen
// misalignment, and with guard elements on both sides that tell whether a kernel wrote outside.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

#include <Kokkos_Core.hpp>

#include <lrmoe/types.hpp>

#include "check.hpp"
#include "oracle.hpp"
#include "random.hpp"

namespace fixture {

// In a build for a GPU the same tests run there: arrays are filled and read through copies.
using space_type = Kokkos::DefaultExecutionSpace;
using device = space_type::device_type;
inline constexpr bool on_host =
    Kokkos::SpaceAccessibility<Kokkos::HostSpace, device::memory_space>::accessible;

/// A space of so many threads; a GPU has what it has.
template <class Space = space_type>
Space space_of_threads([[maybe_unused]] int threads) {
  if constexpr (on_host)
    return Space(threads);
  else
    return Space();
}

/// The elements of a contiguous view.
template <class View>
std::vector<typename View::non_const_value_type> host_copy(const View& view) {
  const auto mirror = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
  return {mirror.data(), mirror.data() + mirror.size()};
}

template <class T>
constexpr oracle::format format_of() {
  if constexpr (std::is_same_v<T, double>)
    return oracle::format::binary64;
  else if constexpr (std::is_same_v<T, float>)
    return oracle::format::binary32;
  else
    return oracle::format::bfloat16;
}

template <class T>
T element(double value) {
  if constexpr (std::is_same_v<T, lrmoe::bfloat16>)
    return lrmoe::bfloat16(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

template <class T>
double value_of(T value) {
  if constexpr (std::is_same_v<T, lrmoe::bfloat16>)
    return static_cast<double>(static_cast<float>(value));
  else
    return static_cast<double>(value);
}

/// The bytes of some elements, for bitwise comparison; prints as length and hash.
class byte_string {
 public:
  byte_string() = default;
  template <class T>
  byte_string(const T* data, std::size_t count) {
    const auto* first = reinterpret_cast<const unsigned char*>(data);
    if (count > 0) bytes_.assign(first, first + count * sizeof(T));
  }
  bool operator==(const byte_string&) const = default;
  friend std::ostream& operator<<(std::ostream& stream, const byte_string& s) {
    std::uint64_t hash = 14695981039346656037ULL;  // FNV-1a
    for (const unsigned char byte : s.bytes_) hash = (hash ^ byte) * 1099511628211ULL;
    return stream << s.bytes_.size() << " bytes with hash " << hash;
  }

 private:
  std::vector<unsigned char> bytes_;
};

/// While one lives, arrays that this thread makes lie on the device of its space instead of the default one.
class arrays_on {
 public:
  explicit arrays_on(const space_type& space) : before_(space_of_arrays_) {
    space_of_arrays_ = &space;
  }
  arrays_on(const arrays_on&) = delete;
  arrays_on& operator=(const arrays_on&) = delete;
  ~arrays_on() { space_of_arrays_ = before_; }

  static space_type space() {
    return space_of_arrays_ != nullptr ? *space_of_arrays_ : space_type();
  }

 private:
  static inline thread_local const space_type* space_of_arrays_ = nullptr;
  const space_type* before_;
};

/// Owned storage of n elements, `misaligned_by` elements away from an aligned address.
template <class T>
class array {
 public:
  array() : array(0) {}

  /// Poisoned: NaN for floating types, -1 for integers.
  explicit array(oracle::integer n, std::size_t misaligned_by = 0)
      : first_(guard + misaligned_by),
        size_(static_cast<std::size_t>(n)),
        space_(arrays_on::space()),
        storage_(Kokkos::view_alloc(space_, "lrmoe_test::array", Kokkos::WithoutInitializing),
                 first_ + size_ + guard) {
    poison();
  }
  array(const std::vector<double>& values, std::size_t misaligned_by = 0)
      : array(static_cast<oracle::integer>(values.size()), misaligned_by) {
    fill_from([&](std::size_t i) { return element<T>(values[i]); });
  }
  template <class Integer>
  requires std::is_integral_v<Integer>
  explicit array(const std::vector<Integer>& values, std::size_t misaligned_by = 0)
      : array(static_cast<oracle::integer>(values.size()), misaligned_by) {
    fill_from([&](std::size_t i) { return static_cast<T>(values[i]); });
  }

  void poison() {
    Kokkos::deep_copy(
        space_,
        Kokkos::View<unsigned char*, device, Kokkos::MemoryUnmanaged>(
            reinterpret_cast<unsigned char*>(storage_.data()), bytes(storage_.extent(0))),
        static_cast<unsigned char>(0xff));
    space_.fence("lrmoe_test::poison");
  }

  T* data() const requires on_host { return storage_.data() + first_; }
  std::size_t size() const { return size_; }

  lrmoe::vector_view<T, device> vector() const {
    return lrmoe::vector_view<T, device>(first(), size_);
  }
  lrmoe::matrix_view<T, device> matrix(oracle::integer rows, oracle::integer columns) const {
    return lrmoe::matrix_view<T, device>(first(), static_cast<std::size_t>(rows),
                                         static_cast<std::size_t>(columns));
  }
  lrmoe::tensor_view<T, device> tensor(oracle::integer planes, oracle::integer rows,
                                       oracle::integer columns) const {
    return lrmoe::tensor_view<T, device>(first(), static_cast<std::size_t>(planes),
                                         static_cast<std::size_t>(rows),
                                         static_cast<std::size_t>(columns));
  }

  std::vector<T> elements() const {
    const auto host = on_the_host();
    return {host.data() + first_, host.data() + first_ + size_};
  }
  void fill(T value) const {
    Kokkos::deep_copy(space_, vector(), value);
    space_.fence("lrmoe_test::fill");
  }
  void set(const std::vector<double>& values) const {
    fill_from([&](std::size_t i) { return element<T>(values[i]); });
  }
  std::vector<double> values() const {
    const auto host = on_the_host();
    std::vector<double> result;
    for (std::size_t i = 0; i < size_; ++i) result.push_back(value_of(host(first_ + i)));
    return result;
  }
  byte_string bits() const { return {on_the_host().data() + first_, size_}; }
  /// Whether every byte still has the poison's value.
  bool untouched() const { return poisoned(0, storage_.extent(0)); }
  /// Whether the elements before and behind the data still have.
  bool guards_intact() const {
    return poisoned(0, first_) && poisoned(first_ + size_, storage_.extent(0));
  }

 private:
  static constexpr std::size_t guard = 64;
  T* first() const { return storage_.data() + first_; }
  auto on_the_host() const {
    return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), storage_);
  }
  template <class ValueOf>
  void fill_from(const ValueOf& value_of) const {
    const auto host = on_the_host();
    for (std::size_t i = 0; i < size_; ++i) host(first_ + i) = value_of(i);
    Kokkos::deep_copy(storage_, host);
  }
  static std::size_t bytes(std::size_t n) { return n * sizeof(T); }
  bool poisoned(std::size_t begin, std::size_t end) const {
    const auto host = on_the_host();
    const auto* byte = reinterpret_cast<const unsigned char*>(host.data());
    for (std::size_t i = bytes(begin); i < bytes(end); ++i)
      if (byte[i] != 0xff) return false;
    return true;
  }

  std::size_t first_, size_;
  space_type space_;
  Kokkos::View<T*, device> storage_;
};

template <class T>
lrmoe::vector_view<const T, device> constant(const lrmoe::vector_view<T, device>& view) {
  return view;
}
template <class T>
lrmoe::matrix_view<const T, device> constant(const lrmoe::matrix_view<T, device>& view) {
  return view;
}

/// Message of the argument_error that the call throws; empty if it throws nothing.
template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const lrmoe::argument_error& failure) {
    return failure.what();
  }
  return {};
}

/// Whether the message holds every part; shows the message on failure.
inline bool names(const std::string& message, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts)
    if (message.find(part) == std::string::npos) {
      UNSCOPED_INFO("\"" << part << "\" is not in: " << message);
      return false;
    }
  return true;
}

inline std::vector<double> doubles(const std::vector<std::int32_t>& values) {
  return std::vector<double>(values.begin(), values.end());
}

}  // namespace fixture
