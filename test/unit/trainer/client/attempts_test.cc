#include "trainer/client/attempts.h"

#include "test/support/catch.h"

namespace psd::client_attempts_test {

using namespace std::chrono_literals;

TEST_CASE("a timeout of 0 allows one attempt, of the usual length") {
  const ConnectTimeout once(0ms), given(30s);
  CHECK(once.time == kAttemptTimeout);
  CHECK_FALSE(once.retries);
  CHECK(given.time == 30s);
  CHECK(given.retries);
}

TEST_CASE("attempts to reach an absent peer are made at growing intervals, up to a bound") {
  PatientAttempts attempts(1);
  CHECK(attempts.timeout() == 200ms);
  CHECK(attempts.failed() <= 20ms);
  CHECK(attempts.timeout() == 400ms);
  for (int i = 0; i < 20; i++) attempts.failed();
  CHECK(attempts.timeout() == 1000ms);
  CHECK(attempts.failed() >= 250ms);
  CHECK(attempts.failed() <= 500ms);
}

TEST_CASE("a peer that was there and is gone is retried as soon as at first") {
  PatientAttempts attempts(1);
  for (int i = 0; i < 20; i++) attempts.failed();
  CHECK(attempts.broke() <= 20ms);
  CHECK(attempts.timeout() == 200ms);
  CHECK(attempts.failed() <= 40ms);
}

}  // namespace psd::client_attempts_test
