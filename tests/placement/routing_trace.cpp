#include "../../benchmarks/support/routing_trace.hpp"

#include <fstream>

#include <unistd.h>

#include "catch.hpp"
#include "requests.hpp"

namespace {

/// A file that is removed again.
class scratch_file {
 public:
  scratch_file()
      : path_(std::filesystem::temp_directory_path() /
              ("lrmoe_trace_" + std::to_string(getpid()) + ".json")) {}
  ~scratch_file() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

TEST_CASE("a routing trace is read as it was written", "[placement]") {
  const auto seed = fixture::fresh_seed();
  INFO("LRMOE_TEST_SEED=" << seed);
  fixture::random draw(seed);
  for (const std::int64_t calls : {0, 2, 6}) {
    bench::routing_trace trace{
        .R = 3, .E = 5, .K = 2, .tokens = 400, .layers = 2, .description = "a \"quoted\"\nline"};
    for (std::int64_t c = 0; c < calls; ++c)
      trace.add(requests::random_counts(draw, 3, 5, "zipf", 200));
    const scratch_file file;
    trace.write(file.path());
    const auto read = bench::routing_trace::read(file.path());
    CHECK(read.R == 3);
    CHECK(read.E == 5);
    CHECK(read.K == 2);
    CHECK(read.tokens == 400);
    CHECK(read.layers == 2);
    CHECK(read.description == trace.description);
    CHECK(read.calls == trace.calls);
  }
}

TEST_CASE("a damaged routing trace is refused with its name", "[placement]") {
  const scratch_file file;
  const auto refused = [&](const std::string& text) -> std::string {
    std::ofstream(file.path()) << text;
    try {
      (void)bench::routing_trace::read(file.path());
    } catch (const std::runtime_error& problem) {
      return problem.what();
    }
    return {};
  };
  const auto trace = [](const std::string& counts, const std::string& extents) {
    return "{\"format\": \"lrmoe routing trace\", \"version\": 1, " + extents +
           ", \"tokens\": 10, \"counts\": " + counts + "}";
  };
  const std::string extents = "\"R\": 2, \"E\": 2, \"K\": 1";
  const std::string name = file.path().string();
  CHECK(refused(trace("[[[1, 2], [3, 4]]]", extents)).empty());
  CHECK(fixture::names(refused("{"), {name, "parse"}));
  CHECK(fixture::names(refused("{}"), {name, "format"}));
  CHECK(fixture::names(refused(trace("[]", "\"R\": 2, \"E\": 2")), {name, "K"}));
  CHECK(fixture::names(refused(trace("[]", "\"R\": 0, \"E\": 2, \"K\": 1")), {name, "extents"}));
  CHECK(fixture::names(refused(trace("[[[1, 2]]]", extents)), {name, "2 sources"}));
  CHECK(fixture::names(refused(trace("[[[1], [2]]]", extents)), {name, "1 experts"}));
  CHECK(fixture::names(refused(trace("[[[1, -2], [3, 4]]]", extents)), {name, "-2"}));
  CHECK(fixture::names(refused(trace("[[[1, 11], [3, 4]]]", extents)), {name, "11", "10 tokens"}));
  CHECK(fixture::names(refused(trace("[[[5, 6], [3, 4]]]", extents)), {name, "11 pairs"}));
  CHECK(fixture::names(refused(trace("[[[1, 2], [3, 4]]]", extents + ", \"layers\": 2")),
                       {name, "1 calls", "2 layers"}));
  bench::routing_trace wrong{.R = 2, .E = 2, .K = 1, .tokens = 10, .description = ""};
  CHECK_THROWS_AS(wrong.add({1, 2, 3}), std::invalid_argument);
  CHECK_THROWS_AS(wrong.write("/no/such/folder/trace.json"), std::runtime_error);
}
