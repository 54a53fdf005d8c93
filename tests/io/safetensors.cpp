// Files of tensors: what is written is read, what is damaged is refused, numbers convert as stated.
#include <cmath>
#include <limits>

#include <fcntl.h>
#include <unistd.h>

#include <lrmoe/io/safetensors.hpp>

#include "catch.hpp"
#include "files.hpp"
#include "fixture.hpp"

using namespace io_test;
using fixture::names;
using lrmoe::bfloat16;
namespace st = lrmoe::safetensors;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

template <class T>
std::vector<T> random_bits(fixture::random& draw, std::size_t count) {
  std::vector<T> values(count);
  for (T& value : values) {
    const std::uint64_t bits = draw.bits();
    std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
  }
  return values;
}

template <class T>
std::span<const T> span_of(const std::vector<T>& values) {
  return values;
}

/// One tensor "x" of a dtype with these bytes.
std::string one_tensor(const std::string& dtype, std::size_t size, const std::string& data) {
  return safetensors_bytes("{\"x\":{\"dtype\":\"" + dtype + "\",\"shape\":[" +
                               std::to_string(size) + "],\"data_offsets\":[0," +
                               std::to_string(data.size()) + "]}}",
                           data);
}

}  // namespace

TEST_CASE("every dtype, shape and bit is read as it was written", "[io]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const temporary_folder folder;
  // Bits at random: NaN payloads, infinities and subnormal numbers among them.
  const auto f64 = random_bits<double>(draw, 210);
  const auto f32 = random_bits<float>(draw, 35);
  const auto bf16 = random_bits<bfloat16>(draw, 7);
  const auto i64 = random_bits<std::int64_t>(draw, 6);
  const auto i32 = random_bits<std::int32_t>(draw, 9);
  const auto u8 = random_bits<std::uint8_t>(draw, 5);
  const bool flags[3] = {true, false, true};
  const std::vector<float> none;
  st::writer out;
  out.set_metadata("made by", "a \"test\"\n");
  out.set_metadata("", "empty key");
  out.add("model.a", {2, 3, 5, 7}, span_of(f64));
  out.add("b", {5, 7}, span_of(f32));
  out.add("c", {7}, span_of(bf16));
  out.add("d", {3, 2}, span_of(i64));
  out.add("e", {9, 1}, span_of(i32));
  out.add("f", {5}, span_of(u8));
  out.add("g", {3}, std::span<const bool>(flags));
  out.add("nothing", {4, 0, 2}, span_of(none));
  out.add("scalar", {}, std::span<const float>(f32.data(), 1));
  out.add("\xC3\xA4 \"quoted\" \\ name", {1}, std::span<const float>(f32.data() + 1, 1));
  out.write(folder / "all");

  const st::reader in(folder / "all");
  CHECK(in.tensors().size() == 10);
  CHECK(in.metadata().size() == 2);
  CHECK(in.metadata("made by") == "a \"test\"\n");
  CHECK(in.info("model.a").shape == std::vector<std::int64_t>{2, 3, 5, 7});
  CHECK(in.info("c").type == st::dtype::bf16);
  CHECK(in.info("scalar").shape.empty());
  CHECK(in.info("nothing").size() == 0);
  CHECK(bytes_of(in.read<double>("model.a")) == bytes_of(f64));
  CHECK(bytes_of(in.read<float>("b")) == bytes_of(f32));
  CHECK(bytes_of(in.read<bfloat16>("c")) == bytes_of(bf16));
  CHECK(in.read<std::int64_t>("d") == i64);
  CHECK(in.read<std::int32_t>("e") == i32);
  CHECK(in.read<std::uint8_t>("f") == u8);
  bool read_flags[3] = {false, true, false};
  in.read("g", std::span<bool>(read_flags));
  CHECK(std::equal(flags, flags + 3, read_flags));
  CHECK(in.read<float>("nothing").empty());
  CHECK(bytes_of(in.read<float>("scalar")) == bytes_of(std::vector<float>{f32[0]}));
  CHECK(bytes_of(in.read<float>("\xC3\xA4 \"quoted\" \\ name")) ==
        bytes_of(std::vector<float>{f32[1]}));
}

