#include "common/wire/spinner.h"

#include <kj/debug.h>

#include "test/support/catch.h"

namespace psd::wire {
namespace {

/// Counts the polls, and fulfills a promise at a given one.
class CountingPort final : public kj::EventPort {
 public:
  bool wait() override { KJ_FAIL_REQUIRE("unexpected wait"); }
  bool poll() override {
    polls++;
    if (polls == messageAt) message.fulfiller->fulfill();
    return polls == wokenAt;
  }
  void wake() const override { wakes++; }

  int polls = 0, messageAt = 0, wokenAt = 0;
  mutable int wakes = 0;
  kj::PromiseFulfillerPair<void> message = kj::newPromiseAndFulfiller<void>();
};

struct Spinning {
  kj::EventLoop loop;
  kj::WaitScope scope{loop};
  CountingPort port;
};

}  // namespace

TEST_CASE("after a message a spinner polls for the next until it arrives") {
  Spinning test;
  test.port.messageAt = 5;
  Spinner spinner(test.port, std::chrono::seconds(60));
  spinner.touch();
  spinner.touch();  // one spell, however many messages
  test.port.message.promise.wait(test.scope);
  CHECK(test.port.polls == 5);
  CHECK(test.port.wakes == 0);
  spinner.stop();
  test.scope.poll();
  CHECK(test.port.polls == 5);
}

TEST_CASE("a spinner lets the loop sleep if another thread has work for it, and wakes it") {
  Spinning test;
  test.port.wokenAt = 3;
  Spinner spinner(test.port, std::chrono::seconds(60));
  spinner.touch();
  test.scope.poll();
  CHECK(test.port.polls == 3);
  CHECK(test.port.wakes == 1);
  test.port.wokenAt = 7;
  spinner.touch();
  test.scope.poll();
  CHECK(test.port.polls == 7);
  CHECK(test.port.wakes == 2);
}

TEST_CASE("a spinner stops when its time is over, and with a time of zero does nothing") {
  Spinning test;
  Spinner spinner(test.port, std::chrono::microseconds(200)), never(test.port, std::chrono::microseconds(0));
  never.touch();
  test.scope.poll();
  CHECK(test.port.polls == 0);
  spinner.touch();
  test.scope.poll();  // returns: nothing is left to do
  const int polls = test.port.polls;
  test.scope.poll();
  CHECK(test.port.polls == polls);
}

}  // namespace psd::wire
