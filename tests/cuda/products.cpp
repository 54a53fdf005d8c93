// Every provider of grouped products against sums in extended precision, with NaN wherever nothing may be
// read or written.
#include <array>
#include <cmath>
#include <cstring>
#include <sstream>

#include <lrmoe/cuda/device.hpp>
#include <lrmoe/cuda/product/measured_product.hpp>

#include "catch.hpp"
#include "fixture.hpp"

namespace {

using lrmoe::index_type;
using lrmoe::cuda::device_type;
using lrmoe::cuda::product_mode;
using lrmoe::cuda::product_operation;
using std::int64_t;
using counts = std::vector<index_type>;

using fixture::element;
using fixture::format_of;
using fixture::value_of;

/// A stream of the program's own.
struct own_stream {
  own_stream() {
    lrmoe::cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                       "making a stream");
    space = Kokkos::Cuda(stream);
  }
  own_stream(const own_stream&) = delete;
  ~own_stream() {
    space = Kokkos::Cuda();
    static_cast<void>(cudaStreamDestroy(stream));
  }
  cudaStream_t stream = nullptr;
  Kokkos::Cuda space;
};

/// n elements on the device between guards, all bytes 0xff at first (NaN).
template <class T>
class device_array {
 public:
  explicit device_array(int64_t n, std::size_t misaligned_by = 0)
      : first_(guard + misaligned_by),
        size_(static_cast<std::size_t>(n)),
        image_("image", first_ + size_ + guard),
        storage_(Kokkos::view_alloc("storage", Kokkos::WithoutInitializing), image_.extent(0)) {
    std::memset(static_cast<void*>(image_.data()), 0xff, image_.extent(0) * sizeof(T));
    upload();
  }

  /// The host's image of element i.
  T& operator[](int64_t i) { return image_(first_ + static_cast<std::size_t>(i)); }
  void upload() { Kokkos::deep_copy(storage_, image_); }
  T* data() const { return storage_.data() + first_; }

  /// All elements, guards included, as they are on the device.
  std::vector<T> download() const {
    const auto copy = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), storage_);
    return {copy.data(), copy.data() + copy.extent(0)};
  }
  std::size_t first() const { return first_; }

 private:
  static constexpr std::size_t guard = 64;
  std::size_t first_, size_;
  Kokkos::View<T*, Kokkos::HostSpace> image_;
  Kokkos::View<T*, Kokkos::CudaSpace> storage_;
};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// Offsets on host and device that begin at `first`.
class group_offsets {
 public:
  explicit group_offsets(const counts& rows, index_type first = 0)
      : host_(rows.size() + 1, first), device_("offsets", rows.size() + 1) {
    for (std::size_t g = 0; g < rows.size(); ++g) host_[g + 1] = host_[g] + rows[g];
    Kokkos::deep_copy(
        device_, Kokkos::View<const index_type*, Kokkos::HostSpace>(host_.data(), host_.size()));
  }
  lrmoe::row_groups<device_type> groups() const { return {device_, host_}; }

 private:
  std::vector<index_type> host_;
  lrmoe::vector_view<index_type, device_type> device_;
};

struct extents {
  int64_t k, n;
};

/// Roundings of one sum of `terms` products: as if each addition cut off up to one unit in the last
/// place, twice what rounding to nearest does, as tensor cores do not promise to round to nearest.
template <class Element>
long double sum_error(int64_t terms, long double magnitude) {
  const long double u = 2 * oracle::unit_roundoff(format_of<lrmoe::accumulate_t<Element>>());
  return static_cast<long double>(terms + 1) * u * magnitude * 1.01L;
}

/// Rows times the matrices of their groups.
template <class Element>
class rows_case {
 public:
  rows_case(fixture::random& draw, const counts& rows, extents shape, bool transpose,
            std::size_t misaligned_by, index_type first)
      : rows_(rows),
        shape_(shape),
        transpose_(transpose),
        offsets_(rows, first),
        total_(offsets_.groups().rows()),
        a_((total_ + spare) * shape.k, misaligned_by),
        weights_(static_cast<int64_t>(rows.size()) * shape.k * shape.n, misaligned_by),
        c_((total_ + spare) * shape.n, misaligned_by) {
    // Spare rows and the matrices of empty groups stay NaN.
    fill(draw, a_, 0, total_ * shape.k, 1.0);
    const int64_t matrix = shape.k * shape.n;
    for (std::size_t g = 0; g < rows.size(); ++g)
      if (rows[g] > 0) fill(draw, weights_, static_cast<int64_t>(g) * matrix, matrix, 0.5);
    a_.upload();
    weights_.upload();
  }