TEST_CASE("the bytes of a file follow from its content, wider dtypes first, then by name", "[io]") {
  const temporary_folder folder;
  const std::vector<std::uint8_t> bytes{1, 2, 3};
  const std::vector<float> numbers{1.0f, -2.0f};
  st::writer out;
  out.add("a", {3}, span_of(bytes));
  out.add("z", {2}, span_of(numbers));
  out.set_metadata("k", "v");
  out.add("b", {1, 2}, span_of(numbers));
  out.write(folder / "one");
  const std::string header =
      R"({"__metadata__":{"k":"v"},"b":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("z":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},)"
      R"("a":{"dtype":"U8","shape":[3],"data_offsets":[16,19]}})";
  const std::string padding((8 - header.size() % 8) % 8, ' ');
  const std::string pair("\x00\x00\x80\x3f\x00\x00\x00\xc0", 8);
  CHECK(content_of(folder / "one") ==
        safetensors_bytes(header + padding, pair + pair + "\x01\x02\x03"));

  st::writer again;
  again.set_metadata("k", "v");
  again.add("b", {1, 2}, span_of(numbers));
  again.add("a", {3}, span_of(bytes));
  again.add("z", {2}, span_of(numbers));
  again.write(folder / "two");
  CHECK(content_of(folder / "two") == content_of(folder / "one"));
}

