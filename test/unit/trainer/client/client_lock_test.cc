#include "trainer/client/client_lock.h"

#include <optional>

#include "test/support/catch.h"
#include "trainer/client/notices.h"

namespace psd::client_lock_test {
namespace {

TEST_CASE("ClientLock: calls from within a callback are refused, of that client only") {
  std::optional<Status> called, ofAnother, reads;
  ClientLock* own = nullptr;
  ClientLock other;
  const auto call = [&] {
    called = ClientLock::Hold(*own).status();
    ofAnother = ClientLock::Hold(other).status();
    reads = ClientLock::Hold(*own, ClientLock::Turn::any).status();
    return true;
  };
  ClientLock lock(call);
  own = &lock;
  Notices notices([&](const ClientEvent&) { call(); }, lock);
  {
    const ClientLock::Hold hold(lock);
    SECTION("keepWaiting") { CHECK(lock.pause(std::chrono::milliseconds(1))); }
    SECTION("an event") { notices.tell(ClientEvent::What::back, "back"); }
    SECTION("a line that was queued") {
      notices.queueLine("slow");
      notices.reportQueued();
    }
    SECTION("a long wait") {
      lock.outside([&] { notices.reportWait("parameters"); });
    }
  }
  REQUIRE(called);
  REQUIRE_FALSE(called->ok());
  CHECK(called->error().code == ErrorCode::invalidArgument);
  CHECK(ofAnother->ok());
  CHECK(reads->ok());
  CHECK(ClientLock::Hold(lock).status().ok());
}

}  // namespace
}  // namespace psd::client_lock_test
