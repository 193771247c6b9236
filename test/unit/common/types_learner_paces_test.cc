#include "common/types/learner_paces.h"
#include "test/support/catch.h"

namespace psd::types_learner_paces_test {
namespace {

using std::chrono::milliseconds;
using TimePoint = LearnerPaces::TimePoint;

constexpr SessionId kFast{1}, kSlow{2}, kNew{3};

/// After so many milliseconds.
TimePoint at(int64_t ms) { return TimePoint() + milliseconds(ms); }

/// Milliseconds, rounded; −1: never.
int64_t due(const LearnerPaces& paces, SessionId session) {
  const auto when = paces.dueAt(session);
  return when ? std::chrono::round<milliseconds>(when->time_since_epoch()).count() : -1;
}

/// Fast took 50 steps of 10 ms, slow one 50 steps of 40 ms.
LearnerPaces measured() {
  LearnerPaces paces(50);
  paces.begins(kFast, at(0));
  paces.begins(kSlow, at(0));
  paces.pushes(kFast, 50, at(500));
  paces.pushes(kSlow, 50, at(2000));
  return paces;
}

TEST_CASE("without a measured speed everybody takes the whole period") {
  LearnerPaces paces(50);
  CHECK(paces.stepsOf(kFast) == 50);
  CHECK(due(paces, kFast) == -1);
  paces.begins(kFast, at(0));
  CHECK(due(paces, kFast) == -1);
  // A push by somebody who has not begun, or of a gradient, tells of no speed.
  paces.pushes(kSlow, 50, at(10));
  paces.pushes(kFast, 0, at(10));
  CHECK(due(paces, kFast) == -1);
  CHECK(paces.stepsOf(kFast) == 50);
}

TEST_CASE("steps are in proportion to speed, and the call comes in the midst of the last one") {
  LearnerPaces paces = measured();
  CHECK(paces.stepsOf(kFast) == 50);
  CHECK(paces.stepsOf(kSlow) == 12);  // ⌊50 / 4⌋
  CHECK(due(paces, kSlow) == -1);     // it has not begun
  paces.begins(kFast, at(3000));
  paces.begins(kSlow, at(3000));
  CHECK(due(paces, kFast) == -1);
  CHECK(due(paces, kSlow) == 3000 + 460);  // 11.5 steps of 40 ms
  // Who pushed early is known by what it did.
  paces.pushes(kSlow, 12, at(3000 + 240));
  CHECK(paces.stepsOf(kSlow) == 25);
}

TEST_CASE("who is new has the time that the fastest one takes") {
  LearnerPaces paces = measured();
  paces.begins(kNew, at(5000));
  CHECK(paces.stepsOf(kNew) == 50);
  CHECK(due(paces, kNew) == 5500);
}

TEST_CASE("a learner takes one step at least, and speeds go with who left") {
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
  // Times of nothing, or of years, give speeds that can be compared.
  paces.begins(kNew, at(0));
  paces.pushes(kNew, 10, at(0));
  paces.begins(kSlow, at(0));
  paces.pushes(kSlow, 1, at(int64_t{1000} * 3600 * 24 * 365 * 100));
  CHECK(paces.stepsOf(kSlow) == 1);
  CHECK(paces.stepsOf(kNew) == 10);
}

TEST_CASE("who asks once more in the midst of its steps has begun when it asked first") {
  LearnerPaces paces(10);
  paces.begins(kFast, at(0));
  paces.begins(kSlow, at(0));
  paces.pushes(kFast, 10, at(1000));
  paces.begins(kSlow, at(1900));  // its connection broke
  paces.pushes(kSlow, 10, at(2000));
  CHECK(paces.stepsOf(kSlow) == 5);
}

TEST_CASE("of learners that are in the midst of their steps the first push tells nothing") {
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