  template <class Product>
  std::vector<Element> run(Product& product, const Kokkos::Cuda& space) {
    c_.upload();
    Kokkos::fence();
    enqueue(product, space);
    space.fence();
    return c_.download();
  }

  template <class Product>
  void enqueue(Product& product, const Kokkos::Cuda& space) {
    const auto G = rows_.size(), k = size(shape_.k), n = size(shape_.n), all = size(total_ + spare);
    product.multiply_rows(space, lrmoe::matrix_view<const Element, device_type>(a_.data(), all, k),
                          offsets_.groups(),
                          lrmoe::tensor_view<const Element, device_type>(
                              weights_.data(), G, transpose_ ? n : k, transpose_ ? k : n),
                          transpose_, lrmoe::matrix_view<Element, device_type>(c_.data(), all, n));
  }

  void check(const std::vector<Element>& got) {
    int64_t wrong = 0, row = 0;
    for (std::size_t g = 0; g < rows_.size(); ++g)
      for (index_type i = 0; i < rows_[g]; ++i, ++row)
        for (int64_t j = 0; j < shape_.n; ++j) {
          long double sum = 0, magnitude = 0;
          for (int64_t q = 0; q < shape_.k; ++q) {
            const int64_t at = transpose_ ? j * shape_.k + q : q * shape_.n + j;
            const long double term =
                static_cast<long double>(value_of(a_[row * shape_.k + q])) *
                value_of(weights_[static_cast<int64_t>(g) * shape_.k * shape_.n + at]);
            sum += term;
            magnitude += std::abs(term);
          }
          long double error = sum_error<Element>(shape_.k, magnitude);
          error += oracle::unit_roundoff(format_of<Element>()) * (std::abs(sum) + error);
          const double result = value_of(got[c_.first() + size(row * shape_.n + j)]);
          wrong += !(std::abs(result - sum) <= error);
        }
    CHECK(wrong == 0);
    // What lies before and behind the rows of the groups was not written.
    const auto end = c_.first() + size(total_ * shape_.n);
    int64_t touched = 0;
    for (std::size_t i = 0; i < got.size(); ++i)
      touched += (i < c_.first() || i >= end) && !std::isnan(value_of(got[i]));
    CHECK(touched == 0);
  }

  static bool untouched(const std::vector<Element>& got) {
    for (const Element each : got)
      if (!std::isnan(value_of(each))) return false;
    return true;
  }

 private:
  static constexpr int64_t spare = 3;
  static std::size_t size(int64_t n) { return static_cast<std::size_t>(n); }
  static void fill(fixture::random& draw, device_array<Element>& to, int64_t first, int64_t n,
                   double deviation) {
    const std::vector<double> values = draw.normal(n, deviation, format_of<Element>());
    for (int64_t i = 0; i < n; ++i) to[first + i] = element<Element>(values[size(i)]);
  }

  counts rows_;
  extents shape_;
  bool transpose_;
  group_offsets offsets_;
  int64_t total_;
  device_array<Element> a_, weights_, c_;
};

constexpr std::array both_updates{lrmoe::gradient_update::add, lrmoe::gradient_update::overwrite};

/// Sums of outer products, added to what is there or in place of the NaN that is there.
template <class Element>
class sums_case {
  using Sum = lrmoe::accumulate_t<Element>;

 public:
  sums_case(fixture::random& draw, const counts& rows, extents shape, std::size_t misaligned_by,
            index_type first, lrmoe::gradient_update update = lrmoe::gradient_update::add)
      : rows_(rows),
        shape_(shape),
        update_(update),
        offsets_(rows, first),
        total_(offsets_.groups().rows()),
        a_((total_ + spare) * shape.k, misaligned_by),
        b_((total_ + spare) * shape.n, misaligned_by),
        gradient_(static_cast<int64_t>(rows.size()) * shape.k * shape.n, misaligned_by) {
    fill(draw, a_, 0, total_ * shape.k);
    fill(draw, b_, 0, total_ * shape.n);
    const int64_t matrix = shape.k * shape.n;
    for (std::size_t g = 0; g < rows.size(); ++g)
      if (adds() && rows[g] > 0) fill(draw, gradient_, static_cast<int64_t>(g) * matrix, matrix);
    a_.upload();
    b_.upload();
  }

