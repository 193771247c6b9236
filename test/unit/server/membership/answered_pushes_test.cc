#include "server/membership/answered_pushes.h"

#include <string>

#include "test/support/catch.h"

namespace psd::answered_pushes_test {
namespace {

TEST_CASE("answered pushes are found by their step, and others are not") {
  AnsweredPushes<std::string> pushes;
  CHECK(pushes.find(Step{1}) == nullptr);
  pushes.add(Step{3}, "three");
  pushes.add(Step{7}, "seven");
  REQUIRE(pushes.find(Step{3}) != nullptr);
  CHECK(*pushes.find(Step{3}) == "three");
  CHECK(*pushes.find(Step{7}) == "seven");
  for (uint64_t step : {0, 2, 5, 8}) CHECK(pushes.find(Step{step}) == nullptr);
}

TEST_CASE("answered pushes: the newest are kept, and memory does not grow") {
  AnsweredPushes<uint64_t> pushes;
  constexpr uint64_t kMost = AnsweredPushes<uint64_t>::kMost, kLast = 10 * kMost;
  for (uint64_t step = 1; step <= kLast; step++) pushes.add(Step{step}, 100 + step);
  CHECK(pushes.entries().size() == kMost);
  CHECK(pushes.find(Step{kLast - kMost}) == nullptr);
  for (uint64_t step = kLast - kMost + 1; step <= kLast; step++) {
    REQUIRE(pushes.find(Step{step}) != nullptr);
    CHECK(*pushes.find(Step{step}) == 100 + step);
  }
}

}  // namespace
}  // namespace psd::answered_pushes_test
