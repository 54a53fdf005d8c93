// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <regex>
#include <string>
#include <type_traits>
#include <vector>

#include <lrmoe/io/safetensors.hpp>

#include "inputs.hpp"

namespace bench::compare {

/// Reads one array of a NumPy file (formats 1.0 to 3.0): little-endian floats of 2, 4 or 8 bytes and signed
/// integers of 4 or 8 in C order, as numbers of type T.
/// Throws    lrmoe::argument_error that names the file and what is wrong with it
class npy_array {
 public:
  explicit npy_array(const std::filesystem::path& path) : path_(path.string()) {
    std::ifstream file(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    lrmoe::require(bytes_.size() >= 12 && bytes_.compare(0, 6, "\x93NUMPY") == 0, path_,
                   " is no NumPy file: write it with numpy.save");
    const bool old = bytes_[6] == 1;
    std::size_t length = 0;
    for (std::size_t i = 0; i < (old ? 2U : 4U); ++i)
      length |= static_cast<std::size_t>(static_cast<unsigned char>(bytes_[8 + i])) << (8 * i);
    data_ = (old ? 10 : 12) + length;
    lrmoe::require(data_ <= bytes_.size(), path_, " ends inside its header");
    const std::string header = bytes_.substr(data_ - length, length);
    std::smatch found;
    lrmoe::require(std::regex_search(header, found, std::regex("'descr': *'<([fi][248])'")), path_,
                   " has header ", header,
                   ": supported are little-endian f2, f4, f8, i4 and i8; convert it with astype");
    type_ = found[1];
    lrmoe::require(header.find("'fortran_order': False") != std::string::npos, path_,
                   " is in Fortran order: use numpy.ascontiguousarray");
    lrmoe::require(std::regex_search(header, found, std::regex("'shape': *\\(([^)]*)\\)")), path_,
                   " has no shape");
    const std::string shape = found[1];
    const std::regex number("[0-9]+");
    for (std::sregex_iterator i(shape.begin(), shape.end(), number), end; i != end; ++i)
      shape_.push_back(std::stoll(i->str()));
    std::size_t size = static_cast<std::size_t>(type_[1] - '0');
    for (const std::int64_t extent : shape_) size *= static_cast<std::size_t>(extent);
    lrmoe::require(size == bytes_.size() - data_, path_, " holds ", bytes_.size() - data_,
                   " bytes, its shape needs ", size);
  }

  const std::vector<std::int64_t>& shape() const { return shape_; }

  template <class T>
  std::vector<T> values() const {
    if (type_ == "f8") return convert<double, T>();
    if (type_ == "f4") return convert<float, T>();
    if (type_ == "i8") return convert<std::int64_t, T>();
    if (type_ == "i4") return convert<std::int32_t, T>();
    lrmoe::require(type_ == "f2", path_, " holds ", type_, ": convert it with astype");
    return convert<std::uint16_t, T>();
  }

 private:
  template <class Stored, class T>
  std::vector<T> convert() const {
    std::vector<T> result((bytes_.size() - data_) / sizeof(Stored));
    for (std::size_t i = 0; i < result.size(); ++i) {
      Stored value;
      std::memcpy(&value, bytes_.data() + data_ + i * sizeof(Stored), sizeof(Stored));
      if constexpr (std::is_same_v<Stored, std::uint16_t>)
        result[i] =
            element_of<T>(static_cast<double>(lrmoe::safetensors::detail::float_of_half(value)));
      else
        result[i] = element_of<T>(static_cast<double>(value));
    }
    return result;
  }

  std::string path_, bytes_, type_;
  std::size_t data_ = 0;
  std::vector<std::int64_t> shape_;
};

/// A user's tensors, by name, in a .safetensors file or a folder of NAME.npy files:
///   x (T, D); gate_up (E, D, 2F), gate columns first; down (E, F, D)
///   logits (T, E) and perhaps selection_bias (E), or experts and weights (T, K)
///   shared_gate_up (D, 2 F_shared) and shared_down (F_shared, D), or neither
///   d_out (T, D), random where it is missing
/// Throws    lrmoe::error naming the tensor that is missing or has the wrong shape
class tensor_source {
 public:
  explicit tensor_source(const std::filesystem::path& path) : path_(path) {
    if (!std::filesystem::is_directory(path))
      file_ = std::make_unique<lrmoe::safetensors::reader>(path.string());
  }