  template <class Product>
  std::vector<Sum> run(Product& product, const Kokkos::Cuda& space, int times = 1) {
    gradient_.upload();
    Kokkos::fence();
    const auto k = size(shape_.k), n = size(shape_.n), all = size(total_ + spare);
    for (int i = 0; i < times; ++i)
      product.sum_products(
          space, lrmoe::matrix_view<const Element, device_type>(a_.data(), all, k),
          lrmoe::matrix_view<const Element, device_type>(b_.data(), all, n), offsets_.groups(),
          lrmoe::tensor_view<Sum, device_type>(gradient_.data(), rows_.size(), k, n), update_);
    space.fence();
    return gradient_.download();
  }

  /// After `times` calls.
  void check(const std::vector<Sum>& got, int times = 1) {
    if (!adds()) times = 1;
    const int64_t matrix = shape_.k * shape_.n;
    int64_t wrong = 0, touched = 0, row = 0;
    for (std::size_t g = 0; g < rows_.size(); row += rows_[g], ++g)
      for (int64_t i = 0; i < shape_.k; ++i)
        for (int64_t j = 0; j < shape_.n; ++j) {
          const int64_t at = static_cast<int64_t>(g) * matrix + i * shape_.n + j;
          const double result = got[gradient_.first() + size(at)];
          if (rows_[g] == 0) {
            touched += !std::isnan(result);
            continue;
          }
          long double sum = adds() ? gradient_[at] : Sum(0), magnitude = std::abs(sum);
          for (int64_t r = row; r < row + rows_[g]; ++r) {
            const long double term = static_cast<long double>(value_of(a_[r * shape_.k + i])) *
                                     value_of(b_[r * shape_.n + j]) * times;
            sum += term;
            magnitude += std::abs(term);
          }
          wrong += !(std::abs(result - sum) <=
                     sum_error<Element>((int64_t{rows_[g]} + 1) * times, magnitude));
        }
    CHECK(wrong == 0);
    const auto end = gradient_.first() + rows_.size() * size(matrix);
    for (std::size_t i = 0; i < got.size(); ++i)
      touched += (i < gradient_.first() || i >= end) && !std::isnan(got[i]);
    CHECK(touched == 0);
  }

  std::vector<Sum> before() {
    gradient_.upload();
    return gradient_.download();
  }

 private:
  static constexpr int64_t spare = 3;
  static std::size_t size(int64_t n) { return static_cast<std::size_t>(n); }
  bool adds() const { return update_ == lrmoe::gradient_update::add; }
  template <class T>
  static void fill(fixture::random& draw, device_array<T>& to, int64_t first, int64_t n) {
    const std::vector<double> values = draw.normal(n, 1.0, format_of<T>());
    for (int64_t i = 0; i < n; ++i) to[first + i] = element<T>(values[size(i)]);
  }

  counts rows_;
  extents shape_;
  lrmoe::gradient_update update_;
  group_offsets offsets_;
  int64_t total_;
  device_array<Element> a_, b_;
  device_array<Sum> gradient_;
};

const std::vector<counts> all_counts{
    {0, 1, 7, 8, 9, 0, 0, 15, 16, 17, 127, 0, 128, 129, 0},
    {129, 0, 0, 1},
    {0, 0, 64},
    {40},
    {1, 1, 1, 1, 1, 1},
    {0, 0, 0},
};
const std::vector<extents> aligned_extents{{64, 128}, {136, 72}, {8, 8}};
const std::vector<extents> odd_extents{{33, 17}, {1, 1}, {129, 96}, {64, 51}, {10, 12}};

struct scratch_memory {
  explicit scratch_memory(const Kokkos::Cuda& space) : scratch(space, account) {}
  lrmoe::ledger account;
  lrmoe::workspace<device_type> scratch;
};

/// What a case needs: a stream of its own, memory for scratch, and fresh numbers.
struct trial : own_stream, scratch_memory {
  trial() : scratch_memory(space) {}
  const std::uint64_t seed = fixture::fresh_seed();
  fixture::random draw{seed};
};

