#include "../optimizer/training.hpp"
#include "processes.hpp"

namespace {

using namespace training;
using mpi_backend = lrmoe::with_ranks<lrmoe::openmp::backend<>, lrmoe::mpi::communicator>;

template <class Ownership, class Element>
auto run_on_processes(const problem<Element>& p) {
  using optimizer_type = lrmoe::expert_optimizer<Element, mpi_backend, Ownership>;
  lrmoe::context<mpi_backend> on(lrmoe::mpi::communicator(MPI_COMM_WORLD, 60.0));
  auto optimizer = initialised<optimizer_type>(p, on);
  for (integer t = 0; t < p.steps(); ++t) run_step(p, t, optimizer, on);
  // What one process saved all may restore, and save again.
  const auto saved = save(optimizer, 500);
  restore(optimizer, saved, 333);
  CHECK(save(optimizer, 1 << 20) == saved);
  return saved;
}

}  // namespace

TEST_CASE("the experts' optimizer gives the same bits on processes as on logical ranks", "[mpi]") {
  const std::uint64_t seed = processes::fresh_seed();
  INFO("seed " << seed);
  const integer R = processes::count();
  const auto check = [&]<class Ownership, class Element>(Ownership, Element) {
    auto p = random_problem<Element>(seed, R, 7, 6, 17, 40, 3, false);
    p.max_norm = 2.0;
    const auto here = run_on_processes<Ownership>(p);
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank != 0) return;
    const auto logical = run<Ownership>(p);
    for (int which = 0; which < 3; ++which)
      CHECK(here.values[which] == logical.state.values[which]);
  };
  check(lrmoe::home_state(), lrmoe::bfloat16());
  check(lrmoe::sharded_state(), 0.0f);
}