TEST_CASE("every F16 number is read exactly", "[io]") {
  const temporary_folder folder;
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  write_content(folder / "f16", one_tensor("F16", halves.size(), bytes_of(halves)));
  const st::reader in(folder / "f16");
  const auto singles = in.read<float>("x");
  const auto doubles = in.read<double>("x");
  const auto rounded = in.read<bfloat16>("x");
  int wrong = 0;
  for (int i = 0; i < 65536; ++i) {
    const int exponent = (i >> 10) & 31, fraction = i & 1023;
    double value = exponent == 0    ? std::ldexp(fraction, -24)
                   : exponent == 31 ? (fraction == 0 ? infinity : std::nan(""))
                                    : std::ldexp(1024 + fraction, exponent - 25);
    if (i >= 32768) value = -value;
    const auto n = static_cast<std::size_t>(i);
    const double bf = fixture::value_of(rounded[n]);
    if (std::isnan(value)) {
      wrong += !std::isnan(singles[n]) || !std::isnan(doubles[n]) || !std::isnan(bf);
    } else {
      wrong += singles[n] != value || doubles[n] != value ||
               std::signbit(singles[n]) != std::signbit(value) ||
               bf != oracle::round_to(oracle::format::bfloat16, value);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE(
    "wider numbers become the nearest bfloat16, ties even, also where float has a tie of its own",
    "[io]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  std::vector<double> values{0.0,
                             -0.0,
                             infinity,
                             -infinity,
                             1e300,
                             -1e300,
                             1e-300,
                             0x1p-134,
                             0x1.8p-134,
                             3.3895313892515355e38,
                             3.3961775292304957e38};
  for (int i = 0; i < 3000; ++i) {
    const auto low = static_cast<std::uint16_t>(draw.integer(0, 0x7f7e));
    bfloat16 a, b;
    a.bits = low, b.bits = static_cast<std::uint16_t>(low + 1);
    const double x = fixture::value_of(a), y = fixture::value_of(b), middle = x / 2 + y / 2;
    // On, next to, and much closer to a tie than float can tell.
    for (const double value :
         {middle, std::nextafter(middle, 0.0), std::nextafter(middle, infinity),
          middle + (y - x) * 1e-10, middle - (y - x) * 1e-10, x, y, draw.uniform(x, y)})
      values.push_back(draw.integer(0, 1) == 0 ? value : -value);
  }
  const temporary_folder folder;
  write_content(folder / "f64", one_tensor("F64", values.size(), bytes_of(values)));
  const auto got = st::reader(folder / "f64").read<bfloat16>("x");
  int wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    // The nearest of all finite candidates around it, by exact comparison of distances.
    const double magnitude = std::abs(values[i]);
    bfloat16 low;
    low.bits = 0;
    std::uint16_t first = 0, last = 0x7f80;
    while (last - first > 1) {
      low.bits = static_cast<std::uint16_t>((first + last) / 2);
      (fixture::value_of(low) <= magnitude ? first : last) = low.bits;
    }
    bfloat16 a, b;
    a.bits = first, b.bits = last;
    const double x = fixture::value_of(a);
    // Beyond the largest number the next would be 2^128, were the exponent not at its end.
    const double y = last == 0x7f80 ? 0x1p128 : fixture::value_of(b);
    const double below = magnitude - x, above = y - magnitude;
    std::uint16_t expected = below < above ? first : above < below ? last : first + first % 2;
    if (std::isinf(magnitude)) expected = 0x7f80;
    if (std::signbit(values[i])) expected |= 0x8000;
    wrong += got[i].bits != expected;
  }
  CHECK(wrong == 0);
}

TEST_CASE("floating numbers of every pair of dtypes convert to the nearest", "[io]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const temporary_folder folder;
  const auto values = draw.normal(100, 1.0, oracle::format::binary64);
  std::vector<float> singles;
  std::vector<bfloat16> halves;
  for (const double value : values) {
    singles.push_back(static_cast<float>(value));
    halves.push_back(fixture::element<bfloat16>(value));
  }
  st::writer out;
  out.add("f64", {100}, span_of(values));
  out.add("f32", {100}, span_of(singles));
  out.add("bf16", {100}, span_of(halves));
  out.write(folder / "x");
  const st::reader in(folder / "x");
  CHECK(in.read<float>("f64") == singles);
  CHECK(in.read<double>("f32") == std::vector<double>(singles.begin(), singles.end()));
  const auto single_from_half = in.read<float>("bf16");
  const auto double_from_half = in.read<double>("bf16");
  const auto half_from_single = in.read<bfloat16>("f32");
  int wrong = 0;
  for (std::size_t i = 0; i < 100; ++i) {
    const double half = fixture::value_of(halves[i]);
    wrong += single_from_half[i] != half || double_from_half[i] != half ||
             fixture::value_of(half_from_single[i]) !=
                 oracle::round_to(oracle::format::bfloat16, singles[i]);
  }
  CHECK(wrong == 0);
}

TEST_CASE("integers are read where they fit, and numbers of another kind are refused", "[io]") {
  const temporary_folder folder;
  const std::vector<std::int64_t> small{-3, 0, 255, 2147483647}, large{1, 2147483648};
  const std::vector<std::uint8_t> bytes{0, 1, 2};
  const float number = 1.0f;
  st::writer out;
  out.add("small", {4}, span_of(small));
  out.add("large", {2}, span_of(large));
  out.add("bytes", {3}, span_of(bytes));
  out.add("real", {1}, std::span<const float>(&number, 1));
  out.write(folder / "x");
  const st::reader in(folder / "x");
  CHECK(in.read<std::int32_t>("small") == std::vector<std::int32_t>{-3, 0, 255, 2147483647});
  CHECK(in.read<std::int64_t>("bytes") == std::vector<std::int64_t>{0, 1, 2});
  CHECK(names(file_refusal([&] { in.read<std::int32_t>("large"); }),
              {"'large'", "2147483648", "I32"}));
  CHECK(names(file_refusal([&] { in.read<std::uint8_t>("small"); }), {"'small'", "-3", "U8"}));
  bool flags[3];
  CHECK(names(file_refusal([&] { in.read("bytes", std::span<bool>(flags)); }),
              {"'bytes'", "2", "BOOL"}));
  CHECK(names(fixture::refusal([&] { in.read<float>("small"); }),
              {"'small'", "I64", "F32", "read it as an integer type"}));
  CHECK(names(fixture::refusal([&] { in.read<std::int32_t>("real"); }),
              {"'real'", "F32", "I32", "read it as a floating type"}));
  write_content(folder / "f8", one_tensor("F8_E4M3", 4, "abcd"));
  const st::reader unknown(folder / "f8");
  CHECK(unknown.info("x").type_name == "F8_E4M3");
  CHECK(names(file_refusal([&] { unknown.read<float>("x"); }), {"'x'", "F8_E4M3"}));
}

TEST_CASE("parts of a tensor are read without the rest, in every dtype", "[io]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const temporary_folder folder;
  const std::size_t size = 40;
  const auto values = draw.normal(size, 1.0, oracle::format::bfloat16);
  std::vector<bfloat16> halves;
  for (const double value : values) halves.push_back(fixture::element<bfloat16>(value));
  st::writer out;
  out.add("f64", {8, 5}, span_of(values));
  out.add("bf16", {8, 5}, span_of(halves));
  out.write(folder / "x");
  const st::reader in(folder / "x");
  for (int i = 0; i < 50; ++i) {
    const auto first = draw.integer(0, size), count = draw.integer(0, size - first);
    const std::vector<double> expected(values.begin() + first, values.begin() + first + count);
    for (const char* name : {"f64", "bf16"}) {
      std::vector<double> got(static_cast<std::size_t>(count));
      in.read_part(name, first, std::span<double>(got));
      CHECK(got == expected);
    }
  }
  std::vector<double> got(3);
  for (const std::int64_t first : {-1, 38, 41})
    CHECK(names(fixture::refusal([&] { in.read_part("f64", first, std::span<double>(got)); }),
                {"'f64'", "40", std::to_string(first) + " + 3"}));
  CHECK(names(fixture::refusal([&] { in.read("f64", std::span<double>(got)); }),
              {"'f64'", "(8, 5)", "40", "destination 3"}));
}

TEST_CASE("views of ranks zero to three are written and read, those of other shapes refused",
          "[io]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  using fixture::device;
  const temporary_folder folder;
  const auto values = draw.normal(24, 1.0, oracle::format::binary32);
  const fixture::array<float> data(values);
  const Kokkos::View<float, Kokkos::LayoutRight, device> scalar("lrmoe_test::scalar");
  Kokkos::deep_copy(scalar, 2.5f);
  st::writer out;
  out.add("scalar", scalar);
  out.add("vector", data.vector());
  out.add("matrix", fixture::constant(data.matrix(4, 6)));
  out.add("tensor", data.tensor(2, 3, 4));
  out.write(folder / "x");
  const st::reader in(folder / "x");
  for (const char* name : {"vector", "matrix", "tensor"}) CHECK(in.read<double>(name) == values);
  CHECK(in.read<float>("scalar") == std::vector<float>{2.5f});
  CHECK(in.info("tensor").shape == std::vector<std::int64_t>{2, 3, 4});

  const fixture::array<float> single(24, 1);
  in.read("matrix", single.matrix(4, 6));
  CHECK(single.values() == values);
  CHECK(single.guards_intact());
  const fixture::array<double> wide(24);
  in.read("tensor", wide.tensor(2, 3, 4));
  CHECK(wide.values() == values);
  const fixture::array<bfloat16> narrow(24);
  in.read("vector", narrow.vector());
  for (std::size_t i = 0; i < 24; ++i)
    CHECK(narrow.values()[i] == oracle::round_to(oracle::format::bfloat16, values[i]));
  CHECK(narrow.guards_intact());
  const Kokkos::View<float, Kokkos::LayoutRight, device> scalar_again("lrmoe_test::scalar");
  in.read("scalar", scalar_again);
  float number = 0.0f;
  Kokkos::deep_copy(number, scalar_again);
  CHECK(number == 2.5f);
  CHECK(names(fixture::refusal([&] { in.read("matrix", single.matrix(6, 4)); }),
              {"'matrix'", "(4, 6)", "(6, 4)"}));
}

TEST_CASE("tensors beyond 4 GiB are found and written in pieces", "[io]") {
  const temporary_folder folder;
  const std::int64_t large = (std::int64_t{1} << 32) + 5;
  const std::string header = "{\"large\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(large) +
                             "],\"data_offsets\":[0," + std::to_string(large) +
                             "]},\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[" +
                             std::to_string(large) + "," + std::to_string(large + 8) + "]}}";
  {
    // A hole takes no space on the disk.
    const int file = ::open((folder / "x").c_str(), O_RDWR | O_CREAT, 0600);
    REQUIRE(file >= 0);
    const std::string start = safetensors_bytes(header, "");
    const std::string end = "\x07" + bytes_of(std::vector<float>{1.5f, -3.0f});
    const auto at = static_cast<off_t>(start.size()) + large - 1;
    REQUIRE(::pwrite(file, start.data(), start.size(), 0) == static_cast<ssize_t>(start.size()));
    REQUIRE(::pwrite(file, end.data(), end.size(), at) == static_cast<ssize_t>(end.size()));
    ::close(file);
  }
  const st::reader in(folder / "x");
  CHECK(in.read<float>("x") == std::vector<float>{1.5f, -3.0f});
  std::vector<std::uint8_t> last(3);
  in.read_part("large", large - 3, std::span<std::uint8_t>(last));
  CHECK(last == std::vector<std::uint8_t>{0, 0, 7});

  // Longer than what passes through memory at once.
  const std::int64_t long_size = 2 * st::detail::staged_elements + 3;
  st::writer out;
  out.add_produced<std::uint8_t>(
      "long", {long_size}, [](std::int64_t first, std::span<std::uint8_t> to) {
        for (std::size_t i = 0; i < to.size(); ++i)
          to[i] = static_cast<std::uint8_t>((first + static_cast<std::int64_t>(i)) % 251);
      });
  out.write(folder / "long");
  const auto values = st::reader(folder / "long").read<std::int32_t>("long");
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    wrong += values[i] != static_cast<std::int32_t>(i % 251);
  CHECK(static_cast<std::int64_t>(values.size()) == long_size);
  CHECK(wrong == 0);
}

TEST_CASE("a damaged or unsuitable file is refused when it is opened, by a message that says why",
          "[io]") {
  const temporary_folder folder;
  const std::string path = folder / "x";
  const auto message = [&](const std::string& content) {
    write_content(path, content);
    return file_refusal([&] { st::reader{path}; });
  };
  const auto header = [&](const std::string& text, std::size_t bytes = 8) {
    return message(safetensors_bytes(text, std::string(bytes, 'x')));
  };
  const auto tensor = [](const std::string& name, const std::string& dtype,
                         const std::string& shape, const std::string& offsets) {
    return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
           ",\"data_offsets\":" + offsets + "}";
  };
  CHECK(names(file_refusal([&] { st::reader{folder / "none"}; }), {"none", "cannot open"}));
  CHECK(names(file_refusal([&] { st::reader{folder / "."}; }), {"not a regular file"}));
  CHECK(names(message(""), {path, "0 bytes", "truncated"}));
  CHECK(names(message("1234567"), {"7 bytes"}));
  CHECK(names(message(little_endian(100'000'001) + "{}"), {"100000001", "100000000"}));
  CHECK(names(message(little_endian(~std::uint64_t{0})), {"18446744073709551615"}));
  CHECK(names(message(little_endian(3) + "{}"), {"3 bytes", "has 2", "truncated"}));
  CHECK(names(header("{\"x\":"), {"not JSON"}));
  CHECK(names(header("[1]"), {"not a JSON object"}));
  CHECK(names(header("{\"\xff\":1}"), {"not JSON"}));
  CHECK(names(header("{\"__metadata__\":[]}", 0), {"__metadata__"}));
  CHECK(names(header("{\"__metadata__\":{\"k\":1}}", 0), {"metadata 'k' is not text"}));
  const std::string good = tensor("x", "F32", "[2]", "[0,8]");
  CHECK(header("{" + good + "}").empty());
  CHECK(header("{" + good + "}   ").empty());
  CHECK(names(header("{" + good + "}", 7), {"'x'", "0 to 8", "the 7", "truncated"}));
  CHECK(names(header("{" + good + "}", 9), {"8 to 9", "no tensor"}));
  CHECK(names(header("{" + good + "," + good + "}"), {"'x' twice"}));
  CHECK(names(header("{" + good + "," + tensor("y", "F32", "[1]", "[4,8]") + "}"),
              {"'x' and 'y' overlap at byte 4"}));
  CHECK(names(header("{" + good + "," + tensor("y", "U8", "[0]", "[3,3]") + "}"),
              {"'x' and 'y' overlap"}));
  CHECK(names(header("{" + tensor("y", "F32", "[1]", "[4,8]") + "}"), {"0 to 4", "no tensor"}));
  CHECK(names(header("{" + tensor("x", "F32", "[3]", "[0,8]") + "}"), {"'x'", "(3)", "8 bytes"}));
  CHECK(names(header("{" + tensor("x", "F64", "[2]", "[0,8]") + "}"), {"'x'", "F64", "8 bytes"}));
  CHECK(names(header("{" + tensor("x", "F32", "[2]", "[8,0]") + "}"), {"'x'", "8 to 0"}));
  CHECK(names(header("{" + tensor("x", "F32", "[4294967296,4294967296,4294967296]", "[0,8]") + "}"),
              {"'x'", "not what they make"}));
  CHECK(names(header("{" + tensor("x", "F32", "[4611686018427387906]", "[0,8]") + "}"),
              {"'x'", "not what they make"}));
  for (const char* shape : {"[-2]", "[2.0]", "2", "[\"2\"]", "[18446744073709551615]", "null"})
    CHECK(names(header("{" + tensor("x", "F32", shape, "[0,8]") + "}"), {"'x'", "a shape"}));
  for (const char* offsets : {"[0]", "[0,8,8]", "[-1,7]", "8", "[0,1e3]"})
    CHECK(names(header("{" + tensor("x", "F32", "[2]", offsets) + "}"), {"'x'", "data_offsets"}));
  CHECK(names(header("{\"x\":1}"), {"'x'", "dtype"}));
  CHECK(names(header("{\"x\":{}}"), {"'x'", "dtype"}));

  write_content(path, safetensors_bytes("{" + good + "}", "12345678"));
  const st::reader in(path);
  std::filesystem::resize_file(path, 12);
  CHECK(names(file_refusal([&] { in.read<float>("x"); }), {path, "shorter"}));
}

TEST_CASE("whatever is wrong with a file, opening it fails with a message or succeeds", "[io]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const temporary_folder folder;
  const std::vector<float> numbers(6, 1.0f);
  st::writer out;
  out.set_metadata("key", "value");
  out.add("a", {2, 3}, span_of(numbers));
  out.add("b", {6}, span_of(numbers));
  out.write(folder / "x");
  const std::string whole = content_of(folder / "x");
  int refused = 0, opened = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string damaged = whole;
    const auto length = static_cast<oracle::integer>(whole.size());
    for (auto n = draw.integer(1, 3); n > 0; --n)
      damaged[static_cast<std::size_t>(draw.integer(0, length - 49))] =
          static_cast<char>(draw.integer(0, 1) == 0 ? draw.integer(0, 255) : draw.integer(32, 126));
    if (draw.integer(0, 3) == 0) damaged.resize(static_cast<std::size_t>(draw.integer(0, length)));
    write_content(folder / "y", damaged);
    try {
      const st::reader in(folder / "y");
      for (const auto& [name, info] : in.tensors())
        if (st::detail::is_floating(info.type)) in.read<float>(name);
      ++opened;
    } catch (const st::file_error&) {
      ++refused;
    }
  }
  CHECK(refused > 500);
  CHECK(opened > 0);
}