/// Message of the lrmoe::error that the call throws; empty if it throws nothing.
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const lrmoe::error& failure) {
    return failure.what();
  }
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Both operations at one set of extents; grouped products may refuse some, and then touch nothing.
template <class Element, class Product>
void check_extents(Product& product, const Kokkos::Cuda& space, fixture::random& draw,
                   extents shape, std::size_t misaligned_by) {
  constexpr bool grouped = std::is_same_v<Product, lrmoe::cuda::cublas_grouped>;
  constexpr bool may_refuse = grouped || std::is_same_v<Product, lrmoe::cuda::hopper_grouped>;
  const auto refusal_is_named = [&](const std::string& message, product_operation operation) {
    if (message.empty()) return false;
    INFO(message);
    CHECK(may_refuse);
    CHECK(contains(message, std::string(lrmoe::cuda::name_of(operation))));
    CHECK(contains(message, "cuda::cublas_loop"));
    if constexpr (grouped) {
      const bool supported = product.template supports<Element>(space, operation);
      CHECK((!supported || contains(message, "multiple of 16 bytes")));
      CHECK((supported || contains(product.refusals(), std::string(name_of(operation)))));
    }
    return true;
  };
  for (const counts& rows : all_counts)
    for (const index_type first : {0, 5}) {
      INFO("k " << shape.k << ", n " << shape.n << ", " << rows.size() << " groups, first row "
                << first << ", misaligned by " << misaligned_by);
      for (const bool transpose : {false, true}) {
        INFO("transposed " << transpose);
        rows_case<Element> in(draw, rows, shape, transpose, misaligned_by, first);
        std::vector<Element> got;
        const std::string message = error_of([&] { got = in.run(product, space); });
        if (!refusal_is_named(message, transpose ? product_operation::multiply_rows_transposed
                                                 : product_operation::multiply_rows))
          in.check(got);
      }
      for (const auto update : both_updates) {
        INFO("overwrites " << (update == lrmoe::gradient_update::overwrite));
        sums_case<Element> in(draw, rows, shape, misaligned_by, first, update);
        std::vector<lrmoe::accumulate_t<Element>> got;
        const std::string message = error_of([&] { got = in.run(product, space); });
        if (!refusal_is_named(message, product_operation::sum_products)) in.check(got);
      }
    }
}

template <class Element, class Product>
void check_product() {
  trial at;
  INFO("seed " << at.seed << ", " << lrmoe::cuda::cublas_type<Element>::name);
  Product product(at.scratch);
  product.reserve(at.space);
  CHECK(at.scratch.size_bytes() == Product::workspace_bytes(at.space));
  const int64_t allocations = at.account.allocations();
  for (const extents shape : aligned_extents)
    check_extents<Element>(product, at.space, at.draw, shape, 0);
  for (const extents shape : odd_extents)
    check_extents<Element>(product, at.space, at.draw, shape, 0);
  check_extents<Element>(product, at.space, at.draw, aligned_extents[0], 1);
  check_extents<Element>(product, at.space, at.draw, odd_extents[0], 1);
  CHECK(at.account.allocations() == allocations);
  CHECK(at.scratch.size_bytes() == Product::workspace_bytes(at.space));
}

/// Many unequal groups, so that lanes overlap and finish in changing order.
template <class Element, class Product>
void check_repeats(bool with_sums) {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed << ", " << lrmoe::cuda::cublas_type<Element>::name);
  fixture::random draw(seed);
  counts rows;
  for (int g = 0; g < 40; ++g)
    rows.push_back(static_cast<index_type>(g % 7 == 3 ? 0 : draw.integer(1, 300)));
  const own_stream own;
  scratch_memory memory(own.space);
  Product product(memory.scratch);
  rows_case<Element> in(draw, rows, {256, 192}, false, 0, 0);
  sums_case<Element> sums(draw, rows, {256, 192}, 0, 0);
  sums_case<Element> overwriting(draw, rows, {256, 192}, 0, 0, lrmoe::gradient_update::overwrite);
  const auto first = in.run(product, own.space);
  in.check(first);
  std::vector<lrmoe::accumulate_t<Element>> first_sums, first_overwritten;
  if (with_sums) {
    sums.check(first_sums = sums.run(product, own.space));
    overwriting.check(first_overwritten = overwriting.run(product, own.space));
  }
  int different = 0;
  for (int again = 0; again < 15; ++again) {
    memory.scratch.fill_bytes(own.space, 0xff);  // what a workspace held before does not matter
    // Another instance has other handles, streams and addresses of the workspace.
    scratch_memory other_memory(own.space);
    Product other(other_memory.scratch);
    Product& next = again % 3 == 2 ? other : product;
    different += !same_bits(in.run(next, own.space), first);
    if (!with_sums) continue;
    different += !same_bits(sums.run(next, own.space), first_sums);
    different += !same_bits(overwriting.run(next, own.space), first_overwritten);
  }
  CHECK(different == 0);
}

/// Whether this GPU and this build have the library's own kernels.
bool hopper_available() {
  const own_stream own;
  scratch_memory memory(own.space);
  return lrmoe::cuda::hopper_grouped(memory.scratch).available(own.space);
}

template <class Element>
bool grouped_sums_supported() {
  const own_stream own;
  scratch_memory memory(own.space);
  lrmoe::cuda::cublas_grouped product(memory.scratch);
  return product.supports<Element>(own.space, product_operation::sum_products);
}

}  // namespace

