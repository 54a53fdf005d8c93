// Numbers on their way to the host.
#include <vector>

#include <lrmoe/memory/download.hpp>

#include "catch.hpp"
#include "fixture.hpp"

using fixture::device;
using lrmoe::index_type;
using landing = lrmoe::buffer<lrmoe::landing_device<device>>;

TEST_CASE("values of a view arrive in its order, and the next take their place", "[memory]") {
  const fixture::space_type space;
  lrmoe::ledger account;
  landing storage(space, account, lrmoe::memory_category::token_buffers, "values");
  const fixture::array<index_type> table(std::vector<index_type>{1, 2, 3, 4, 5, 6});
  const auto found = lrmoe::download(space, table.matrix(2, 3), storage);
  space.fence("lrmoe_test::download");
  CHECK(std::vector<index_type>(found.data(), found.data() + found.size()) ==
        std::vector<index_type>{1, 2, 3, 4, 5, 6});
  CHECK(account.live_bytes() == 6 * static_cast<std::int64_t>(sizeof(index_type)));

  const fixture::array<double> numbers(std::vector<double>{0.5});
  const auto again = lrmoe::download(space, numbers.vector(), storage);
  CHECK(lrmoe::download(space, table.matrix(0, 3), storage).size() == 0);
  space.fence("lrmoe_test::download");
  CHECK(static_cast<const void*>(again.data()) == static_cast<const void*>(found.data()));
  CHECK(again(0) == 0.5);
  CHECK(account.allocations() == 1);
}

TEST_CASE("what was enqueued before a download is in it, and what comes later is not", "[memory]") {
  const fixture::space_type space;
  lrmoe::ledger account;
  landing storage(space, account, lrmoe::memory_category::token_buffers, "count");
  const fixture::array<index_type> count(std::vector<index_type>{1});
  Kokkos::deep_copy(space, count.vector(), 2);
  const auto found = lrmoe::download(space, count.vector(), storage);
  Kokkos::deep_copy(space, count.vector(), 3);
  space.fence("lrmoe_test::download");
  CHECK(found(0) == 2);
}
