// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// lrmoe_bench_ranks: times one LRMoE layer spread over ranks, of this process or of mpirun, beside the same
// layer on one rank.
// Exit code: 0 measured, 1 error, 2 bad usage.

#include <numeric>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <lrmoe/exchange/any_communicator.hpp>
#include <lrmoe/exchange/collectives.hpp>
#include <lrmoe/exchange/logical.hpp>
#include <lrmoe/lrmoe.hpp>
#include <lrmoe/version.hpp>
#if LRMOE_BENCH_HAS_MPI
#include <lrmoe/exchange/mpi.hpp>
#endif

#include "support/harness.hpp"
#include "support/layer_problem.hpp"
#include "support/results.hpp"

namespace {

struct options {
  std::int64_t ranks = 8;
  lrmoe::layer_shape shape{.D = 512, .F = 512, .E = 32, .K = 4};
  std::int64_t tokens = 4096;
  std::vector<std::string> routings{"balanced", "zipf1.2"};
  std::vector<double> keeps{1.0, 0.25};
  int repetitions = 7;
  int threads = 0;
  bool quick = false;
  std::string json_file;
};

/// Tokens [first, last) of a problem that all ranks can build.
template <class View>
View rows_of(const View& all, std::int64_t first, std::int64_t last) {
  return View(all.data() + first * static_cast<std::int64_t>(all.extent(1)),
              static_cast<std::size_t>(last - first), all.extent(1));
}

using estimator = lrmoe::any_estimator<lrmoe::pps, lrmoe::exact>;
using policies =
    lrmoe::policies<lrmoe::softmax_top_k, lrmoe::fixed_fraction, lrmoe::lrm_score, estimator>;

policies policies_for(double keep) {
  policies chosen{.quota = {.keep = keep}};
  if (keep == 1.0) chosen.estimator = lrmoe::exact{};
  return chosen;
}

struct measured {
  bench::spread one, many;      // seconds of forward and backward
  std::int64_t bytes_sent = 0;  // in one backward, by all ranks
  std::int64_t pairs_kept = 0;  // by all ranks
  std::int64_t most_pairs = 0;  // that one rank computes in forward
};

/// One case on this rank. The first rank also times the layer alone, in turn with the layer on all.
template <class Communicator>
measured measure(Communicator& joined, const options& o, const std::string& routing, double keep) {
  using many_backend = lrmoe::with_ranks<bench::host_backend, Communicator>;
  const std::int64_t R = joined.size(), rank = joined.rank();
  const std::int64_t first = o.tokens * rank / R, last = o.tokens * (rank + 1) / R;
  const bench::layer_problem<float> all(o.shape, o.tokens);
  const bench::routed_tokens<float> routed(bench::skew{routing}, o.tokens, o.shape.E, o.shape.K);

  std::optional<lrmoe::context<bench::host_backend>> one_context;
  std::optional<lrmoe::moe_layer<float, bench::host_backend, policies>> one;
  if (rank == 0) {
    one_context.emplace();
    one.emplace(*one_context, o.shape, policies_for(keep));
  }
  lrmoe::context<many_backend> context(std::move(joined));
  lrmoe::moe_layer<float, many_backend, policies> layer(context, o.shape, policies_for(keep));
  const std::int64_t S = R == 1 ? o.shape.E : (o.shape.E + R - 1) / R;
  const lrmoe::placement placed = layer.first_placement(S);
  // Slots of contiguous experts are a part of all weights; an empty slot at the end is never read.
  const bench::layer_problem<float> slots({o.shape.D, o.shape.F, S, std::min(S, o.shape.K)}, 0);
  for (std::int64_t s = 0; s < S; ++s) {
    const auto e = placed.expert_of_slot()[static_cast<std::size_t>(rank * S + s)];
    if (e == lrmoe::no_expert) continue;
    Kokkos::deep_copy(Kokkos::subview(slots.gate_up, s, Kokkos::ALL, Kokkos::ALL),
                      Kokkos::subview(all.gate_up, e, Kokkos::ALL, Kokkos::ALL));
    Kokkos::deep_copy(Kokkos::subview(slots.down, s, Kokkos::ALL, Kokkos::ALL),
                      Kokkos::subview(all.down, e, Kokkos::ALL, Kokkos::ALL));
  }

  measured found;
  std::vector<double> one_s, many_s;
  const auto wait_for_all = [&] { lrmoe::sum_over_ranks(context.ranks, 0); };
  for (int repetition = -1; repetition < o.repetitions; ++repetition) {
    const auto step = static_cast<std::uint64_t>(repetition + 1);
    if (rank == 0) {
      const bench::stopwatch time;
      one->forward(step, all.x, routed.logits, all.weights(), all.out);
      one->backward(all.d_out, all.weights(), all.dx, all.d_logits, all.gradients());
      if (repetition >= 0) one_s.push_back(time.seconds());
    }
    wait_for_all();
    const bench::stopwatch time;
    layer.forward(step, rows_of(all.x, first, last), rows_of(routed.logits, first, last),
                  slots.weights(), rows_of(all.out, first, last));
    const auto report = layer.backward(rows_of(all.d_out, first, last), slots.weights(),
                                       rows_of(all.dx, first, last),
                                       rows_of(all.d_logits, first, last), slots.gradients());
    wait_for_all();
    if (repetition >= 0) many_s.push_back(time.seconds());
    found.bytes_sent = lrmoe::sum_over_ranks(context.ranks, report.bytes_sent);
    found.pairs_kept = lrmoe::sum_over_ranks(context.ranks, report.pairs_kept);
    std::vector<std::int64_t> pairs(static_cast<std::size_t>(R));
    lrmoe::all_gather(context.ranks, layer.last_pairs_here().first, std::span<std::int64_t>(pairs));
    found.most_pairs = *std::max_element(pairs.begin(), pairs.end());
  }
  found.one = bench::spread_of(one_s);
  found.many = bench::spread_of(many_s);
  joined = std::move(context.ranks);
  return found;
}

/// All cases on this rank; the first one prints them.
template <class Communicator>
void run(Communicator& ranks, const options& o, const char* model, const std::string& command) {
  std::optional<bench::result_file> file;
  const bool speaks = ranks.rank() == 0;
  if (speaks && !o.json_file.empty()) file.emplace(o.json_file);
  bench::result_set results;
  const std::string shape =
      fmt::format("T{}-K{}-E{}-D{}-F{}", o.tokens, o.shape.K, o.shape.E, o.shape.D, o.shape.F);
  if (speaks)
    fmt::print(
        "{} ranks ({}), {} threads each, {}\n{:>10} {:>6} {:>10} {:>10} {:>7} {:>10} {:>14}\n",
        ranks.size(), model, Kokkos::OpenMP().concurrency(), shape, "routing", "keep", "one rank",
        "all ranks", "ratio", "max load", "bytes/kept");
  for (const auto& routing : o.routings) {
    for (const double keep : o.keeps) {
      const measured m = measure(ranks, o, routing, keep);
      if (!speaks) continue;
      const double ratio = m.many.median / m.one.median;
      const double load = static_cast<double>(m.most_pairs * ranks.size()) /
                          static_cast<double>(o.tokens * o.shape.K);
      const double bytes = static_cast<double>(m.bytes_sent) / static_cast<double>(m.pairs_kept);
      fmt::print("{:>10} {:>6} {:>7.1f} ms {:>7.1f} ms {:>7.3f} {:>10.2f} {:>14.1f}\n", routing,
                 keep, m.one.median * 1e3, m.many.median * 1e3, ratio, load, bytes);
      const std::string tail = fmt::format("{}/{}/keep={}/full", shape, routing, keep);
      const auto range = [](const bench::spread& s) {
        return bench::json{{"min", s.min * 1e3}, {"max", s.max * 1e3}};
      };
      results.add("layer/" + tail, m.one.median * 1e3, "ms", "", range(m.one));
      bench::json fields = range(m.many);
      fields["threads_of_a_rank"] = Kokkos::OpenMP().concurrency();
      fields["max_over_mean_load"] = load;
      fields["backward_bytes_sent"] = m.bytes_sent;
      fields["pairs_kept"] = m.pairs_kept;
      results.add(fmt::format("ranks/{}/R={}/{}", model, ranks.size(), tail), m.many.median * 1e3,
                  "ms", "layer/" + tail, fields);
    }
  }
  if (file)
    file->write(results.document("lrmoe_bench_ranks", command,
                                 bench::source_commit(LRMOE_SOURCE_DIR), bench::host_machine()));
}

int main_of(int argc, char** argv, bool processes) {
  options o;
  CLI::App app(
      "Times forward and backward of one LRMoE layer spread over ranks, beside the same layer with "
      "all\n"
      "tokens and experts on one rank, in turn. Without mpirun, ranks take turns in this process, "
      "so\n"
      "the ratio is the cost of the exchange in total work. Under mpirun, every process is a "
      "rank:\n"
      "the ratio is 1 over the gain of so many processes over one.");
  app.set_version_flag("--version", "lrmoe_bench_ranks " LRMOE_VERSION_STRING);
  app.option_defaults()->always_capture_default();
  const auto count = [&](const char* flag, auto& value, const char* text) {
    app.add_option(flag, value, text)->check(CLI::Range(1, 1 << 30))->type_name("INT");
  };
  count("--ranks", o.ranks, "ranks in this process; under mpirun its processes count");
  count("--tokens", o.tokens, "tokens of all ranks together");
  count("--width", o.shape.D, "model width D");
  count("--expert-width", o.shape.F, "expert width F");
  count("--experts", o.shape.E, "experts E");
  count("--top-k", o.shape.K, "experts K of a token");
  count("--repetitions", o.repetitions, "measured repetitions");
  app.add_option("--threads", o.threads, "threads of a rank; 0: OMP_NUM_THREADS, or all cores")
      ->check(CLI::Range(0, 4096))
      ->type_name("INT");
  app.add_option("--routing", o.routings,
                 "how tokens spread over experts: balanced, zipf<exponent>")
      ->delimiter(',')
      ->type_name("NAME...");
  app.add_option("--keep", o.keeps, "shares of pairs kept in backward; 1 is the exact layer")
      ->delimiter(',')
      ->check(CLI::Range(1e-6, 1.0))
      ->type_name("REAL...");
  app.add_option("--json", o.json_file, "also write the results to this file")->type_name("FILE");
  app.add_flag("--quick", o.quick,
               "a small shape and two repetitions, to see that everything works");
  try {
    app.parse(argc, argv);
    if (o.quick) {
      o.shape = {.D = 32, .F = 32, .E = 8, .K = 2};
      o.tokens = 256;
      o.repetitions = 2;
      o.ranks = std::min<std::int64_t>(o.ranks, 3);
    }
    if (o.shape.K > o.shape.E)
      throw CLI::ValidationError(
          fmt::format("--top-k {} is more than --experts {}", o.shape.K, o.shape.E));
    for (const auto& routing : o.routings) (void)bench::skew{routing}.exponent();
  } catch (const CLI::ParseError& outcome) {
    return app.exit(outcome) == 0 ? 0 : 2;
  } catch (const std::invalid_argument& problem) {
    std::fprintf(stderr, "lrmoe_bench_ranks: %s\n", problem.what());
    return 2;
  }
  Kokkos::InitializationSettings settings;
  settings.set_disable_warnings(true);
  if (o.threads > 0) settings.set_num_threads(o.threads);
  const Kokkos::ScopeGuard kokkos(settings);
  const std::string command = bench::command_line(argc, argv);
#if LRMOE_BENCH_HAS_MPI
  if (processes) {
    lrmoe::mpi::communicator ranks(MPI_COMM_WORLD);
    run(ranks, o, "mpi", fmt::format("mpirun -n {} {}", ranks.size(), command));
    return 0;
  }
#else
  (void)processes;
#endif
  lrmoe::logical::world world(static_cast<int>(o.ranks));
  world.run([&](lrmoe::logical::communicator& ranks) { run(ranks, o, "logical", command); });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  bool processes = false;
#if LRMOE_BENCH_HAS_MPI
  processes = std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMI_SIZE") != nullptr;
  int level = 0;
  if (processes) MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
#endif
  int code = 1;
  try {
    code = main_of(argc, argv, processes);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "lrmoe_bench_ranks: %s\n", problem.what());
#if LRMOE_BENCH_HAS_MPI
    if (processes) MPI_Abort(MPI_COMM_WORLD, 1);
#endif
  }
#if LRMOE_BENCH_HAS_MPI
  if (processes) MPI_Finalize();
#endif
  return code;
}
