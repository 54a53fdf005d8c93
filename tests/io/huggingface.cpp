// MoE blocks under Hugging Face's names: layouts, round trips, and what is refused.
#include <lrmoe/io/huggingface.hpp>

#include "catch.hpp"
#include "files.hpp"
#include "fixture.hpp"

using namespace io_test;
using fixture::array;
using fixture::device;
using fixture::names;
using oracle::integer;
namespace hf = lrmoe::huggingface;
namespace st = lrmoe::safetensors;

namespace {

const std::string prefix = "model.layers.3.mlp.";

template <class View>
std::string bits_of(const View& view) {
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
  return std::string(reinterpret_cast<const char*>(host.data()),
                     host.size() * sizeof(typename View::value_type));
}

/// Storage of a random block.
template <class Element>
struct random_block {
  using real = lrmoe::accumulate_t<Element>;
  integer D, F, E, F_shared;
  bool biased;
  std::vector<double> gate_up_values;
  array<Element> gate_up, down, shared_gate_up, shared_down;
  array<real> router, bias;

  random_block(fixture::random& draw, integer d, integer f, integer e, integer f_shared,
               bool with_bias)
      : D(d),
        F(f),
        E(e),
        F_shared(f_shared),
        biased(with_bias),
        gate_up_values(draw.normal(E * D * 2 * F, 1.0, fixture::format_of<Element>())),
        gate_up(gate_up_values),
        down(draw.normal(E * F * D, 1.0, fixture::format_of<Element>())),
        shared_gate_up(draw.normal(D * 2 * F_shared, 1.0, fixture::format_of<Element>())),
        shared_down(draw.normal(F_shared * D, 1.0, fixture::format_of<Element>())),
        router(draw.normal(E * D, 1.0, fixture::format_of<real>())),
        bias(draw.normal(biased ? E : 0, 1.0, fixture::format_of<real>())) {}

  hf::moe_block<Element, device> views() const {
    hf::moe_block<Element, device> block;
    block.gate_up = gate_up.tensor(E, D, 2 * F);
    block.down = down.tensor(E, F, D);
    if (F_shared > 0) {
      block.shared_gate_up = shared_gate_up.tensor(1, D, 2 * F_shared);
      block.shared_down = shared_down.tensor(1, F_shared, D);
    }
    block.router = router.matrix(E, D);
    if (biased) block.selection_bias = bias.vector();
    return block;
  }
};

template <class Element>
bool same_bits(const hf::moe_block<Element, device>& a, const hf::moe_block<Element, device>& b) {
  return bits_of(a.gate_up) == bits_of(b.gate_up) && bits_of(a.down) == bits_of(b.down) &&
         bits_of(a.shared_gate_up) == bits_of(b.shared_gate_up) &&
         bits_of(a.shared_down) == bits_of(b.shared_down) &&
         bits_of(a.router) == bits_of(b.router) &&
         bits_of(a.selection_bias) == bits_of(b.selection_bias);
}

}  // namespace

TEMPLATE_TEST_CASE("a block is the same, bit for bit, after it was written and read", "[io]", float,
                   double, lrmoe::bfloat16) {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const temporary_folder folder;
  const auto expert_names = GENERATE(hf::expert_names::one_by_one, hf::expert_names::stacked);
  const bool shared = GENERATE(false, true);
  const random_block<TestType> original(draw, draw.integer(1, 9), draw.integer(1, 9),
                                        draw.integer(1, 12), shared ? draw.integer(1, 9) : 0,
                                        shared);
  st::writer out;
  hf::add_block(out, prefix, original.views(), expert_names);
  hf::add_block(out, "other.", original.views(), expert_names);
  out.write(folder / "x");
  const st::reader in(folder / "x");
  const auto contents = hf::find_block(in, prefix);
  CHECK(contents.D == original.D);
  CHECK(contents.F == original.F);
  CHECK(contents.E == original.E);
  CHECK(contents.F_shared == original.F_shared);
  CHECK(contents.names == expert_names);
  CHECK(contents.selection_bias == shared);
  const auto again = hf::read_block<TestType, device>(in, prefix);
  CHECK(same_bits(again, original.views()));
  st::writer out_again;
  hf::add_block(out_again, prefix, again, expert_names);
  hf::add_block(out_again, "other.", again, expert_names);
  out_again.write(folder / "y");
  CHECK(content_of(folder / "x") == content_of(folder / "y"));
}

