#include "common/budget/byte_budget.h"

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "test/support/catch.h"
#include "test/support/event_loop.h"

namespace psd::byte_budget_test {
namespace {

using testing::TestLoop;

TEST_CASE("a budget lends what it has and gets it back") {
  auto budget = ByteBudget::make(10);
  CHECK_FALSE(budget->tryTake(11));
  auto six = budget->tryTake(6);
  REQUIRE(six);
  CHECK_FALSE(budget->tryTake(5));
  auto four = budget->tryTake(4);
  REQUIRE(four);
  CHECK(budget->used() == 10);
  six.reset();
  CHECK(budget->used() == 4);
  ByteBudget::Lease moved = std::move(*four);
  four.reset();
  CHECK(budget->used() == 4);
  moved = {};
  CHECK(budget->used() == 0);
}

TEST_CASE("a budget shared by threads is never overdrawn and ends unused") {
  auto budget = ByteBudget::make(3);
  std::atomic<uint64_t> most{0}, lent{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; i++) {
      threads.emplace_back([&] {
        for (int round = 0; round < 20'000; round++) {
          auto lease = budget->tryTake(2);
          if (!lease) continue;
          uint64_t now = lent.fetch_add(2) + 2;
          if (now > 3) most = now;
          lent.fetch_sub(2);
        }
      });
    }
  }
  CHECK(most == 0);
  CHECK(budget->used() == 0);
}

TEST_CASE("waiters of a budget are served in the order of their requests, and none overtakes") {
  TestLoop loop;
  auto budget = ByteBudget::make(10);
  auto all = budget->tryTake(10);
  auto large = budget->take(8).eagerlyEvaluate(nullptr);
  auto small = budget->take(2).eagerlyEvaluate(nullptr);
  CHECK(budget->waiting() == 2);
  auto five = budget->tryTake(0);
  CHECK_FALSE(five);  // others wait first
  all.reset();
  auto eight = loop.wait(kj::mv(large));
  auto two = loop.wait(kj::mv(small));
  CHECK(budget->waiting() == 0);
  CHECK(budget->used() == 10);
}

TEST_CASE("a small request behind a large one waits with it") {
  TestLoop loop;
  auto budget = ByteBudget::make(10);
  auto three = budget->tryTake(3);
  auto large = budget->take(8).eagerlyEvaluate(nullptr);
  auto small = budget->take(1).eagerlyEvaluate(nullptr);
  CHECK(budget->used() == 3);
  large = nullptr;  // it no longer waits and blocks none of the others
  auto one = loop.wait(kj::mv(small));
  CHECK(budget->used() == 4);
  CHECK(budget->waiting() == 0);
}

TEST_CASE("a request larger than the budget gets all of it") {
  TestLoop loop;
  auto budget = ByteBudget::make(10);
  auto one = budget->tryTake(1);
  auto most = budget->take(1'000).eagerlyEvaluate(nullptr);
  CHECK(budget->waiting() == 1);
  one.reset();
  auto lease = loop.wait(kj::mv(most));
  CHECK(budget->used() == 10);
  lease = {};
  CHECK(budget->used() == 0);
}

TEST_CASE("a raised budget serves waiters, a lowered one reclaims nothing") {
  TestLoop loop;
  auto budget = ByteBudget::make(4);
  auto four = budget->tryTake(4);
  auto more = budget->take(4).eagerlyEvaluate(nullptr);
  budget->setBytesMax(8);
  auto lease = loop.wait(kj::mv(more));
  budget->setBytesMax(2);
  CHECK(budget->used() == 8);
  CHECK_FALSE(budget->tryTake(1));
}

TEST_CASE("waiters on several threads are all served") {
  auto budget = ByteBudget::make(3);
  std::atomic<uint64_t> turns{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; i++) {
      threads.emplace_back([&] {
        TestLoop loop;
        for (int round = 0; round < 2'000; round++) {
          auto lease = budget->tryTake(2);
          if (!lease) lease = loop.wait(budget->take(2));
          turns++;
        }
      });
    }
  }
  CHECK(turns == 8'000);
  CHECK(budget->used() == 0);
  CHECK(budget->waiting() == 0);
}

}  // namespace
}  // namespace psd::byte_budget_test
