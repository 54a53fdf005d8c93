// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <new>
#include <string>
#include <utility>

#include <lrmoe/memory/ledger.hpp>
#include <lrmoe/types.hpp>

namespace lrmoe {

/// One block of memory that only grows and is booked in a ledger. It lies on the device of its space, which
/// need not be Kokkos' default one, and work of that space alone uses it.
/// It hands out unmanaged views of its storage, so a step of the size already seen allocates
/// nothing. Growing discards the contents and invalidates views handed out before.
/// New storage is not initialised.
template <class Device>
class buffer {
 public:
  using execution_space = typename Device::execution_space;

  buffer(const execution_space& space, ledger& account, memory_category category, std::string label)
      : space_(space),
        ledger_(&account),
        category_(category),
        label_("lrmoe::" + std::move(label)) {}

  buffer(const buffer&) = delete;
  buffer& operator=(const buffer&) = delete;
  buffer(buffer&& other) noexcept
      : space_(other.space_),
        ledger_(other.ledger_),
        category_(other.category_),
        label_(std::move(other.label_)),
        storage_(std::exchange(other.storage_, {})) {}
  buffer& operator=(buffer&&) = delete;
  ~buffer() { release(); }

  /// View of n uninitialised values. Throws memory_error when the budget or the device refuses.
  template <class T>
  vector_view<T, Device> vector(std::int64_t n) {
    return vector_view<T, Device>(reserve<T>(n), static_cast<std::size_t>(n));
  }

  /// Row-major view of rows x columns uninitialised values; errors as vector().
  template <class T>
  matrix_view<T, Device> matrix(std::int64_t rows, std::int64_t columns) {
    return matrix_view<T, Device>(reserve<T>(rows * columns), static_cast<std::size_t>(rows),
                                  static_cast<std::size_t>(columns));
  }

  std::int64_t size_bytes() const { return static_cast<std::int64_t>(storage_.extent(0)); }

  /// Set every byte, asynchronously on the space. 0xff makes NaN of every floating-point type and
  /// -1 of every index: tests poison buffers to show that nothing stale is read.
  template <class ExecutionSpace>
  void fill_bytes(const ExecutionSpace& space, unsigned char value) {
    Kokkos::deep_copy(space, storage_, value);
  }

 private:
  using storage_type = Kokkos::View<unsigned char*, Device>;

  template <class T>
  T* reserve(std::int64_t n) {
    const std::int64_t bytes = n * static_cast<std::int64_t>(sizeof(T));
    if (bytes > size_bytes()) grow(bytes);
    return reinterpret_cast<T*>(storage_.data());
  }

  void grow(std::int64_t bytes) {
    release();
    ledger_->add(category_, bytes);
    try {
      storage_ = storage_type(Kokkos::view_alloc(space_, label_, Kokkos::WithoutInitializing),
                              static_cast<std::size_t>(bytes));
    } catch (const std::exception& failure) {
      ledger_->remove(category_, bytes);
      throw memory_error("lrmoe: allocating " + std::to_string(bytes) + " bytes for " + label_ +
                         " failed: " + failure.what());
    }
  }

  void release() {
    // Work may still use the memory, and not every runtime waits for it before it frees: cudaFree does,
    // cudaFreeAsync does not.
    if (size_bytes() > 0) space_.fence("lrmoe::buffer: before its memory is freed");
    ledger_->remove(category_, size_bytes());
    storage_ = {};
  }

  execution_space space_;
  ledger* ledger_;
  memory_category category_;
  std::string label_;
  storage_type storage_;
};

}  // namespace lrmoe