TEMPLATE_TEST_CASE("the loop of cuBLAS products agrees with plain sums and writes nothing else",
                   "[cuda][products][loop]", float, double, lrmoe::bfloat16) {
  check_product<TestType, lrmoe::cuda::cublas_loop>();
}

TEMPLATE_TEST_CASE("one lane of cuBLAS products serves as well as four", "[cuda][products][loop]",
                   float, lrmoe::bfloat16) {
  trial at;
  INFO("seed " << at.seed);
  lrmoe::cuda::basic_cublas_loop<1> one(at.scratch);
  check_extents<TestType>(one, at.space, at.draw, odd_extents[0], 0);
  lrmoe::cuda::cublas_loop four(at.scratch);
  rows_case<TestType> in(at.draw, all_counts[0], {64, 128}, false, 0, 0);
  CHECK(same_bits(in.run(one, at.space), in.run(four, at.space)));
}

TEMPLATE_TEST_CASE("the grouped cuBLAS product agrees with plain sums or refuses by name",
                   "[cuda][products][grouped]", float, double, lrmoe::bfloat16) {
  check_product<TestType, lrmoe::cuda::cublas_grouped>();
}

TEMPLATE_TEST_CASE("the own grouped product agrees with plain sums or refuses by name",
                   "[cuda][products][hopper]", float, lrmoe::bfloat16) {
  check_product<TestType, lrmoe::cuda::hopper_grouped>();
}

TEST_CASE("the own grouped product sums tiles of every size", "[cuda][products][hopper]") {
  if (!hopper_available()) {
    WARN("no GPU of compute capability 9.0, or no code for it: not tested");
    return;
  }
  trial at;
  INFO("seed " << at.seed);
  lrmoe::cuda::hopper_grouped product(at.scratch);
  // Results of several tiles both ways, and steps of which the last is whole, or ends with any row or column.
  for (const extents shape : {extents{264, 520}, extents{384, 256}, extents{128, 264}}) {
    counts rows{0, 300, 0, 64, 192, 256};
    for (int g = 0; g < 6; ++g) rows.push_back(static_cast<index_type>(at.draw.integer(0, 200)));
    INFO("k " << shape.k << ", n " << shape.n);
    for (const bool transpose : {false, true}) {
      rows_case<lrmoe::bfloat16> in(at.draw, rows, shape, transpose, 0, 3);
      in.check(in.run(product, at.space));
    }
    for (const auto update : both_updates) {
      sums_case<lrmoe::bfloat16> sums(at.draw, rows, shape, 0, 3, update);
      sums.check(sums.run(product, at.space, 2), 2);
    }
  }
  // One long group, and many groups, most of which are empty.
  rows_case<lrmoe::bfloat16> tall(at.draw, {2049}, {72, 136}, false, 0, 0);
  tall.check(tall.run(product, at.space));
  counts sparse(lrmoe::cuda::hopper::max_groups, 0);
  for (int i = 0; i < 40; ++i)
    sparse[static_cast<std::size_t>(at.draw.integer(0, 3000))] =
        static_cast<index_type>(at.draw.integer(1, 90));
  rows_case<lrmoe::bfloat16> scattered(at.draw, sparse, {16, 24}, true, 0, 0);
  scattered.check(scattered.run(product, at.space));
  for (const auto update : both_updates) {
    sums_case<lrmoe::bfloat16> scattered_sums(at.draw, sparse, {16, 24}, 0, 0, update);
    scattered_sums.check(scattered_sums.run(product, at.space));
  }
  sparse.push_back(1);
  rows_case<lrmoe::bfloat16> many(at.draw, sparse, {8, 8}, false, 0, 0);
  CHECK(contains(error_of([&] { many.run(product, at.space); }), "takes up to 3072 groups"));
}

TEMPLATE_TEST_CASE("the product that chooses agrees with plain sums and refuses nothing",
                   "[cuda][products][measured]", float, double, lrmoe::bfloat16) {
  check_product<TestType, lrmoe::cuda::measured_product>();
}

TEMPLATE_TEST_CASE("products repeat bit for bit", "[cuda][products]", float, double,
                   lrmoe::bfloat16) {
  check_repeats<TestType, lrmoe::cuda::cublas_loop>(true);
  check_repeats<TestType, lrmoe::cuda::measured_product>(true);
  if constexpr (std::is_same_v<TestType, lrmoe::bfloat16>)
    if (hopper_available()) check_repeats<TestType, lrmoe::cuda::hopper_grouped>(true);
  const own_stream own;
  scratch_memory memory(own.space);
  lrmoe::cuda::cublas_grouped grouped(memory.scratch);
  if (grouped.supports<TestType>(own.space, product_operation::multiply_rows))
    check_repeats<TestType, lrmoe::cuda::cublas_grouped>(grouped_sums_supported<TestType>());
}

