#include "server/publish/round_queue.h"

#include <chrono>
#include <memory>
#include <utility>

#include "test/support/catch.h"
#include "test/support/event_loop.h"

namespace psd::round_queue_test {
namespace {

using testing::TestLoop;

/// Whether the lock is free.
bool isFree(TestLoop& loop, ShardLock& lock) {
  auto guard = lock.acquire();
  return loop.resolved(guard);
}

TEST_CASE("Round queue: takes every n-th round, in order, and holds its group") {
  TestLoop loop;
  ShardLock lock;
  RoundQueue queue;
  int woken = 0;
  const auto apply = [&](uint64_t number) { queue.applied(0, {number, 1}, loop.wait(lock.acquire())); };
  apply(4);  // not open yet
  CHECK(queue.empty());
  queue.open(4, [&woken] { woken++; });
  for (const uint64_t number : {1, 2, 3}) apply(number);
  CHECK((queue.empty() && woken == 0));
  apply(4);
  CHECK(woken == 1);
  CHECK_FALSE(isFree(loop, lock));
  {
    const auto held = queue.take();
    REQUIRE(held);
    CHECK(held->moment == RoundMoment{4, 1});
    CHECK_FALSE(isFree(loop, lock));
  }
  CHECK(isFree(loop, lock));
  CHECK_FALSE(queue.take());
  queue.follow(0);
  apply(8);
  CHECK(queue.empty());
}

TEST_CASE("Round queue: a round is left out whose number is not above that of the last one") {
  TestLoop loop;
  ShardLock lock, other;
  RoundQueue queue;
  queue.open(2, [] {});
  const auto taken = [&](uint64_t number, uint64_t id, uint32_t group = 0) {
    queue.applied(group, {number, id}, loop.wait((group == 0 ? lock : other).acquire()));
    return queue.take().has_value();
  };
  CHECK(taken(6, 1));
  CHECK(taken(6, 1, 3));
  for (const auto& [number, id] : {std::pair<uint64_t, uint64_t>(6, 2), {6, 1}, {2, 3}}) {
    CHECK_FALSE(taken(number, id));
    CHECK(isFree(loop, lock));
  }
  CHECK(queue.fault().starts_with("round 2 is in no version"));
  CHECK(taken(8, 1, 3));
  CHECK(taken(8, 1));
  CHECK(queue.fault().empty());
  queue.close();
  queue.open(2, [] {});  // another model
  CHECK(taken(2, 4));
}

TEST_CASE("Round queue: says when rounds have no name") {
  TestLoop loop;
  ShardLock lock;
  RoundQueue queue;
  queue.open(2, [] {});
  queue.unnamed(3);
  CHECK(queue.fault().empty());
  queue.unnamed(3);
  CHECK(queue.fault().starts_with("the last 2 rounds are in no version"));
  queue.applied(0, {1, 1}, loop.wait(lock.acquire()));
  CHECK_FALSE(queue.fault().empty());
  queue.applied(3, {1, 1}, loop.wait(lock.acquire()));
  CHECK(queue.fault().empty());
}

TEST_CASE("Round queue: releases what it has held for too long, and all at its end") {
  TestLoop loop;
  ShardLock lock;
  RoundQueue queue;
  queue.open(1, [] {});
  queue.applied(0, {1, 1}, loop.wait(lock.acquire()));
  const auto now = std::chrono::steady_clock::now();
  queue.expire(now);
  CHECK_FALSE(isFree(loop, lock));
  queue.expire(now + RoundQueue::kHoldMax + std::chrono::seconds(1));
  CHECK(isFree(loop, lock));
  queue.applied(0, {2, 1}, loop.wait(lock.acquire()));
  queue.close();
  CHECK(isFree(loop, lock));
  queue.applied(0, {3, 1}, loop.wait(lock.acquire()));
  CHECK(isFree(loop, lock));
}

}  // namespace
}  // namespace psd::round_queue_test
