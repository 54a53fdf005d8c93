// A layer on processes of mpirun equals the oracle of the whole problem, as on ranks of one process.
#include "catch.hpp"
#include "layer_on_processes.hpp"

using namespace ranks_test;

namespace {

template <class Element>
void check_on_processes(double keep, lrmoe::saved_activations saved) {
  check_layer<Element>([] { return lrmoe::mpi::communicator(MPI_COMM_WORLD, 60.0); }, keep, saved,
                       shares::by_chance, [](const auto&, const results&) {});
}

}  // namespace

TEST_CASE("a layer on several processes equals the oracle and repeats bit for bit") {
  check_on_processes<float>(1.0, lrmoe::saved_activations::save);
  check_on_processes<float>(0.5, lrmoe::saved_activations::save);
  check_on_processes<float>(0.4, lrmoe::saved_activations::proxy);
  check_on_processes<float>(0.4, lrmoe::saved_activations::recompute);
  check_on_processes<lrmoe::bfloat16>(0.5, lrmoe::saved_activations::save);
}
