#include "common/types/learner_paces.h"

#include "test/support/catch.h"

namespace psd::types_learner_paces_test {
namespace {

using std::chrono::milliseconds;
using TimePoint = LearnerPaces::TimePoint;

constexpr SessionId kFast{1}, kSlow{2}, kNew{3};

/// The time after `ms` milliseconds.
TimePoint at(int64_t ms) { return TimePoint() + milliseconds(ms); }

/// Milliseconds, rounded; −1: never.
int64_t due(const LearnerPaces& paces, SessionId session) {
  const auto when = paces.dueAt(session);
  return when ? std::chrono::round<milliseconds>(when->time_since_epoch()).count() : -1;
}

/// kFast took 50 steps of 10 ms, kSlow 50 steps of 40 ms.
LearnerPaces measured() {
  LearnerPaces paces(50);
  paces.begins(kFast, at(0));
  paces.begins(kSlow, at(0));
  paces.pushes(kFast, 50, at(500));
  paces.pushes(kSlow, 50, at(2000));
  return paces;
}

TEST_CASE("without a measured speed every learner takes the whole period") {
  LearnerPaces paces(50);
  CHECK(paces.stepsOf(kFast) == 50);
  CHECK(due(paces, kFast) == -1);
  paces.begins(kFast, at(0));
  CHECK(due(paces, kFast) == -1);
  // A push by a learner that has not started, or of a gradient, gives no speed.
  paces.pushes(kSlow, 50, at(10));
  paces.pushes(kFast, 0, at(10));
  CHECK(due(paces, kFast) == -1);
  CHECK(paces.stepsOf(kFast) == 50);
}

TEST_CASE("steps are proportional to speed, and the call comes in the middle of the last one") {
  LearnerPaces paces = measured();
  CHECK(paces.stepsOf(kFast) == 50);
  CHECK(paces.stepsOf(kSlow) == 12);  // ⌊50 / 4⌋
  CHECK(due(paces, kSlow) == -1);     // it has not started
  paces.begins(kFast, at(3000));
  paces.begins(kSlow, at(3000));
  CHECK(due(paces, kFast) == -1);
  CHECK(due(paces, kSlow) == 3000 + 460);  // 11.5 steps of 40 ms
  // A learner that pushed early is timed by the steps it did.
  paces.pushes(kSlow, 12, at(3000 + 240));
  CHECK(paces.stepsOf(kSlow) == 25);
}

TEST_CASE("a learner without a measured speed gets the time that the fastest one takes") {
  LearnerPaces paces = measured();
  paces.begins(kNew, at(5000));
  CHECK(paces.stepsOf(kNew) == 50);
  CHECK(due(paces, kNew) == 5500);
}

TEST_CASE("a learner takes at least one step, and its speed is dropped when it leaves") {
  LearnerPaces paces(10);
  paces.begins(kFast, at(0));
  paces.begins(kSlow, at(0));
  paces.pushes(kFast, 10, at(10));
  paces.pushes(kSlow, 1, at(1000));
  CHECK(paces.stepsOf(kSlow) == 1);
  paces.begins(kSlow, at(2000));
  CHECK(due(paces, kSlow) == 2500);
  paces.leave(kFast);
  CHECK(paces.stepsOf(kSlow) == 10);
  CHECK(due(paces, kSlow) == -1);
  // Times of zero, or of years, give speeds that can be compared.
  paces.begins(kNew, at(0));
  paces.pushes(kNew, 10, at(0));
  paces.begins(kSlow, at(0));
  paces.pushes(kSlow, 1, at(int64_t{1000} * 3600 * 24 * 365 * 100));
  CHECK(paces.stepsOf(kSlow) == 1);
  CHECK(paces.stepsOf(kNew) == 10);
}

TEST_CASE("a learner that repeats its request in the middle of its steps keeps its first start time") {
  LearnerPaces paces(10);
  paces.begins(kFast, at(0));
  paces.begins(kSlow, at(0));
  paces.pushes(kFast, 10, at(1000));
  paces.begins(kSlow, at(1900));  // its connection broke
  paces.pushes(kSlow, 10, at(2000));
  CHECK(paces.stepsOf(kSlow) == 5);
}

TEST_CASE("if learners are in the middle of their steps at the start, their first push gives no speed") {
  LearnerPaces paces(10, true);
  paces.begins(kFast, at(0));
  paces.begins(kSlow, at(0));
  paces.pushes(kSlow, 10, at(1));
  paces.pushes(kFast, 10, at(500));
  CHECK(paces.stepsOf(kFast) == 10);
  CHECK(due(paces, kSlow) == -1);
  paces.begins(kSlow, at(1000));
  paces.begins(kFast, at(1000));
  paces.pushes(kFast, 10, at(1500));
  paces.pushes(kSlow, 10, at(2000));
  CHECK(paces.stepsOf(kSlow) == 5);
}

}  // namespace
}  // namespace psd::types_learner_paces_test