TEST_CASE("a file holds each weight where Hugging Face's names and layouts put it", "[io]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const temporary_folder folder;
  const integer D = 5, F = 3, E = 4, F_shared = 2;
  const random_block<float> block(draw, D, F, E, F_shared, true);
  const auto gate_up = block.gate_up.values(), down = block.down.values();
  const auto at = [](const std::vector<double>& values, integer i) {
    return values[static_cast<std::size_t>(i)];
  };
  st::writer one_by_one, stacked;
  hf::add_block(one_by_one, "", block.views(), hf::expert_names::one_by_one);
  hf::add_block(stacked, "", block.views(), hf::expert_names::stacked);
  one_by_one.write(folder / "one");
  stacked.write(folder / "stacked");
  const st::reader one(folder / "one"), all(folder / "stacked");
  CHECK(one.tensors().size() == static_cast<std::size_t>(3 * E + 3 + 2));
  CHECK(all.tensors().size() == 2 + 3 + 2);

  // y = x W^T there, y = x W here.
  integer wrong = 0;
  all.require_shape("experts.gate_up_proj", {E, 2 * F, D});
  all.require_shape("experts.down_proj", {E, D, F});
  const auto all_gate_up = all.read<double>("experts.gate_up_proj");
  const auto all_down = all.read<double>("experts.down_proj");
  for (integer e = 0; e < E; ++e) {
    const std::string name = "experts." + std::to_string(e) + ".";
    one.require_shape(name + "gate_proj.weight", {F, D});
    one.require_shape(name + "down_proj.weight", {D, F});
    const auto gate = one.read<double>(name + "gate_proj.weight");
    const auto up = one.read<double>(name + "up_proj.weight");
    const auto out = one.read<double>(name + "down_proj.weight");
    for (integer f = 0; f < F; ++f)
      for (integer d = 0; d < D; ++d) {
        const double w_gate = at(gate_up, (e * D + d) * 2 * F + f);
        const double w_up = at(gate_up, (e * D + d) * 2 * F + F + f);
        const double w_down = at(down, (e * F + f) * D + d);
        wrong +=
            at(gate, f * D + d) != w_gate || at(all_gate_up, (e * 2 * F + f) * D + d) != w_gate;
        wrong += at(up, f * D + d) != w_up || at(all_gate_up, (e * 2 * F + F + f) * D + d) != w_up;
        wrong += at(out, d * F + f) != w_down || at(all_down, (e * D + d) * F + f) != w_down;
      }
  }
  const auto shared_up = one.read<double>("shared_experts.up_proj.weight");
  const auto shared_gate = one.read<double>("shared_experts.gate_proj.weight");
  const auto shared_out = one.read<double>("shared_experts.down_proj.weight");
  for (integer f = 0; f < F_shared; ++f)
    for (integer d = 0; d < D; ++d) {
      const auto shared = block.shared_gate_up.values();
      wrong += at(shared_gate, f * D + d) != at(shared, d * 2 * F_shared + f);
      wrong += at(shared_up, f * D + d) != at(shared, d * 2 * F_shared + F_shared + f);
      wrong += at(shared_out, d * F_shared + f) != at(block.shared_down.values(), f * D + d);
    }
  CHECK(wrong == 0);
  CHECK(one.read<double>("gate.weight") == block.router.values());
  CHECK(one.read<double>("gate.e_score_correction_bias") == block.bias.values());
  CHECK(same_bits(hf::read_block<float, device>(one, ""), hf::read_block<float, device>(all, "")));
}

TEST_CASE("a block of a file becomes the weights of a layer and goes back", "[io]") {
  fixture::random draw(fixture::fresh_seed());
  const temporary_folder folder;
  const std::string path = folder / "model.safetensors", new_path = folder / "new.safetensors";
  const random_block<float> original(draw, 4, 3, 2, 0, false);
  st::writer first;
  hf::add_block(first, prefix, original.views(), hf::expert_names::one_by_one);
  first.write(path);

  const lrmoe::safetensors::reader file(path);
  const auto block = lrmoe::huggingface::read_block<float, device>(file, "model.layers.3.mlp.");
  const lrmoe::expert_weights<float, device> weights = block.weights();

  lrmoe::safetensors::writer out;
  lrmoe::huggingface::add_block(out, "model.layers.3.mlp.", block,
                                lrmoe::huggingface::expert_names::one_by_one);
  out.write(new_path);

  CHECK(weights.gate_up.data() == block.gate_up.data());
  CHECK(content_of(new_path) == content_of(path));
}

