#include "trainer/client/fault_streak.h"

#include "test/support/catch.h"

namespace psd::client_fault_row_test {

using std::chrono::milliseconds;
using namespace std::chrono_literals;

struct Row {
  FaultStreak::Clock::time_point at(milliseconds ms) const { return begin + ms; }

  const FaultStreak::Clock::time_point begin = FaultStreak::Clock::now();
  FaultStreak faults{1};
};

TEST_CASE_METHOD(Row, "connections that break before they were of use are one fault with pauses") {
  CHECK(faults.broke(at(0ms)) == at(0ms));
  CHECK_FALSE(faults.again());
  CHECK(faults.pause() == 0ms);
  for (const milliseconds broke : {300ms, 600ms, 900ms, 1200ms}) {
    faults.back(at(broke - 200ms));
    CHECK(faults.broke(at(broke)) == at(0ms));
    CHECK(faults.again());
    CHECK(faults.pause() > 0ms);
  }
}

TEST_CASE_METHOD(Row, "a connection over which a call was answered resets the fault") {
  faults.broke(at(0ms));
  faults.back(at(100ms));
  faults.answered();
  CHECK(faults.broke(at(200ms)) == at(200ms));
  CHECK_FALSE(faults.again());
  CHECK(faults.pause() == 0ms);
}

TEST_CASE_METHOD(Row, "a connection that stood for long resets the fault, though it waited all the time") {
  faults.broke(at(0ms));
  faults.back(at(100ms));
  CHECK(faults.broke(at(1100ms)) == at(1100ms));
  CHECK_FALSE(faults.again());
}

}  // namespace psd::client_fault_row_test
