#include <algorithm>
#include <map>
#include <vector>

#include "common/plan/shard_plan.h"
#include "test/support/catch.h"
#include "test/support/random.h"
#include "trainer/client/transport/slice_queue.h"

namespace psd::client_window_test {
namespace {

using testing::Random;

/// A daemon that answers on request. The event loop has no system behind it: a wait for what never happens
/// fails immediately. Owned by one thread.
struct ManualDaemon {
  explicit ManualDaemon(size_t slices) : slices(cutIntoSlices(ShardPlan::make(slices * 16, 1), 16)) {}

  kj::Promise<Status> begin(uint32_t window) {
    return sendInWindow(slices, window, [this](const Slice& slice) {
      const size_t index = slice.offset / 16;
      sent.push_back(index);
      auto answer = kj::newPromiseAndFulfiller<Status>();
      open[index] = kj::mv(answer.fulfiller);
      mostOpen = std::max(mostOpen, open.size());
      return kj::mv(answer.promise);
    });
  }
  void answer(size_t index, Status status = {}) {
    open.at(index)->fulfill(kj::mv(status));
    open.erase(index);
    settle();
  }
  void settle() {
    kj::evalLast([] {}).wait(scope);
  }

  kj::EventLoop loop;
  kj::WaitScope scope{loop};
  std::vector<Slice> slices;
  std::vector<size_t> sent;
  std::map<size_t, kj::Own<kj::PromiseFulfiller<Status>>> open;
  size_t mostOpen = 0;
};

using Indexes = std::vector<size_t>;

TEST_CASE("slices are sent in order, each as a place becomes free") {
  ManualDaemon daemon(5);
  auto done = daemon.begin(2);
  daemon.settle();
  CHECK(daemon.sent == Indexes{0, 1});
  daemon.answer(1);
  CHECK(daemon.sent == Indexes{0, 1, 2});
  daemon.answer(2);
  daemon.answer(0);
  CHECK(daemon.sent == Indexes{0, 1, 2, 3, 4});
  daemon.answer(3);
  CHECK_FALSE(done.poll(daemon.scope));
  daemon.answer(4);
  PSD_REQUIRE_OK(done.wait(daemon.scope));
}

TEST_CASE("with nothing to send it is done immediately") {
  ManualDaemon daemon(1);
  daemon.slices.clear();
  PSD_REQUIRE_OK(daemon.begin(4).wait(daemon.scope));
  CHECK(daemon.sent.empty());
}

TEST_CASE("a window of 0 sends one by one") {
  ManualDaemon daemon(3);
  auto done = daemon.begin(0);
  for (size_t i = 0; i < 3; i++) {
    daemon.settle();
    CHECK(daemon.open.size() == 1);
    daemon.answer(i);
  }
  PSD_REQUIRE_OK(done.wait(daemon.scope));
  CHECK(daemon.mostOpen == 1);
}

TEST_CASE("a window larger than the work sends all immediately") {
  ManualDaemon daemon(3);
  auto done = daemon.begin(100);
  daemon.settle();
  CHECK(daemon.sent == Indexes{0, 1, 2});
  for (size_t i : {2, 0, 1}) daemon.answer(i);
  PSD_REQUIRE_OK(done.wait(daemon.scope));
}

TEST_CASE("after an error nothing is sent, and what was sent is waited for") {
  ManualDaemon daemon(10);
  auto done = daemon.begin(3);
  daemon.settle();
  daemon.answer(1, {ErrorCode::nonFinite, "the first error"});
  CHECK(daemon.sent == Indexes{0, 1, 2});
  daemon.answer(0);
  CHECK(daemon.sent == Indexes{0, 1, 2});
  CHECK_FALSE(done.poll(daemon.scope));
  daemon.answer(2, {ErrorCode::internal, "a later error"});
  Status status = done.wait(daemon.scope);
  REQUIRE_FALSE(status.ok());
  CHECK(status.message() == "the first error");
  CHECK(daemon.sent.size() == 3);
}

TEST_CASE("any order of answers keeps order, bound and count") {
  for (uint64_t seed = 1; seed <= 100; seed++) {
    INFO("seed " << seed);
    Random random(seed);
    const size_t slices = random.between(1, 40);
    const auto window = static_cast<uint32_t>(random.between(1, 10));
    const size_t failing = random.oneIn(2) ? random.below(slices) : slices;
    ManualDaemon daemon(slices);
    auto done = daemon.begin(window);
    daemon.settle();
    while (!daemon.open.empty()) {
      REQUIRE_FALSE(done.poll(daemon.scope));
      auto chosen =
          std::next(daemon.open.begin(), static_cast<std::ptrdiff_t>(random.below(daemon.open.size())));
      const size_t index = chosen->first;
      daemon.answer(index, index == failing ? Status(ErrorCode::io, "failed") : Status());
    }
    REQUIRE(done.wait(daemon.scope).ok() == (failing == slices));
    REQUIRE(daemon.mostOpen == std::min<size_t>(window, slices));
    for (size_t i = 0; i < daemon.sent.size(); i++) REQUIRE(daemon.sent[i] == i);
    if (failing == slices) REQUIRE(daemon.sent.size() == slices);
  }
}

TEST_CASE("many simultaneous answers do not grow the stack") {
  kj::EventLoop loop;
  kj::WaitScope scope(loop);
  const auto slices = cutIntoSlices(ShardPlan::make(200'000 * 16, 1), 16);
  REQUIRE(slices.size() == 200'000);
  size_t sent = 0;
  auto done = sendInWindow(slices, 4, [&sent](const Slice&) -> kj::Promise<Status> {
    sent++;
    return Status();
  });
  PSD_REQUIRE_OK(done.wait(scope));
  CHECK(sent == slices.size());
}

}  // namespace
}  // namespace psd::client_window_test
