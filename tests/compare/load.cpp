// A user's tensors: NumPy folders and safetensors files give the same inputs; what does not fit is refused.
#include "compare/load.hpp"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <unistd.h>

#include "catch.hpp"
#include "fixture.hpp"
#include "support/npy.hpp"

using namespace bench::compare;

namespace {

constexpr std::int64_t T = 5, D = 3, F = 2, E = 4, K = 2;

/// Random values that the format holds, in a host view.
template <class View>
View filled(std::uint64_t seed, oracle::format format, const View& view) {
  const auto values =
      fixture::random(seed).normal(static_cast<std::int64_t>(view.size()), 1.0, format);
  for (std::size_t i = 0; i < values.size(); ++i)
    view.data()[i] = static_cast<typename View::value_type>(values[i]);
  return view;
}
template <class T>
using host_matrix = Kokkos::View<T**, Kokkos::LayoutRight, Kokkos::HostSpace>;
template <class T>
using host_tensor = Kokkos::View<T***, Kokkos::LayoutRight, Kokkos::HostSpace>;

/// A folder with x, gate_up, down and logits as .npy, and the same in one .safetensors file.
struct user_files {
  std::filesystem::path folder;
  host_matrix<float> x = filled(1, oracle::format::binary32, host_matrix<float>("x", T, D));
  host_tensor<double> gate_up =
      filled(2, oracle::format::binary64, host_tensor<double>("gate_up", E, D, 2 * F));
  host_tensor<float> down =
      filled(3, oracle::format::binary32, host_tensor<float>("down", E, F, D));
  host_matrix<float> logits =
      filled(4, oracle::format::binary32, host_matrix<float>("logits", T, E));

  user_files()
      : folder(std::filesystem::temp_directory_path() /
               ("lrmoe_compare_load_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder);
    bench::write_npy(folder / "x.npy", x);
    bench::write_npy(folder / "gate_up.npy", gate_up);
    bench::write_npy(folder / "down.npy", down);
    bench::write_npy(folder / "logits.npy", logits);
    lrmoe::safetensors::writer writer;
    writer.add("x", x);
    writer.add("gate_up", gate_up);
    writer.add("down", down);
    writer.add("logits", logits);
    writer.write(file());
  }
  ~user_files() { std::filesystem::remove_all(folder); }
  std::string file() const { return (folder / "layer.safetensors").string(); }
};

compare_case with_k(compare_case of) {
  of.shape.K = K;
  return of;
}

template <class Element>
std::vector<double> doubles(const std::vector<Element>& values) {
  std::vector<double> result;
  for (const auto value : values) result.push_back(value_of(value));
  return result;
}

template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const lrmoe::error& problem) {
    return problem.what();
  }
  return {};
}

}  // namespace

TEMPLATE_TEST_CASE("NumPy files and safetensors give the same inputs, rounded to the element type",
                   "[compare]", float, double, lrmoe::bfloat16) {
  const user_files files;
  const tensor_source folder(files.folder), file(files.file());
  const auto of = with_k(folder.describe());
  CHECK(of.T == T);
  CHECK(of.shape.D == D);
  CHECK(of.shape.F == F);
  CHECK(of.shape.E == E);
  const auto a = folder.inputs<TestType>(of, 1), b = file.inputs<TestType>(of, 1);
  for (const auto* in : {&a, &b}) {
    CHECK(doubles(in->x) == doubles(b.x));
    CHECK(doubles(in->gate_up) == doubles(b.gate_up));
    CHECK(doubles(in->logits) == doubles(b.logits));
    std::vector<double> expected;
    for (std::size_t i = 0; i < files.down.size(); ++i)
      expected.push_back(oracle::round_to(fixture::format_of<TestType>(),
                                          static_cast<double>(files.down.data()[i])));
    CHECK(doubles(in->down) == expected);
  }
}

TEST_CASE("files that do not fit are refused by name", "[compare]") {
  const user_files files;
  const auto of = with_k(tensor_source(files.folder).describe());
  bench::write_npy(files.folder / "down.npy", host_tensor<float>("down", E, D, F));
  const auto wrong_shape = message_of([&] { tensor_source(files.folder).inputs<float>(of, 1); });
  CHECK(fixture::names(wrong_shape, {"down", "extent 1", "is 3"}));
  std::filesystem::remove(files.folder / "x.npy");
  CHECK(fixture::names(message_of([&] { tensor_source(files.folder).describe(); }),
                       {"no tensor 'x'"}));
  std::ofstream(files.folder / "x.npy") << "not an array at all";
  CHECK(fixture::names(message_of([&] { tensor_source(files.folder).describe(); }),
                       {"x.npy", "is no NumPy file"}));
}
