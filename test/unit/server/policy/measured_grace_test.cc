#include "server/policy/measured_grace.h"

#include "test/support/catch.h"

namespace psd::measured_grace_test {
namespace {

using std::chrono::milliseconds;
using TimePoint = MeasuredGrace::TimePoint;

constexpr SessionId kA{1}, kB{2};

TimePoint at(int64_t ms) { return TimePoint{} + milliseconds(ms); }

/// The trainer is missing from `ms` on, and contributes `took` ms later.
void contributesAfter(MeasuredGrace& grace, int64_t ms, int64_t took) {
  grace.missing(kA, at(ms));
  grace.gradientArrived(kA, at(ms + took));
}

int64_t msOf(const MeasuredGrace& grace, SessionId session = kA) {
  return std::chrono::round<milliseconds>(grace.of(session)).count();
}

TEST_CASE("a trainer is granted the maximum at first, then what it took, with a margin") {
  MeasuredGrace grace(milliseconds(2000));
  CHECK(msOf(grace) == 2000);
  grace.gradientArrived(kA, at(5));  // in time
  CHECK(msOf(grace) == 2000);
  contributesAfter(grace, 100, 40);
  CHECK(msOf(grace) == 40 + 4 * 20);
  contributesAfter(grace, 200, 80);
  // Deviation 20 + (40 − 20) / 4, mean 40 + 40 / 8.
  CHECK(msOf(grace) == 45 + 4 * 25);
  // A trainer that was never missing is granted what the slowest other takes.
  CHECK(msOf(grace, kB) == 45 + 4 * 25);
  grace.missing(kB, at(300));
  grace.gradientArrived(kB, at(310));
  CHECK(msOf(grace, kB) == 10 + 4 * 5);
  CHECK(msOf(grace, SessionId{3}) == 45 + 4 * 25);
}

TEST_CASE("the margin vanishes for a trainer that always takes equally long") {
  MeasuredGrace grace(milliseconds(2000));
  for (int64_t round = 0; round < 50; round++) contributesAfter(grace, 1000 * round, 100);
  CHECK(msOf(grace) == 100);
}

TEST_CASE("it counts from the first round that had its quorum without the trainer, up to the maximum") {
  MeasuredGrace grace(milliseconds(500));
  grace.missing(kA, at(0));
  grace.missing(kA, at(90));  // of the next round
  grace.gradientArrived(kA, at(100));
  CHECK(msOf(grace) == 300);
  contributesAfter(grace, 1000, 60'000);  // stalled: counts as 500
  CHECK(msOf(grace) == 500);
  for (int64_t round = 0; round < 20; round++) contributesAfter(grace, 100'000 + 1000 * round, 100);
  CHECK(msOf(grace) < 200);
}

TEST_CASE("the record of a departed trainer is dropped") {
  MeasuredGrace grace(milliseconds(500));
  contributesAfter(grace, 0, 10);
  grace.missing(kA, at(100));
  grace.forget(kA);
  grace.gradientArrived(kA, at(110));
  CHECK(msOf(grace) == 500);
}

}  // namespace
}  // namespace psd::measured_grace_test
