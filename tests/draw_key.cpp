// The counter-based generator against the published answers, and the keys of draws.
#include <array>
#include <cstdint>
#include <set>

#include <lrmoe/draw_key.hpp>

#include "catch.hpp"

namespace {

using words = std::array<std::uint32_t, 4>;

words philox(std::uint64_t key, std::uint64_t high, std::uint64_t low) {
  const auto block = lrmoe::detail::philox(key, high, low);
  return {block.word[0], block.word[1], block.word[2], block.word[3]};
}

}  // namespace

TEST_CASE("philox4x32-10 gives the known answers of Random123", "[random]") {
  CHECK(philox(0, 0, 0) == words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox(~std::uint64_t{0}, ~std::uint64_t{0}, ~std::uint64_t{0}) ==
        words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88) ==
        words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("seed, step, layer, source and index all select another block", "[random]") {
  std::set<words> seen;
  const auto add = [&](const lrmoe::draw_key& key, std::uint64_t seed, std::uint32_t index) {
    const auto block = key.words(seed, index);
    seen.insert({block.word[0], block.word[1], block.word[2], block.word[3]});
  };
  for (const std::uint64_t step : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32})
    for (const std::uint32_t layer : {0u, 1u, 65535u})
      for (const std::uint32_t source : {0u, 1u, 65535u})
        for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1} << 32})
          for (const std::uint32_t index : {0u, 1u, 0xffffffffu})
            add({step, layer, source}, seed, index);
  CHECK(seen.size() == 3 * 3 * 3 * 2 * 3);
}
