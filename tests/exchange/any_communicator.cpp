#include <lrmoe/exchange/any_communicator.hpp>
#include <lrmoe/exchange/logical.hpp>

#include "laws.hpp"

namespace {

using any = lrmoe::any_communicator<lrmoe::single_rank, lrmoe::logical::communicator>;
static_assert(lrmoe::communicator<any>);
static_assert(std::is_constructible_v<any, lrmoe::single_rank>);
static_assert(!std::is_constructible_v<any, int>);

void check_laws(any& ranks, std::uint64_t seed) {
  laws::all_to_all(ranks, seed);
  laws::all_gather(ranks, seed);
  laws::calls_stay_apart(ranks, seed, 20);
  laws::sums(ranks, seed);
  laws::agreement(ranks, seed);
  laws::settings(ranks, seed);
}

}  // namespace

TEST_CASE("a communicator chosen when the program runs obeys the laws of its model", "[exchange]") {
  const std::uint64_t seed = fixture::fresh_seed();
  INFO("seed " << seed);
  any alone(lrmoe::single_rank{});
  CHECK(alone.rank() == 0);
  CHECK(alone.size() == 1);
  CHECK(std::holds_alternative<lrmoe::single_rank>(alone.model()));
  check_laws(alone, seed);
  for (const int R : {1, 2, 3, 8}) {
    lrmoe::logical::world world(R);
    world.run([&](lrmoe::logical::communicator& own) {
      const int rank = own.rank();
      any ranks(std::move(own));
      CHECK(ranks.rank() == rank);
      CHECK(ranks.size() == R);
      check_laws(ranks, seed);
      const auto& model = std::get<lrmoe::logical::communicator>(ranks.model());
      CHECK(ranks.bytes_sent() == model.bytes_sent());
      CHECK((ranks.bytes_sent() > 0) == (R > 1));
    });
  }
}
