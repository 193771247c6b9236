#include "trainer/lab/step_times.h"

#include <cmath>
#include <string>

#include "test/support/catch.h"

namespace psd::step_times_test {
namespace {

StepTimes scheduleOf(const std::string& text, uint32_t trainers = 3) {
  auto schedule = StepTimes::parse(text, trainers);
  PSD_REQUIRE_OK(schedule);
  return *std::move(schedule);
}

TEST_CASE("in round-robin order every step takes equally long") {
  StepTimes schedule = scheduleOf("round_robin");
  for (uint32_t rank : {2u, 0u, 0u, 1u}) CHECK(schedule.next(Rank{rank}) == 1);
  CHECK(schedule.spec() == "round_robin");
}

TEST_CASE("times of a rank depend on the seed alone, not on other ranks") {
  StepTimes one = scheduleOf("seed:7"), other = scheduleOf("seed:7", 9), third = scheduleOf("seed:8");
  double sum = 0;
  constexpr int kDraws = 20'000;
  for (int i = 0; i < kDraws; i++) {
    const double time = one.next(Rank{1});
    REQUIRE(time >= 0);
    sum += time;
    static_cast<void>(other.next(Rank{0}));
    REQUIRE(other.next(Rank{1}) == time);
    if (i == 0) CHECK(third.next(Rank{1}) != time);
  }
  CHECK(std::abs(sum / kDraws - 1) < 0.03);  // four standard deviations
}

TEST_CASE("the last rank is the straggler") {
  StepTimes even = scheduleOf("straggler:factor=4"), drawn = scheduleOf("straggler:factor=4,seed=7");
  StepTimes alike = scheduleOf("seed:7");
  CHECK(even.next(Rank{0}) == 1);
  CHECK(even.next(Rank{2}) == 4);
  CHECK(drawn.next(Rank{0}) == alike.next(Rank{0}));
  CHECK(drawn.next(Rank{2}) == 4 * alike.next(Rank{2}));
  CHECK(scheduleOf("straggler").spec() == "straggler:factor=5,seed=0");
}

}  // namespace
}  // namespace psd::step_times_test
