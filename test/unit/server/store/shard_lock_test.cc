#include "server/store/shard_lock.h"

#include <optional>
#include <thread>
#include <vector>

#include "test/support/catch.h"
#include "test/support/event_loop.h"
#include "test/support/random.h"

namespace psd::shard_lock_test {
namespace {

using testing::Random;
using testing::runOnThreads;
using testing::TestLoop;

using Guarding = kj::Promise<ShardLock::Guard>;

TEST_CASE("a free lock is acquired immediately") {
  TestLoop loop;
  ShardLock lock;
  for (int i = 0; i < 3; i++) {
    auto acquiring = lock.acquire();
    CHECK(loop.resolved(acquiring));
    auto guard = loop.wait(kj::mv(acquiring));
  }
}

TEST_CASE("the lock is granted to waiters in the order of their requests") {
  TestLoop loop;
  ShardLock lock;
  std::optional<ShardLock::Guard> guard = loop.wait(lock.acquire());
  std::vector<Guarding> waiting;
  for (int i = 0; i < 5; i++) waiting.push_back(lock.acquire());
  for (size_t next = 0; next < waiting.size(); next++) {
    for (size_t i = next; i < waiting.size(); i++) CHECK_FALSE(loop.resolved(waiting[i]));
    guard.reset();
    REQUIRE(loop.resolved(waiting[next]));
    guard = loop.wait(kj::mv(waiting[next]));
  }
}

TEST_CASE("sharers hold the lock together, and overtake no exclusive waiter") {
  TestLoop loop;
  ShardLock lock;
  std::optional<ShardLock::Guard> first = loop.wait(lock.acquireShared());
  std::optional<ShardLock::Guard> second = loop.wait(lock.acquireShared());
  auto alone = lock.acquire();
  auto third = lock.acquireShared(), fourth = lock.acquireShared();
  auto last = lock.acquire();
  first.reset();
  CHECK_FALSE(loop.resolved(alone));
  second.reset();
  REQUIRE(loop.resolved(alone));
  CHECK_FALSE(loop.resolved(third));
  { const ShardLock::Guard held = loop.wait(kj::mv(alone)); }
  REQUIRE(loop.resolved(third));
  REQUIRE(loop.resolved(fourth));
  CHECK_FALSE(loop.resolved(last));
  { const ShardLock::Guard held = loop.wait(kj::mv(third)); }
  CHECK_FALSE(loop.resolved(last));
  { const ShardLock::Guard held = loop.wait(kj::mv(fourth)); }
  CHECK(loop.resolved(last));
}

TEST_CASE("a moved guard holds the lock once") {
  TestLoop loop;
  ShardLock lock, other;
  std::optional<ShardLock::Guard> first = loop.wait(lock.acquire());
  std::optional<ShardLock::Guard> second = std::move(*first);
  first.reset();
  auto waiting = lock.acquire();
  CHECK_FALSE(loop.resolved(waiting));
  {
    ShardLock::Guard third = loop.wait(other.acquire());
    third = std::move(*second);
    second.reset();  // now of the other lock
    auto free = other.acquire();
    CHECK(loop.resolved(free));
    CHECK_FALSE(loop.resolved(waiting));
  }
  CHECK(loop.resolved(waiting));
}

TEST_CASE("a cancelled waiter loses its place") {
  TestLoop loop;
  ShardLock lock;
  std::optional<ShardLock::Guard> guard = loop.wait(lock.acquire());
  std::optional<Guarding> quitter = lock.acquire();
  auto patient = lock.acquire();
  quitter.reset();
  CHECK_FALSE(loop.resolved(patient));
  guard.reset();
  CHECK(loop.resolved(patient));
}

TEST_CASE("a guard that is granted and never taken frees the lock") {
  TestLoop loop;
  ShardLock lock;
  std::optional<ShardLock::Guard> guard = loop.wait(lock.acquire());
  std::optional<Guarding> careless = lock.acquire();
  auto next = lock.acquire();
  guard.reset();
  CHECK(loop.resolved(*careless));
  CHECK_FALSE(loop.resolved(next));
  careless.reset();
  CHECK(loop.resolved(next));
}

TEST_CASE("many cancelled waiters do not block the lock") {
  TestLoop loop;
  ShardLock lock;
  std::optional<ShardLock::Guard> guard = loop.wait(lock.acquire());
  std::vector<Guarding> quitters;
  for (int i = 0; i < 1000; i++) quitters.push_back(lock.acquire());
  auto patient = lock.acquire();
  quitters.clear();
  guard.reset();
  CHECK(loop.resolved(patient));
}

TEST_CASE("a guard may be released on another thread than it was acquired on") {
  TestLoop loop;
  ShardLock lock;
  std::optional<ShardLock::Guard> guard = loop.wait(lock.acquire());
  auto waiting = lock.acquire();
  CHECK_FALSE(loop.resolved(waiting));
  std::thread releaser([moved = std::move(*guard)]() mutable { ShardLock::Guard last = std::move(moved); });
  guard.reset();
  auto mine = loop.wait(kj::mv(waiting));
  releaser.join();
}

TEST_CASE("under the lock no increment of many threads is lost") {
  constexpr int kTimes = 500;
  ShardLock lock;
  int count = 0;
  REQUIRE(runOnThreads(4, [&](TestLoop& loop, size_t) {
    for (int i = 0; i < kTimes; i++) {
      loop.wait(lock.acquire().then([&count](ShardLock::Guard) { count++; }));
    }
  }));
  CHECK(count == 4 * kTimes);
}

TEST_CASE("threads that hold the lock over a turn of their loop, or cancel, lose no increment") {
  constexpr int kTimes = 200;
  for (uint64_t seed = 1; seed <= 5; seed++) {
    INFO("seed " << seed);
    ShardLock lock;
    int count = 0;
    REQUIRE(runOnThreads(4, [&](TestLoop& loop, size_t index) {
      Random random(seed * 100 + index);
      for (int i = 0; i < kTimes; i++) {
        std::optional<Guarding> quitter;
        if (random.oneIn(2)) quitter = lock.acquire();
        auto done = lock.acquire().then([&count](ShardLock::Guard guard) {
          const int before = count;
          return kj::evalLater([&count, before, guard = kj::mv(guard)] { count = before + 1; });
        });
        if (quitter && random.oneIn(2)) loop.resolved(*quitter);
        quitter.reset();
        loop.wait(kj::mv(done));
      }
    }));
    CHECK(count == 4 * kTimes);
    TestLoop loop;
    auto free = lock.acquire();
    CHECK(loop.resolved(free));
  }
}

}  // namespace
}  // namespace psd::shard_lock_test
