#include <string>

#include <lrmoe/memory/ledger.hpp>

#include "catch.hpp"

using lrmoe::ledger;
using lrmoe::memory_category;

TEST_CASE("the ledger knows live and peak bytes in total and by category", "[ledger]") {
  ledger account;
  account.add(memory_category::workspace, 100);
  account.add(memory_category::gradients, 40);
  account.remove(memory_category::workspace, 100);
  account.add(memory_category::saved_activations, 50);
  CHECK(account.live_bytes() == 90);
  CHECK(account.peak_bytes() == 140);
  CHECK(account.live_bytes(memory_category::workspace) == 0);
  CHECK(account.peak_bytes(memory_category::workspace) == 100);
  CHECK(account.live_bytes(memory_category::saved_activations) == 50);
  CHECK(account.peak_bytes(memory_category::optimizer) == 0);
}

TEST_CASE("the ledger counts allocations and not releases", "[ledger]") {
  ledger account;
  CHECK(account.allocations() == 0);
  account.add(memory_category::workspace, 8);
  account.remove(memory_category::workspace, 8);
  account.add(memory_category::workspace, 16);
  CHECK(account.allocations() == 2);
}

TEST_CASE("a budget is checked before the allocation and a refusal changes nothing", "[ledger]") {
  ledger account;
  account.set_budget_bytes(1000);
  account.add(memory_category::expert_weights, 700);
  account.add(memory_category::workspace, 300);  // the budget itself may be used up
  std::string message;
  try {
    account.add(memory_category::saved_activations, 1);
  } catch (const lrmoe::memory_error& failure) {
    message = failure.what();
  }
  INFO(message);
  CHECK(message.find("1 bytes of saved activations") != std::string::npos);
  CHECK(message.find("budget of 1000") != std::string::npos);
  CHECK(message.find("expert weights 700") != std::string::npos);
  CHECK(message.find("raise the budget to at least 1001 bytes") != std::string::npos);
  CHECK(account.live_bytes() == 1000);
  CHECK(account.peak_bytes() == 1000);
  CHECK(account.allocations() == 2);
  CHECK(account.live_bytes(memory_category::saved_activations) == 0);
}

TEST_CASE("a budget of zero sets no limit and a negative one is refused", "[ledger]") {
  ledger account;
  account.add(memory_category::workspace, std::int64_t{1} << 60);
  CHECK(account.live_bytes() == std::int64_t{1} << 60);
  CHECK_THROWS_AS(account.set_budget_bytes(-5), lrmoe::argument_error);
  CHECK(account.budget_bytes() == 0);
}

TEST_CASE("every memory category has a name of its own", "[ledger]") {
  for (std::size_t a = 0; a < lrmoe::num_memory_categories; ++a) {
    CHECK_FALSE(name_of(static_cast<memory_category>(a)).empty());
    for (std::size_t b = 0; b < a; ++b)
      CHECK(name_of(static_cast<memory_category>(a)) != name_of(static_cast<memory_category>(b)));
  }
}