TEST_CASE("more groups than one grouped call takes are multiplied in several",
          "[cuda][products][grouped]") {
  trial at;
  INFO("seed " << at.seed);
  lrmoe::cuda::cublas_grouped product(at.scratch);
  if (!product.supports<float>(at.space, product_operation::multiply_rows)) {
    WARN(product.refusals());
    return;
  }
  counts rows;
  for (int g = 0; g < 3001; ++g) rows.push_back(static_cast<index_type>(at.draw.integer(0, 3)));
  rows_case<float> in(at.draw, rows, {16, 24}, false, 0, 0);
  in.check(in.run(product, at.space));
  rows.assign(2048, 1);  // whole calls, nothing left over
  rows.insert(rows.end(), 5, 0);
  rows_case<float> whole(at.draw, rows, {16, 24}, true, 0, 7);
  whole.check(whole.run(product, at.space));
}

TEST_CASE("what cuBLAS does not support is reported, refused when forced, and computed otherwise",
          "[cuda][products][measured]") {
  trial at;
  INFO("seed " << at.seed);
  lrmoe::cuda::measured_product product(at.scratch);
  product.set_mode(product_mode::rule);
  // Eight bytes past an aligned address: refused by alignment on every version of cuBLAS.
  rows_case<lrmoe::bfloat16> in(at.draw, all_counts[4], {64, 128}, false, 4, 0);
  in.check(in.run(product, at.space));
  CHECK(product.latest() == lrmoe::cuda::product_provider::loop);
  CHECK(contains(product.report(), hopper_available() ? "begin at multiples of 16 bytes"
                                                      : "needs a GPU of compute capability 9.0"));
  product.set_mode(product_mode::grouped);
  CHECK(error_of([&] { in.run(product, at.space); }) != "");
  sums_case<lrmoe::bfloat16> sums(at.draw, all_counts[4], {64, 128}, 0, 0);
  if (!grouped_sums_supported<lrmoe::bfloat16>()) {
    const auto before = sums.before();
    CHECK(contains(error_of([&] { sums.run(product, at.space); }),
                   "sum_products of bfloat16 is not supported"));
    at.space.fence();
    CHECK(same_bits(sums.before(), before));
    product.set_mode(product_mode::rule);
    sums.check(sums.run(product, at.space));
    CHECK(product.latest() == (hopper_available() ? lrmoe::cuda::product_provider::hopper
                                                  : lrmoe::cuda::product_provider::loop));
    CHECK(contains(product.report(), "bfloat16 sum_products: cublas"));
  }
}

TEST_CASE("a forced provider gives the bits of that provider", "[cuda][products][measured]") {
  trial at;
  INFO("seed " << at.seed);
  lrmoe::cuda::measured_product product(at.scratch);
  lrmoe::cuda::cublas_loop loop(at.scratch);
  lrmoe::cuda::cublas_grouped grouped(at.scratch);
  rows_case<float> in(at.draw, all_counts[0], {64, 128}, false, 0, 0);
  product.set_mode(product_mode::loop);
  CHECK(same_bits(in.run(product, at.space), in.run(loop, at.space)));
  CHECK(product.latest() == lrmoe::cuda::product_provider::loop);
  product.set_mode(product_mode::hopper);
  CHECK(contains(error_of([&] { in.run(product, at.space); }), "multiplies bfloat16 only"));
  if (hopper_available()) {
    lrmoe::cuda::hopper_grouped hopper(at.scratch);
    rows_case<lrmoe::bfloat16> narrow(at.draw, all_counts[0], {64, 128}, false, 0, 0);
    const auto expected = narrow.run(hopper, at.space);
    for (const auto mode : {product_mode::hopper, product_mode::rule}) {
      product.set_mode(mode);
      CHECK(same_bits(narrow.run(product, at.space), expected));
      CHECK(product.latest() == lrmoe::cuda::product_provider::hopper);
    }
  }
  if (!grouped.supports<float>(at.space, product_operation::multiply_rows)) return;
  product.set_mode(product_mode::grouped);
  CHECK(same_bits(in.run(product, at.space), in.run(grouped, at.space)));
  CHECK(product.latest() == lrmoe::cuda::product_provider::grouped);
}