TEST_CASE("a block is read in another precision than the file's", "[io]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  const temporary_folder folder;
  const random_block<lrmoe::bfloat16> narrow(draw, 6, 5, 3, 4, true);
  const random_block<double> wide(draw, 6, 5, 3, 0, false);
  st::writer out;
  hf::add_block(out, "narrow.", narrow.views(), hf::expert_names::one_by_one);
  hf::add_block(out, "wide.", wide.views(), hf::expert_names::stacked);
  out.write(folder / "x");
  const st::reader in(folder / "x");
  const auto widened = hf::read_block<double, device>(in, "narrow.");
  const array<double> same(narrow.gate_up.values());
  CHECK(bits_of(widened.gate_up) == bits_of(same.tensor(3, 6, 10)));
  const auto narrowed = hf::read_block<lrmoe::bfloat16, device>(in, "wide.");
  const array<lrmoe::bfloat16> rounded(wide.gate_up_values);
  CHECK(bits_of(narrowed.gate_up) == bits_of(rounded.tensor(3, 6, 10)));
  const array<float> router(wide.router.values());
  CHECK(bits_of(narrowed.router) == bits_of(router.matrix(3, 6)));
}

TEST_CASE("a block that is incomplete or does not fit together is refused by the tensor's name",
          "[io]") {
  const temporary_folder folder;
  struct tensor {
    std::string name;
    std::vector<std::int64_t> shape;
  };
  const auto refusal = [&](const std::vector<tensor>& tensors) {
    st::writer out;
    for (const auto& [name, shape] : tensors)
      out.add_produced<float>(name, shape, [](std::int64_t, std::span<float> to) {
        std::fill(to.begin(), to.end(), 1.0f);
      });
    out.write(folder / "x");
    const st::reader in(folder / "x");
    return file_refusal([&] { hf::read_block<float, device>(in, ""); });
  };
  const tensor router{"gate.weight", {2, 4}};
  const std::vector<tensor> one_by_one{router,
                                       {"experts.0.gate_proj.weight", {3, 4}},
                                       {"experts.0.up_proj.weight", {3, 4}},
                                       {"experts.0.down_proj.weight", {4, 3}},
                                       {"experts.1.gate_proj.weight", {3, 4}},
                                       {"experts.1.up_proj.weight", {3, 4}},
                                       {"experts.1.down_proj.weight", {4, 3}}};
  const std::vector<tensor> stacked{
      router, {"experts.gate_up_proj", {2, 6, 4}}, {"experts.down_proj", {2, 4, 3}}};
  CHECK(refusal(one_by_one).empty());
  CHECK(refusal(stacked).empty());
  for (const auto& complete : {one_by_one, stacked})
    for (std::size_t i = 0; i < complete.size(); ++i) {
      auto lacking = complete;
      lacking.erase(lacking.begin() + static_cast<std::ptrdiff_t>(i));
      const auto message = refusal(lacking);
      INFO(message);
      CHECK(names(message, {"there is no tensor"}));
      auto transposed = complete;
      std::swap(transposed[i].shape.back(), transposed[i].shape[transposed[i].shape.size() - 2]);
      CHECK_FALSE(refusal(transposed).empty());
    }
  const auto with = [](std::vector<tensor> tensors, const std::vector<tensor>& more) {
    tensors.insert(tensors.end(), more.begin(), more.end());
    return tensors;
  };
  CHECK(names(refusal(with(one_by_one, {{"experts.2.gate_proj.weight", {3, 4}}})),
              {"2 experts", "there are more"}));
  CHECK(names(refusal(with(stacked, {{"shared_experts.gate_proj.weight", {3, 4}}})),
              {"'shared_experts.up_proj.weight'"}));
  CHECK(names(refusal(with(stacked, {{"shared_expert.gate_proj.weight", {3, 4}}})),
              {"gated shared expert"}));
  CHECK(names(refusal(with(stacked, {{"gate.e_score_correction_bias", {3}}})),
              {"'gate.e_score_correction_bias'", "(3)", "(2)"}));
  CHECK(names(refusal({{"gate.weight", {8}}}), {"'gate.weight'", "no matrix"}));

  fixture::random draw(1);
  const random_block<float> block(draw, 4, 3, 2, 0, false);
  auto views = block.views();
  st::writer out;
  views.router = block.router.matrix(4, 2);
  CHECK(names(fixture::refusal([&] { hf::add_block(out, "", views, hf::expert_names::stacked); }),
              {"gate_up weights", "expected 4 x 2 x 6"}));
}
