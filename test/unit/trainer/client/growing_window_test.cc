#include "trainer/client/transport/growing_window.h"

#include <algorithm>
#include <map>
#include <vector>

#include <kj/async.h>

#include "test/support/catch.h"
#include "test/support/random.h"
#include "trainer/client/transport/slice_queue.h"

namespace psd::client_growing_window_test {
namespace {

using std::chrono::microseconds;
using TimePoint = GrowingWindow::TimePoint;

/// A path to a daemon: its round-trip time, and the serial transmission time of each slice.
struct Path {
  microseconds roundTrip, slice;
};

/// Sends transfers over paths in virtual time.
class Sender {
 public:
  explicit Sender(GrowingWindow& window) : window_(window) {}

  /// The share of the path's capacity that the transfer used, and the maximum number of unanswered slices.
  struct Utilization {
    double share = 0;
    size_t most = 0;
  };
  Utilization transfer(const Path& way, size_t slices) {
    const TimePoint begin = now_;
    std::multimap<TimePoint, GrowingWindow::Sent> open;
    TimePoint free = now_;  // when the path accepts another slice
    Utilization used;
    for (size_t sent = 0; sent < slices || !open.empty();) {
      while (sent < slices && open.size() < window_.slices()) {
        free = std::max(free, now_) + way.slice;
        open.emplace(free + way.roundTrip, window_.sent(now_));
        sent++;
      }
      used.most = std::max(used.most, open.size());
      now_ = open.begin()->first;
      window_.answered(open.begin()->second, now_);
      open.erase(open.begin());
    }
    used.share =
        std::chrono::duration<double>(way.slice * slices) / std::chrono::duration<double>(now_ - begin);
    now_ += std::chrono::seconds(1);
    return used;
  }

 private:
  GrowingWindow& window_;
  TimePoint now_{};
};

constexpr Path kLong{microseconds(100'000), microseconds(8'400)};  // 1 MiB at 1 Gbit/s, 100 ms
constexpr Path kShort{microseconds(200), microseconds(800)};
constexpr uint32_t kLeast = 4, kMost = 32;

TEST_CASE("a window grows until the path is full, and no further") {
  GrowingWindow window(kLeast, kMost);
  Sender sender(window);
  CHECK(sender.transfer(kLong, 64).share > 0.5);  // within the first transfer already
  CHECK(sender.transfer(kLong, 256).share > 0.9);
  const auto later = sender.transfer(kLong, 256);
  CHECK(later.share > 0.9);
  // 12.9 slices are in transit, and as many wait.
  CHECK(later.most >= 13);
  CHECK(later.most <= 27);

  GrowingWindow fixed(kLeast, kLeast);
  Sender alone(fixed);
  CHECK(alone.transfer(kLong, 256).share < 0.35);
  CHECK(fixed.slices() == kLeast);
}

TEST_CASE("a window stays small on a short path, and shrinks when the path becomes short") {
  GrowingWindow window(kLeast, kMost);
  Sender sender(window);
  for (int i = 0; i < 3; i++) CHECK(sender.transfer(kShort, 64).most == kLeast);
  for (int i = 0; i < 3; i++) sender.transfer(kLong, 64);
  CHECK(window.slices() > 20);
  for (int i = 0; i < 3; i++) sender.transfer(kShort, 64);
  CHECK(window.slices() == kLeast);
  // And over a slow network, whose slices take longer than the round trip.
  for (int i = 0; i < 3; i++) {
    CHECK(sender.transfer({microseconds(100'000), microseconds(420'000)}, 20).most == kLeast);
  }
}

TEST_CASE("a window has a bound, whatever the answers") {
  GrowingWindow window(kLeast, kMost);
  Sender sender(window);
  for (int i = 0; i < 5; i++) sender.transfer({microseconds(10'000'000), microseconds(1)}, 500);
  CHECK(window.slices() == kMost);
  for (uint64_t seed = 1; seed <= 100; seed++) {
    INFO("seed " << seed);
    testing::Random random(seed);
    GrowingWindow any(kLeast, kMost);
    std::vector<GrowingWindow::Sent> open;
    TimePoint now;
    for (int i = 0; i < 500; i++) {
      now += microseconds(random.below(3) * random.below(10'000));
      if (open.size() < any.slices() && random.oneIn(2)) {
        open.push_back(any.sent(now));
      } else if (!open.empty()) {
        const size_t answered = random.below(open.size());
        any.answered(open[answered], now);
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(answered));
      }
      REQUIRE(any.slices() >= kLeast);
      REQUIRE(any.slices() <= kMost);
    }
  }
}

TEST_CASE("a window adopts other limits while slices are in flight") {
  GrowingWindow window(kLeast, kMost);
  Sender(window).transfer({microseconds(10'000'000), microseconds(1)}, 500);
  const auto open = window.sent(TimePoint(std::chrono::hours(1)));
  window.setLimits(kLeast, 8);
  CHECK(window.slices() == 8);
  window.answered(open, TimePoint(std::chrono::hours(1)) + microseconds(10));
  CHECK(window.slices() <= 8);
  window.setLimits(kLeast, kMost);
  // The next transfer starts with none in flight: its measurements replace the earlier ones.
  for (int i = 0; i < 3; i++) {
    Sender later(window);
    later.transfer(kShort, 64);
  }
  CHECK(window.slices() == kLeast);
}

TEST_CASE("a queue respects a window that grows in the middle of a push") {
  kj::EventLoop loop;
  kj::WaitScope scope(loop);
  size_t window = 2;
  std::vector<kj::Own<kj::PromiseFulfiller<Status>>> open;
  auto done = sendInWindow(8, SliceQueue::Window([&] { return window; }), [&](size_t) -> kj::Promise<Status> {
    auto answer = kj::newPromiseAndFulfiller<Status>();
    open.push_back(kj::mv(answer.fulfiller));
    return kj::mv(answer.promise);
  });
  const auto settle = [&] { kj::evalLast([] {}).wait(scope); };
  settle();
  CHECK(open.size() == 2);
  window = 5;
  open[0]->fulfill(Status());
  settle();
  CHECK(open.size() == 6);  // five of them unanswered
  for (size_t i = 1; i < open.size(); i++) {
    open[i]->fulfill(Status());
    settle();
  }
  PSD_REQUIRE_OK(done.wait(scope));
  CHECK(open.size() == 8);
}

}  // namespace
}  // namespace psd::client_growing_window_test