TEST_CASE("a measured product adds every call once, decides, and its choice can be kept",
          "[cuda][products][measured]") {
  trial at;
  INFO("seed " << at.seed);
  lrmoe::cuda::measured_product product(at.scratch);
  product.set_mode(product_mode::measured);
  const counts rows{20, 0, 33, 40, 25, 31};
  sums_case<float> sums(at.draw, rows, {72, 40}, 0, 0);
  rows_case<float> in(at.draw, rows, {72, 40}, false, 0, 0);
  for (int i = 0; i < 3; ++i) in.check(in.run(product, at.space));
  sums.check(sums.run(product, at.space, 7), 7);
  for (int i = 0; i < 3; ++i) in.check(in.run(product, at.space));
  if (!grouped_sums_supported<float>()) return;
  REQUIRE(product.choices().entries().size() == 2);
  for (const auto& each : product.choices().entries()) {
    CHECK(each.decided);
    CHECK(each.shape.groups == 4);
    CHECK(each.shape.rows == 16);
  }
  INFO(product.report());
  CHECK(contains(product.report(), "float sum_products, n 40, k 72, 4 groups of about 16 rows: "));

  std::stringstream file;
  file << "# " << lrmoe::cuda::describe_device(at.space.cuda_device()).summary() << "\n";
  product.choices().save(file);
  lrmoe::cuda::measured_product second(at.scratch);
  second.set_mode(product_mode::rule);
  second.choices().load(file);
  REQUIRE(second.choices().entries().size() == 2);
  const auto in_first = in.run(product, at.space);
  const auto in_second = in.run(second, at.space);
  CHECK(same_bits(in_first, in_second));
  CHECK(second.latest() == product.latest());
}

TEST_CASE("a class of gradients is measured on calls that update them alike",
          "[cuda][products][measured]") {
  trial at;
  INFO("seed " << at.seed);
  lrmoe::cuda::measured_product product(at.scratch);
  product.set_mode(product_mode::measured);
  const counts rows{20, 0, 33, 40, 25, 31};
  sums_case<float> overwriting(at.draw, rows, {72, 40}, 0, 0, lrmoe::gradient_update::overwrite);
  sums_case<float> adding(at.draw, rows, {72, 40}, 0, 0);
  overwriting.check(overwriting.run(product, at.space));
  adding.check(adding.run(product, at.space, 7), 7);
  REQUIRE(product.choices().entries().size() == 1);
  CHECK(product.choices().entries()[0].calls == 1);
  overwriting.check(overwriting.run(product, at.space, 7), 7);
  CHECK(product.choices().entries()[0].decided);
  adding.check(adding.run(product, at.space, 2), 2);
  CHECK(product.choices().entries().size() == 1);
}

TEST_CASE("choices that are not understood are refused with their line", "[cuda][products]") {
  lrmoe::cuda::product_choices choices;
  std::istringstream good(
      "# a comment\n\nfloat multiply_rows n=8 k=16 groups=4 rows=32 loop=1.5 grouped=2 hopper=0\n");
  choices.load(good);
  REQUIRE(choices.entries().size() == 1);
  CHECK(choices.entries()[0].fastest() == lrmoe::cuda::product_provider::grouped);
  std::istringstream again(
      "float multiply_rows n=8 k=16 groups=4 rows=32 loop=3 grouped=2 hopper=2.5\n");
  choices.load(again);
  REQUIRE(choices.entries().size() == 1);
  CHECK(choices.entries()[0].fastest() == lrmoe::cuda::product_provider::loop);
  for (const char* line :
       {"float multiply_rows n=8 k=16 groups=4 rows=32 loop=1.5",
        "float multiply_rows n=8 k=1 groups=4 rows=32 loop=1.5 grouped=2",
        "float multiply_rows n=8 k=x groups=4 rows=32 loop=1 grouped=2 hopper=3",
        "float multiply_rows n=8 k=1 groups=4 rows=32 loop=-1 grouped=2 hopper=3",
        "float multiply_rows n=8 k=1 groups=4 rows=32 loop=0 grouped=0 hopper=0",
        "float multiply_rows n=8 k=1 groups=4 rows=32 loop=1 grouped=2 hopper=3 x"}) {
    std::istringstream bad(std::string("# first\n") + line + "\n");
    const std::string message = error_of([&] { choices.load(bad); });
    INFO(message);
    CHECK(contains(message, "line 2"));
    CHECK(contains(message, line));
    CHECK(choices.entries().size() == 1);
  }
  CHECK(contains(error_of([] { lrmoe::cuda::product_mode_of("fast"); }), "'fast': use rule"));
  CHECK(lrmoe::cuda::product_mode_of("grouped") == product_mode::grouped);
}