TEST_CASE("a file is replaced whole or stays as it was", "[io]") {
  const temporary_folder folder;
  const std::vector<float> old_values{1.0f, 2.0f}, new_values{3.0f, 4.0f};
  st::writer first;
  first.add("x", {2}, span_of(old_values));
  first.write(folder / "x");
  const std::string before = content_of(folder / "x");

  st::writer failing;
  failing.add("x", {2}, span_of(new_values));
  failing.add_produced<float>(
      "y", {3}, [](std::int64_t, std::span<float>) { throw std::runtime_error("no numbers"); });
  CHECK_THROWS_AS(failing.write(folder / "x"), std::runtime_error);
  CHECK(content_of(folder / "x") == before);
  CHECK(folder.files() == std::vector<std::string>{"x"});

  // Who has the old file open goes on reading it.
  const st::reader open_before(folder / "x");
  st::writer second;
  second.add("x", {2}, span_of(new_values));
  second.write(folder / "x");
  CHECK(open_before.read<float>("x") == old_values);
  CHECK(st::reader(folder / "x").read<float>("x") == new_values);
  CHECK(folder.files() == std::vector<std::string>{"x"});
  CHECK(names(file_refusal([&] { second.write(folder / "no/such/folder"); }), {"cannot create"}));
}

TEST_CASE("the writer refuses what would not be a file of tensors", "[io]") {
  const std::vector<float> two{1.0f, 2.0f};
  st::writer out;
  out.add("x", {2}, span_of(two));
  CHECK(names(fixture::refusal([&] { out.add("x", {2}, span_of(two)); }), {"'x'", "two tensors"}));
  CHECK(
      names(fixture::refusal([&] { out.add("y", {3}, span_of(two)); }), {"'y'", "(3)", "3", "2"}));
  CHECK(names(fixture::refusal([&] {
                out.add("y", {-1, -2}, span_of(two));
              }),
              {"'y'", "(-1, -2)"}));
  CHECK(names(fixture::refusal([&] { out.add("__metadata__", {2}, span_of(two)); }),
              {"__metadata__"}));
  const temporary_folder folder;
  out.set_metadata("k", "\xff");
  CHECK(names(fixture::refusal([&] { out.write(folder / "x"); }), {"UTF-8"}));
  CHECK(folder.files().empty());
}

TEST_CASE("a missing tensor is refused with the names most like it", "[io]") {
  const temporary_folder folder;
  const std::vector<float> one{1.0f};
  st::writer out;
  for (const char* name : {"layers.1.mlp.experts.0.up_proj.weight", "layers.1.mlp.gate.weight",
                           "layers.1.norm.weight", "head"})
    out.add(name, {1}, span_of(one));
  out.write(folder / "x");
  const st::reader in(folder / "x");
  const auto message =
      file_refusal([&] { in.read<float>("layers.1.mlp.experts.3.up_proj.weight"); });
  CHECK(names(message, {folder / "x", "'layers.1.mlp.experts.3.up_proj.weight'", "among its 4",
                        "most like it: 'layers.1.mlp.experts.0.up_proj.weight'"}));
  CHECK(message.find("head") == std::string::npos);
  CHECK(names(file_refusal([&] { in.metadata("key"); }), {"no metadata 'key' among its 0"}));
}
