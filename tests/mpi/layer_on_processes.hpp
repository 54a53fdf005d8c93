// A layer on processes of mpirun against the oracle of the whole problem, over any communicator.
#pragma once

#include "../ranks/layer_on_ranks.hpp"
#include "processes.hpp"

namespace ranks_test {

enum class shares { by_chance, one_empty };

/// First tokens of the ranks' shares, (R+1). A rank may be without tokens by chance, or one is.
inline std::vector<integer> shares_of(fixture::random& draw, integer T, integer R, shares kind) {
  auto first = deal(draw, T, R);
  if (kind == shares::one_empty && R > 1) {
    const auto r = static_cast<std::size_t>(draw.integer(0, R - 1));
    first[r == 0 ? 1 : r] = first[r == 0 ? 0 : r + 1];
  }
  return first;
}

/// Runs the layer twice, each time on ranks made anew; `also` looks at these and the results as well.
template <class Element, class MakeRanks, class Also>
void check_layer(const MakeRanks& make_ranks, double keep, lrmoe::saved_activations saved,
                 shares kind, const Also& also) {
  const std::uint64_t seed = processes::fresh_seed();
  INFO("seed " << seed << ", keep " << keep << ", saved " << static_cast<int>(saved));
  fixture::random draw(seed);
  const integer R = processes::count(), E = 7, T = 45;
  const problem p = layer_test::random_problem(
      draw, {.T = T, .D = 12, .F = 9, .E = E, .K = 2, .F_shared = 0}, fixture::format_of<Element>(),
      layer_test::routing_kind::softmax_renormalised);
  const auto first = shares_of(draw, T, R, kind);
  moving_policies policies{.quota = {.keep = keep},
                           .estimator = lrmoe::pps{.seed = seed},
                           .planner = {seed},
                           .saved = saved};
  if (keep == 1.0) policies.estimator = lrmoe::exact{};
  std::vector<fixture::byte_string> bits;
  for (int repetition = 0; repetition < 2; ++repetition) {
    auto joined = make_ranks();
    const results found =
        run<Element>(joined, p, first, policies, (E + R - 1) / R + 2, 2, false,
                     keep == 1.0 ? lrmoe::gradient_update::add : lrmoe::gradient_update::overwrite);
    CHECK(found.guards_intact);
    INFO(found.memory);
    CHECK(found.memory_as_planned);
    check_results(p, found);
    also(joined, found);
    if (repetition > 0) CHECK(found.bits == bits);
    bits = found.bits;
  }
}

}  // namespace ranks_test