TEST_CASE("products come after the work enqueued before them and before what follows",
          "[cuda][products]") {
  trial at;
  INFO("seed " << at.seed);
  lrmoe::cuda::cublas_loop product(at.scratch);
  const counts rows{30, 50, 20, 0, 70, 60, 10};
  rows_case<float> in(at.draw, rows, {64, 96}, false, 0, 0);
  const auto expected = in.run(product, at.space);
  // The input arrives late on the same stream, and is overwritten right behind the product.
  const int64_t n = 240 * 64;
  Kokkos::View<float*, Kokkos::CudaSpace> late("late", static_cast<std::size_t>(n)),
      a("a", static_cast<std::size_t>(n)), c("c", 240 * 96), weights("weights", 7 * 64 * 96);
  Kokkos::deep_copy(late, 1.0F);
  Kokkos::deep_copy(weights, 0.5F);
  Kokkos::fence();
  const group_offsets offsets(rows);
  for (int again = 0; again < 10; ++again) {
    Kokkos::deep_copy(a, 7.0F);
    Kokkos::fence();
    Kokkos::parallel_for(
        "slow", Kokkos::RangePolicy<Kokkos::Cuda>(at.space, 0, n), KOKKOS_LAMBDA(int i) {
          KOKKOS_IF_ON_DEVICE((const auto start = clock64(); while (clock64() - start < 2000000){}))
          a(i) = late(i);
        });
    product.multiply_rows(at.space, lrmoe::matrix_view<const float, device_type>(a.data(), 240, 64),
                          offsets.groups(),
                          lrmoe::tensor_view<const float, device_type>(weights.data(), 7, 64, 96),
                          false, lrmoe::matrix_view<float, device_type>(c.data(), 240, 96));
    Kokkos::deep_copy(at.space, a, 9.0F);
    at.space.fence();
    const auto got = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), c);
    int wrong = 0;
    for (std::size_t i = 0; i < got.extent(0); ++i) wrong += got(i) != 32.0F;
    CHECK(wrong == 0);
  }
  CHECK(same_bits(in.run(product, at.space), expected));
}

TEST_CASE("extents that do not fit together are refused before anything is enqueued",
          "[cuda][products]") {
  const own_stream own;
  scratch_memory memory(own.space);
  lrmoe::cuda::measured_product product(memory.scratch);
  const group_offsets offsets({3, 4});
  Kokkos::View<float*, Kokkos::CudaSpace> data("data", 10000);
  const auto matrix = [&](std::size_t rows, std::size_t columns) {
    return lrmoe::matrix_view<float, device_type>(data.data(), rows, columns);
  };
  const auto tensor = [&](std::size_t planes, std::size_t rows, std::size_t columns) {
    return lrmoe::tensor_view<float, device_type>(data.data(), planes, rows, columns);
  };
  const auto multiply = [&](auto a, auto weights, auto c) {
    return error_of(
        [&] { product.multiply_rows<float>(own.space, a, offsets.groups(), weights, false, c); });
  };
  CHECK(contains(multiply(matrix(7, 5), tensor(3, 5, 6), matrix(7, 6)), "2 groups and 3 matrices"));
  CHECK(contains(multiply(matrix(6, 5), tensor(2, 5, 6), matrix(7, 6)),
                 "6 rows cannot hold the 7 rows"));
  CHECK(contains(multiply(matrix(7, 4), tensor(2, 5, 6), matrix(7, 6)), "must agree"));
  CHECK(contains(error_of([&] {
                   product.sum_products<float>(own.space, matrix(7, 5), matrix(7, 6),
                                               offsets.groups(), tensor(2, 5, 7),
                                               lrmoe::gradient_update::add);
                 }),
                 "must agree"));
  CHECK(memory.scratch.size_bytes() == 0);
}

TEST_CASE("the device says what it is", "[cuda][device]") {
  const auto device = lrmoe::cuda::require_device(Kokkos::Cuda().cuda_device());
  const std::string text = device.summary();
  INFO(text);
  CHECK(contains(text, device.name));
  CHECK(contains(text, "cuBLAS " + std::to_string(device.cublas_version / 10000) + "."));
  CHECK(device.memory_bytes > 0);
  CHECK(device.driver_version >= device.runtime_version / 1000 * 1000);
  const int count = lrmoe::cuda::device_count();
  CHECK(contains(error_of([&] { lrmoe::cuda::require_device(count); }),
                 "GPU " + std::to_string(count) + " is asked for"));
  CHECK(contains(error_of([] { lrmoe::cuda::describe_device(-1); }), "GPU -1 is asked for"));
}
