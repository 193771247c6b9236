#include <thread>
#include <vector>

#include "common/wire/byte_budget.h"
#include "test/unit/common/wire_streams.h"

namespace psd {
namespace {

using namespace testing;
using wire::ByteBudget;

constexpr size_t kLargeWords = wire::kBudgetedBytesMin / sizeof(capnp::word);

Segments largeMessage(uint64_t seed) {
  Random random(seed);
  Segments segments;
  segments.push_back(randomWords(random, kLargeWords));
  return segments;
}

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

TEST_CASE("a large message waits for the budget, without a deadline, and then comes whole") {
  auto budget = ByteBudget::make(wire::kBudgetedBytesMin);
  int waits = 0;
  wire::MessageStreamOptions options;
  options.budget = budget;
  options.onBudgetSpent = [&] { waits++; };
  options.readTimeout = 1 * kj::SECONDS;
  PipedStream near(std::move(options));
  auto held = budget->tryTake(1);
  const Segments segments = largeMessage(1);
  auto sent = near.send(framed(segments));
  auto reading = near.read();
  for (int second = 1; second <= 5; second++) {
    near.timer.advanceTo(kj::origin<kj::TimePoint>() + second * kj::SECONDS);
    REQUIRE_FALSE(reading.poll(near.scope));
  }
  CHECK(waits == 1);
  held.reset();
  near.timer.advanceTo(kj::origin<kj::TimePoint>() + 6 * kj::SECONDS);
  auto message = near.got(kj::mv(reading));
  CHECK(hasSegments(*message, segments));
  CHECK(budget->used() == wire::kBudgetedBytesMin);
  message = nullptr;
  CHECK(budget->used() == 0);
}

TEST_CASE("a small message needs no budget") {
  auto budget = ByteBudget::make(1);
  wire::MessageStreamOptions options;
  options.budget = budget;
  PipedStream near(std::move(options));
  Segments segments;
  segments.push_back(kj::heapArray<capnp::word>(4));
  auto sent = near.send(framed(segments));
  auto message = near.got(near.read());
  CHECK(budget->used() == 0);
}

TEST_CASE("a connection that ends while it waits or holds gives everything back") {
  auto budget = ByteBudget::make(wire::kBudgetedBytesMin);
  {
    wire::MessageStreamOptions options;
    options.budget = budget;
    PipedStream near(std::move(options));
    auto bytes = framed(largeMessage(2));
    bytes.resize(bytes.size() / 2);
    auto sent = near.send(bytes);
    auto reading = near.read();
    REQUIRE_FALSE(reading.poll(near.scope));
    CHECK(budget->used() == wire::kBudgetedBytesMin);
  }
  CHECK(budget->used() == 0);
}

}  // namespace
}  // namespace psd
