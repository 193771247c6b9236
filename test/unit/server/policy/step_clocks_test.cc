#include "server/policy/step_clocks.h"

#include "test/support/catch.h"

namespace psd::step_clocks_test {
namespace {

using Released = StepClocks::Released;

constexpr SessionId kA{1}, kB{2}, kC{3};

TimePoint at(int ms) { return TimePoint{} + std::chrono::milliseconds(ms); }

/// The clocks of joined trainers.
StepClocks clocksOf(uint64_t bound, const std::vector<SessionId>& trainers) {
  StepClocks made(bound);
  for (SessionId session : trainers) made.join(session);
  return made;
}

/// Steps that release no trainer.
void step(StepClocks& clocks, SessionId session, int times) {
  for (int i = 0; i < times; i++) REQUIRE(clocks.advance(session).empty());
}

TEST_CASE("a trainer reads until it is more than the bound ahead of the slowest") {
  StepClocks clocks = clocksOf(2, {kA, kB});
  for (int i = 0; i < 2; i++) {
    step(clocks, kA, 1);
    CHECK(clocks.read(kA, at(0)));
  }
  step(clocks, kA, 1);
  CHECK_FALSE(clocks.read(kA, at(1)));
  CHECK(clocks.read(kB, at(1)));
  CHECK(clocks.advance(kB) == Released{kA});
  CHECK(clocks.read(kA, at(2)));
  CHECK(clocks.waits().empty());
}

TEST_CASE("bound 0 is lock-step") {
  StepClocks clocks = clocksOf(0, {kA, kB, kC});
  step(clocks, kA, 1);
  CHECK_FALSE(clocks.read(kA, at(0)));
  step(clocks, kC, 1);
  CHECK_FALSE(clocks.read(kC, at(0)));
  CHECK(clocks.advance(kB) == Released{kA, kC});
  CHECK(clocks.slowest() == 1);
}

TEST_CASE("a departed trainer holds none back") {
  StepClocks clocks = clocksOf(1, {kA, kB, kC});
  step(clocks, kA, 2);
  CHECK_FALSE(clocks.read(kA, at(0)));
  CHECK(clocks.leave(kB).empty());  // kC is as slow
  CHECK(clocks.leave(kC) == Released{kA});
  CHECK(clocks.leave(kC).empty());
  CHECK(clocks.slowest() == 2);
  CHECK(clocks.present() == 1);
}

TEST_CASE("a waiting trainer that leaves is not released later") {
  StepClocks clocks = clocksOf(0, {kA, kB});
  step(clocks, kA, 1);
  CHECK_FALSE(clocks.read(kA, at(0)));
  CHECK(clocks.leave(kA).empty());
  CHECK(clocks.waits().empty());
  CHECK(clocks.advance(kB).empty());
}

TEST_CASE("a trainer joins at the slowest clock") {
  StepClocks clocks = clocksOf(1, {kA, kB});
  step(clocks, kA, 2);
  step(clocks, kB, 1);
  clocks.join(kC);
  CHECK(clocks.clock(kC) == 1);
  CHECK(clocks.read(kA, at(0)));
  clocks.join(kC);  // a second time changes nothing
  CHECK(clocks.present() == 3);
}

TEST_CASE("after all trainers have left the clocks continue from the slowest") {
  StepClocks clocks = clocksOf(5, {kA, kB});
  step(clocks, kA, 4);
  step(clocks, kB, 2);
  clocks.leave(kA);
  clocks.leave(kB);
  CHECK(clocks.slowest() == 2);
  clocks.join(kC);
  CHECK(clocks.clock(kC) == 2);
}

TEST_CASE("an observer reads at any time and has no clock") {
  StepClocks clocks = clocksOf(0, {kA});
  CHECK(clocks.read(kB, at(0)));
  CHECK(clocks.advance(kB).empty());
  CHECK_FALSE(clocks.clock(kB));
}

TEST_CASE("a wait reports for whom, since when and how far ahead") {
  StepClocks clocks = clocksOf(1, {kA, kB, kC});
  step(clocks, kA, 3);
  CHECK_FALSE(clocks.read(kA, at(10)));
  CHECK_FALSE(clocks.read(kA, at(20)));  // a repeated request does not restart the wait
  auto waits = clocks.waits();
  REQUIRE(waits.size() == 1);
  CHECK(waits[0].session == kA);
  CHECK(waits[0].since == at(10));
  CHECK(waits[0].ahead == 3);
  CHECK(waits[0].slowest == Released{kB, kC});
  step(clocks, kB, 1);
  waits = clocks.waits();
  REQUIRE(waits.size() == 1);
  CHECK(waits[0].slowest == Released{kC});
}

}  // namespace
}  // namespace psd::step_clocks_test
