// A layer on processes with a GPU each equals the oracle of the whole problem, as on ranks of one process,
// sends what the plan says and nothing else, and waits no more often than a layer on one GPU.
#include <thread>

#include "../mpi/layer_on_processes.hpp"
#include "kokkos_events.hpp"
#include "ranks_on_gpus.hpp"

using namespace ranks_test;
using processes::error_of;
using processes::ranks_type;
using processes::seconds_of;

namespace {

using static_policies = lrmoe::policies<lrmoe::softmax_top_k, lrmoe::fixed_fraction,
                                        lrmoe::lrm_score, layer_test::any_estimator>;
using lrmoe::saved_activations;

template <class Element>
void check_on_gpus(double keep, saved_activations saved, shares kind) {
  check_layer<Element>([] { return processes::on_gpus(); }, keep, saved, kind,
                       [&](const ranks_type& joined, const results& found) {
                         joined.require_working();
                         if (joined.size() == 1)
                           CHECK(joined.bytes_sent() == 0);
                         else if (saved == saved_activations::save)
                           CHECK(found.bytes_sent == found.bytes_planned);
                       });
}

/// This rank's layer with experts at home, and a call of its own tokens. What it computes is checked above.
class own_call {
 public:
  using Element = lrmoe::bfloat16;
  using layer_type = lrmoe::moe_layer<Element, lrmoe::with_ranks<layer_test::backend, ranks_type>,
                                      static_policies>;

  own_call(ranks_type joined, fixture::random draw, const layer_test::any_estimator& estimator)
      : problem_(layer_test::random_problem(draw, extents, fixture::format_of<Element>(),
                                            layer_test::routing_kind::softmax_renormalised)),
        views_(problem_),
        context_(std::move(joined)),
        layer_(context_, layer_test::shape_of(extents),
               {.quota = {.keep = 0.5}, .estimator = estimator}),
        slots_((extents.E + context_.ranks.size() - 1) / context_.ranks.size()) {}

  void forward(std::uint64_t step, integer out_rows = extents.T) {
    layer_.forward(step, views_.x_view(), views_.router_input<lrmoe::softmax_top_k>(), weights(),
                   views_.out.matrix(out_rows, extents.D));
  }
  lrmoe::backward_report backward() {
    lrmoe::expert_gradients<float, device> sums;
    sums.gate_up = views_.d_gate_up.tensor(slots_, extents.D, 2 * extents.F);
    sums.down = views_.d_down.tensor(slots_, extents.F, extents.D);
    layer_.backward(views_.d_out_view(), weights(), views_.dx_view(),
                    views_.router_gradient<lrmoe::softmax_top_k>(), sums);
    return layer_.report();
  }
  ranks_type& ranks() { return context_.ranks; }
  fixture::byte_string out() const { return views_.out.bits(); }

 private:
  static constexpr oracle::extents extents{.T = 300, .D = 64, .F = 48, .E = 8, .K = 3};

  lrmoe::expert_weights<Element, device> weights() const {
    lrmoe::expert_weights<Element, device> slots;
    slots.gate_up = views_.gate_up.tensor(slots_, extents.D, 2 * extents.F);
    slots.down = views_.down.tensor(slots_, extents.F, extents.D);
    return slots;
  }

  problem problem_;
  layer_test::call<Element> views_;
  lrmoe::context<lrmoe::with_ranks<layer_test::backend, ranks_type>> context_;
  layer_type layer_;
  integer slots_;
};

/// Other draws on every rank.
fixture::random own_draws(std::uint64_t seed) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return fixture::random(seed + static_cast<std::uint64_t>(rank));
}

}  // namespace

TEST_CASE("an exact layer on several GPUs equals the oracle and repeats bit for bit", "[nccl]") {
  check_on_gpus<float>(1.0, saved_activations::save, shares::by_chance);
  check_on_gpus<float>(1.0, saved_activations::save, shares::one_empty);
  check_on_gpus<lrmoe::bfloat16>(1.0, saved_activations::save, shares::by_chance);
}

TEST_CASE("a reduced layer on several GPUs equals the oracle and repeats bit for bit", "[nccl]") {
  check_on_gpus<float>(0.5, saved_activations::save, shares::by_chance);
  check_on_gpus<float>(0.4, saved_activations::proxy, shares::by_chance);
  check_on_gpus<float>(0.4, saved_activations::recompute, shares::by_chance);
  check_on_gpus<lrmoe::bfloat16>(0.5, saved_activations::save, shares::one_empty);
}

TEST_CASE(
    "in steady state a step on GPUs that exchange rows allocates nothing and waits once a pass",
    "[nccl]") {
  const std::uint64_t seed = processes::fresh_seed();
  INFO("seed " << seed);
  const layer_test::any_estimator estimator =
      GENERATE(layer_test::any_estimator(lrmoe::exact{}), layer_test::any_estimator(lrmoe::pps{1}));
  own_call call(processes::on_gpus(), own_draws(seed), estimator);
  for (std::uint64_t step = 0; step < 2; ++step) {
    call.forward(step);
    call.backward();
  }
  const std::int64_t before = call.ranks().bytes_sent();
  const fixture::kokkos_events heard;
  call.forward(2);
  // The host plans from the counts. Those of other ranks, and all agreement, go from host to host, and
  // exchanges are enqueued with sizes that the plan says.
  CHECK(heard.fences == 1);
  const auto report = call.backward();
  // Whether every rank came through, and its report.
  CHECK(heard.fences == 2);
  CHECK(heard.allocations == 0);
  CHECK(report.pairs_kept > 0);
  CHECK((call.ranks().bytes_sent() > before) == (processes::count() > 1));
}

TEST_CASE("what one GPU's rank does wrong throws on all, and the next step works",
          "[nccl][several]") {
  const std::uint64_t seed = processes::fresh_seed();
  INFO("seed " << seed);
  const int culprit = processes::count() - 1;
  own_call call(processes::on_gpus(), own_draws(seed), lrmoe::pps{seed});
  call.forward(0);
  const fixture::byte_string expected = call.out();
  std::string message;
  const double waited_s = seconds_of([&] {
    try {
      call.forward(1, call.ranks().rank() == culprit ? 299 : 300);
    } catch (const lrmoe::error& failure) {
      message = failure.what();
    }
  });
  CHECK(fixture::names(message, {"out is 299 x 64"}));
  if (call.ranks().rank() != culprit)
    CHECK(fixture::names(message, {"rank " + std::to_string(culprit) + " failed"}));
  CHECK(waited_s < processes::patient_s / 2);
  call.forward(0);
  CHECK(call.out() == expected);
  CHECK(call.backward().pairs_kept > 0);
}

TEST_CASE("a process that does not come to a step is named on all others within the time given",
          "[nccl][several]") {
  const std::uint64_t seed = processes::fresh_seed();
  INFO("seed " << seed);
  const int late = processes::count() - 1;
  {
    own_call call(processes::on_gpus(processes::patient_s, 3.0), own_draws(seed), lrmoe::pps{seed});
    call.forward(0);
    if (call.ranks().rank() == late) std::this_thread::sleep_for(std::chrono::seconds(6));
    std::string message;
    const double waited_s = seconds_of([&] { message = error_of([&] { call.forward(1); }); });
    CHECK(
        fixture::names(message, {"rank " + std::to_string(late) + " did not come to all_gather"}));
    CHECK(waited_s < 5.5);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}
