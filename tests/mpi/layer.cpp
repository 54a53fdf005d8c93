// A layer on processes of mpirun equals the oracle of the whole problem, as on ranks of one process.
#include "../ranks/layer_on_ranks.hpp"
#include "catch.hpp"
#include "processes.hpp"

using namespace ranks_test;

namespace {

using moving_policies =
    lrmoe::policies<lrmoe::softmax_top_k, lrmoe::fixed_fraction, lrmoe::lrm_score,
                    layer_test::any_estimator, random_planner>;

template <class Element>
void check_layer(double keep, lrmoe::saved_activations saved) {
  const std::uint64_t seed = processes::fresh_seed();
  INFO("seed " << seed << ", keep " << keep);
  fixture::random draw(seed);
  const integer R = processes::count(), E = 7, T = 45;
  const problem p = layer_test::random_problem(
      draw, {.T = T, .D = 12, .F = 9, .E = E, .K = 2, .F_shared = 0}, fixture::format_of<Element>(),
      layer_test::routing_kind::softmax_renormalised);
  const auto first = deal(draw, T, R);
  moving_policies policies{.quota = {.keep = keep},
                           .estimator = lrmoe::pps{.seed = seed},
                           .planner = {seed},
                           .saved = saved};
  if (keep == 1.0) policies.estimator = lrmoe::exact{};
  std::vector<fixture::byte_string> bits;
  for (int repetition = 0; repetition < 2; ++repetition) {
    lrmoe::mpi::communicator joined(MPI_COMM_WORLD, 60.0);
    const results found = run<Element>(joined, p, first, policies, (E + R - 1) / R + 2, 2);
    CHECK(found.guards_intact);
    CHECK(found.memory_as_planned);
    check_results(p, found);
    if (repetition > 0) CHECK(found.bits == bits);
    bits = found.bits;
  }
}

}  // namespace

TEST_CASE("a layer on several processes equals the oracle and repeats bit for bit") {
  check_layer<float>(1.0, lrmoe::saved_activations::save);
  check_layer<float>(0.5, lrmoe::saved_activations::save);
  check_layer<float>(0.4, lrmoe::saved_activations::proxy);
  check_layer<float>(0.4, lrmoe::saved_activations::recompute);
  check_layer<lrmoe::bfloat16>(0.5, lrmoe::saved_activations::save);
}
