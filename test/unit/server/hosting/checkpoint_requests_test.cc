#include "server/hosting/checkpoint_requests.h"

#include <deque>
#include <optional>

#include <kj/debug.h>

#include "test/support/catch.h"
#include "test/support/event_loop.h"

namespace psd::checkpoint_requests_test {
namespace {

using testing::TestLoop;
using Outcome = CheckpointRequests::Outcome;

/// Checkpoints that end when the test requests it.
struct Taken {
  std::deque<kj::Own<kj::PromiseFulfiller<Outcome>>> underWay;
  size_t begun = 0;

  kj::Promise<Outcome> take() {
    auto each = kj::newPromiseAndFulfiller<Outcome>();
    underWay.push_back(kj::mv(each.fulfiller));
    begun++;
    return kj::mv(each.promise);
  }
  void end(Outcome outcome) {
    underWay.front()->fulfill(std::move(outcome));
    underWay.pop_front();
  }
};

TEST_CASE("requests for a checkpoint during one are served by one further checkpoint") {
  TestLoop loop;
  Taken taken;
  CheckpointRequests asked([&taken] { return taken.take(); });
  auto first = asked.ask();
  REQUIRE(loop.until([&taken] { return taken.begun == 1; }));
  auto second = asked.ask(), third = asked.ask();
  CHECK(taken.begun == 1);
  taken.end(std::string("one"));
  CHECK(loop.wait(kj::mv(first)).value() == "one");
  REQUIRE(loop.until([&taken] { return taken.begun == 2; }));
  auto fourth = asked.ask();
  taken.end(std::string("two"));
  CHECK(loop.wait(kj::mv(second)).value() == "two");
  CHECK(loop.wait(kj::mv(third)).value() == "two");
  REQUIRE(loop.until([&taken] { return taken.begun == 3; }));
  taken.end(std::string("three"));
  CHECK(loop.wait(kj::mv(fourth)).value() == "three");
  CHECK(taken.begun == 3);
}

TEST_CASE("a failed checkpoint fails only the requests that it serves") {
  TestLoop loop;
  Taken taken;
  CheckpointRequests asked([&taken] { return taken.take(); });
  auto first = asked.ask(), second = asked.ask();
  REQUIRE(loop.until([&taken] { return taken.begun == 1; }));
  taken.end({ErrorCode::unavailable, "the disk is full"});
  CHECK(loop.wait(kj::mv(first)).message() == "the disk is full");
  REQUIRE(loop.until([&taken] { return taken.begun == 2; }));
  taken.end(std::string("two"));
  CHECK(loop.wait(kj::mv(second)).value() == "two");
}

TEST_CASE("a checkpoint whose caller has gone is taken, and the others are not delayed") {
  TestLoop loop;
  Taken taken;
  CheckpointRequests asked([&taken] { return taken.take(); });
  std::optional<kj::Promise<Outcome>> gone = asked.ask();
  auto waits = asked.ask();
  gone.reset();
  REQUIRE(loop.until([&taken] { return taken.begun == 1; }));
  taken.end(std::string("one"));
  REQUIRE(loop.until([&taken] { return taken.begun == 2; }));
  taken.end(std::string("two"));
  CHECK(loop.wait(kj::mv(waits)).value() == "two");
}

TEST_CASE("a system without a thread for a checkpoint is an error") {
  TestLoop loop;
  CheckpointRequests asked([]() -> kj::Promise<Outcome> { return KJ_EXCEPTION(OVERLOADED, "no thread"); });
  CHECK(loop.wait(asked.ask()).error().code == ErrorCode::internal);
  CHECK(loop.wait(asked.ask()).error().code == ErrorCode::internal);
}

}  // namespace
}  // namespace psd::checkpoint_requests_test
