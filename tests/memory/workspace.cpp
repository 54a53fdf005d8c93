// Buffers and the workspace that names them.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <lrmoe/memory/workspace.hpp>

#include "catch.hpp"

namespace {

using space_type = Kokkos::DefaultHostExecutionSpace;
using device = Kokkos::Device<space_type, Kokkos::HostSpace>;
using lrmoe::memory_category;

}  // namespace

TEST_CASE("a buffer allocates when it grows and never when it is reused", "[memory]") {
  const space_type space;
  lrmoe::ledger account;
  {
    lrmoe::buffer<device> rows(space, account, memory_category::token_buffers, "rows");
    CHECK(account.allocations() == 0);
    const auto large = rows.matrix<float>(10, 3);
    CHECK(large.extent(0) == 10);
    CHECK(large.extent(1) == 3);
    CHECK(account.live_bytes(memory_category::token_buffers) == 120);
    const auto small = rows.vector<double>(5);
    CHECK(static_cast<void*>(small.data()) == static_cast<void*>(large.data()));
    CHECK(rows.size_bytes() == 120);
    CHECK(account.allocations() == 1);
    rows.vector<double>(16);
    CHECK(account.allocations() == 2);
    CHECK(account.live_bytes() == 128);
    // Growing frees the old storage first.
    CHECK(account.peak_bytes() == 128);
  }
  CHECK(account.live_bytes() == 0);
}

TEST_CASE("an empty request gives an empty view and allocates nothing", "[memory]") {
  const space_type space;
  lrmoe::ledger account;
  lrmoe::buffer<device> rows(space, account, memory_category::workspace, "rows");
  CHECK(rows.vector<float>(0).size() == 0);
  CHECK(rows.matrix<float>(0, 7).extent(1) == 7);
  CHECK(account.allocations() == 0);
}

TEST_CASE("a buffer over the budget throws before it allocates and stays usable", "[memory]") {
  const space_type space;
  lrmoe::ledger account;
  account.set_budget_bytes(64);
  lrmoe::buffer<device> rows(space, account, memory_category::workspace, "rows");
  CHECK_THROWS_AS(rows.vector<double>(9), lrmoe::memory_error);
  CHECK(account.live_bytes() == 0);
  const auto fits = rows.vector<double>(8);
  fits(7) = 3.0;
  CHECK(fits(7) == 3.0);
  CHECK(account.live_bytes() == 64);
}

TEST_CASE("a request that no device can hold is a memory error and books nothing", "[memory]") {
  const space_type space;
  lrmoe::ledger account;
  lrmoe::buffer<device> rows(space, account, memory_category::workspace, "rows");
  CHECK_THROWS_AS(rows.vector<unsigned char>(std::int64_t{1} << 50), lrmoe::memory_error);
  CHECK(account.live_bytes() == 0);
}

TEST_CASE("a moved buffer keeps its storage and its account", "[memory]") {
  const space_type space;
  lrmoe::ledger account;
  {
    lrmoe::buffer<device> first(space, account, memory_category::workspace, "rows");
    const auto view = first.vector<float>(4);
    view(0) = 2.0f;
    lrmoe::buffer<device> second(std::move(first));
    CHECK(second.vector<float>(4).data() == view.data());
    CHECK(account.live_bytes() == 16);
  }
  CHECK(account.live_bytes() == 0);
}

TEST_CASE("a buffer waits for its space before memory is freed, and never while it is reused",
          "[memory]") {
  static int waits = 0;
  Kokkos::Tools::Experimental::set_begin_fence_callback(
      [](const char* name, std::uint32_t, std::uint64_t*) {
        waits += std::string(name).find("lrmoe::buffer") != std::string::npos ? 1 : 0;
      });
  std::vector<int> seen;
  {
    const space_type space;
    lrmoe::ledger account;
    lrmoe::buffer<device> rows(space, account, memory_category::workspace, "rows");
    for (const std::int64_t n : {4, 4, 2, 9, 9}) {
      rows.vector<float>(n);
      seen.push_back(waits);
    }
    const lrmoe::buffer<device> owner(std::move(rows));
  }
  Kokkos::Tools::Experimental::set_begin_fence_callback(nullptr);
  CHECK(seen == std::vector<int>{0, 0, 0, 1, 1});
  CHECK(waits == 2);
}

TEST_CASE("filling a buffer with 0xff poisons it: floating types are NaN and indices -1",
          "[memory]") {
  const space_type space;
  lrmoe::ledger account;
  lrmoe::buffer<device> rows(space, account, memory_category::workspace, "rows");
  const auto floats = rows.vector<float>(4);
  rows.fill_bytes(space, 0xff);
  space.fence("lrmoe_test::poison");
  CHECK(std::isnan(floats(3)));
  CHECK(std::isnan(rows.vector<double>(2)(1)));
  CHECK(rows.vector<lrmoe::index_type>(4)(2) == -1);
  CHECK(std::isnan(static_cast<float>(rows.vector<lrmoe::bfloat16>(8)(7))));
}

TEST_CASE("a workspace returns the same buffer for the same name", "[memory]") {
  const space_type space;
  lrmoe::ledger account;
  lrmoe::workspace<device> scratch(space, account);
  lrmoe::buffer<device>& first = scratch["first"];
  const auto view = first.vector<float>(8);
  // References stay valid when other buffers are made.
  for (int i = 0; i < 50; ++i) scratch["other" + std::to_string(i)].vector<float>(1);
  CHECK(&scratch["first"] == &first);
  CHECK(scratch["first"].vector<float>(8).data() == view.data());
  CHECK(scratch.size_bytes() == 8 * 4 + 50 * 4);
  CHECK(account.live_bytes(memory_category::workspace) == scratch.size_bytes());
}
