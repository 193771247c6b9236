#include <vector>

#include "common/budget/byte_budget.h"
#include "test/unit/common/wire/wire_streams.h"

namespace psd::wire_budget_test {
namespace {

using namespace testing;

// Large enough to be counted, and smaller than huge pages.
constexpr uint64_t kLargeBytes = 2 * wire::kUnbudgetedBytes;
constexpr size_t kLargeWords = kLargeBytes / sizeof(capnp::word);

Segments largeMessage(uint64_t seed) {
  Random random(seed);
  Segments segments;
  segments.push_back(randomWords(random, kLargeWords));
  return segments;
}

TEST_CASE("a large message waits for the budget, without a deadline, and then arrives whole") {
  auto budget = ByteBudget::make(kLargeBytes);
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
  CHECK(budget->used() == kLargeBytes);
  message = nullptr;
  CHECK(budget->used() == 0);
}

TEST_CASE("a message of which only the header has arrived takes nothing of the budget") {
  auto budget = ByteBudget::make(kLargeBytes);
  wire::MessageStreamOptions options;
  options.budget = budget;
  PipedStream near(std::move(options));
  const auto bytes = framed(largeMessage(3));
  // Less than that of content: the segment table comes first.
  auto sent = near.send(std::vector<kj::byte>(bytes.begin(), bytes.begin() + wire::kUnbudgetedBytes));
  auto reading = near.read();
  REQUIRE_FALSE(reading.poll(near.scope));
  CHECK(budget->used() == 0);
}

TEST_CASE("small messages count if a connection holds many") {
  auto budget = ByteBudget::make(kLargeBytes);
  wire::MessageStreamOptions options;
  options.budget = budget;
  PipedStream near(std::move(options));
  Segments segments;
  segments.push_back(kj::heapArray<capnp::word>(512));
  const uint64_t bytes = 512 * sizeof(capnp::word), free = wire::kUnbudgetedBytes / bytes;
  std::vector<kj::Own<capnp::MessageReader>> held;
  for (uint64_t i = 0; i < free + 3; i++) {
    auto sent = near.send(framed(segments));
    held.push_back(near.got(near.read()));
    CHECK(budget->used() == (i < free ? 0 : (i - free + 1) * bytes));
  }
  held.clear();
  CHECK(budget->used() == 0);
}

TEST_CASE("a few small messages need no budget") {
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

TEST_CASE("a connection that ends while it waits or holds releases everything") {
  auto budget = ByteBudget::make(kLargeBytes);
  {
    wire::MessageStreamOptions options;
    options.budget = budget;
    PipedStream near(std::move(options));
    auto bytes = framed(largeMessage(2));
    bytes.resize(bytes.size() / 4 * 3);
    auto sent = near.send(bytes);
    auto reading = near.read();
    REQUIRE_FALSE(reading.poll(near.scope));
    CHECK(budget->used() == kLargeBytes);
  }
  CHECK(budget->used() == 0);
}

}  // namespace
}  // namespace psd::wire_budget_test