  /// Shape of the call; with logits, K is not known.
  compare_case describe() const {
    compare_case of;
    of.shape_name = path_.stem().string();
    of.skew = "loaded";
    const auto x = shape_of("x", 2), gate_up = shape_of("gate_up", 3);
    of.T = x[0];
    of.shape = {.D = x[1], .F = gate_up[2] / 2, .E = gate_up[0], .K = 1, .F_shared = 0};
    if (has("shared_down")) of.shape.F_shared = shape_of("shared_down", 2)[0];
    if (has("logits")) return of;
    of.router = router_kind::given;
    of.shape.K = shape_of("experts", 2)[1];
    return of;
  }

  template <class Element>
  layer_inputs<Element> inputs(const compare_case& of, std::uint64_t seed) const {
    using real = lrmoe::accumulate_t<Element>;
    const auto& [D, F, E, K, F_shared] = of.shape;
    layer_inputs<Element> in;
    in.of = of;
    in.seed = seed;
    in.x = values<Element>("x", {of.T, D});
    in.gate_up = values<Element>("gate_up", {E, D, 2 * F});
    in.down = values<Element>("down", {E, F, D});
    if (F_shared > 0) {
      in.shared_gate_up = values<Element>("shared_gate_up", {D, 2 * F_shared});
      in.shared_down = values<Element>("shared_down", {F_shared, D});
    }
    in.d_out = has("d_out") ? values<Element>("d_out", {of.T, D})
                            : random_tensor<Element>(seed, tensor_id::d_out, of.T * D, 1.0);
    if (of.router == router_kind::given) {
      in.experts = values<index_type>("experts", {of.T, K});
      in.weights = values<real>("weights", {of.T, K});
      for (const auto e : in.experts)
        lrmoe::require(e >= 0 && e < E, path_.string(), ": expert ", e, " is outside [0, E = ", E,
                       ")");
    } else {
      in.logits = values<real>("logits", {of.T, E});
      if (has("selection_bias")) in.selection_bias = values<real>("selection_bias", {E});
    }
    return in;
  }

 private:
  bool has(const std::string& name) const {
    return file_ ? file_->contains(name) : std::filesystem::exists(npy(name));
  }
  std::filesystem::path npy(const std::string& name) const { return path_ / (name + ".npy"); }

  std::vector<std::int64_t> shape_of(const std::string& name, std::size_t rank) const {
    lrmoe::require(has(name), path_.string(), " has no tensor '", name,
                   "': docs/compare.md lists what is needed");
    const auto shape = file_ ? file_->info(name).shape : npy_array(npy(name)).shape();
    lrmoe::require(shape.size() == rank, path_.string(), ": '", name, "' has ", shape.size(),
                   " dimensions, expected ", rank);
    return shape;
  }

  template <class T>
  std::vector<T> values(const std::string& name, const std::vector<std::int64_t>& shape) const {
    const auto found = shape_of(name, shape.size());
    for (std::size_t i = 0; i < shape.size(); ++i)
      lrmoe::require(found[i] == shape[i], path_.string(), ": extent ", i, " of '", name, "' is ",
                     found[i], ", the other tensors need ", shape[i]);
    if (file_) return file_->template read<T>(name);
    return npy_array(npy(name)).template values<T>();
  }

  std::filesystem::path path_;
  std::unique_ptr<lrmoe::safetensors::reader> file_;
};

}  // namespace bench::compare
