#include "common/wire/message_writer.h"

#include <deque>
#include <memory>
#include <vector>

#include "test/support/catch.h"
#include "test/support/random.h"
#include "test/unit/common/wire/wire_streams.h"

namespace psd::wire {
namespace {

using testing::asArray;
using testing::framed;
using testing::Random;
using testing::randomWords;
using testing::Segments;
using testing::viewOf;

/// Records what is written, one entry per call, and accepts it immediately or on request.
class RecordingStream final : public kj::AsyncIoStream {
 public:
  kj::Promise<void> write(const void* buffer, size_t size) override {
    const auto* bytes = static_cast<const kj::byte*>(buffer);
    writes.emplace_back(bytes, bytes + size);
    return taken();
  }
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    writes.emplace_back();
    for (const auto& piece : pieces) writes.back().insert(writes.back().end(), piece.begin(), piece.end());
    return taken();
  }
  kj::Promise<void> whenWriteDisconnected() override { return kj::NEVER_DONE; }
  kj::Promise<size_t> tryRead(void*, size_t, size_t) override { return kj::NEVER_DONE; }
  void shutdownWrite() override { ended = true; }
  void abortRead() override { readAborted = true; }

  std::vector<std::vector<kj::byte>> writes;
  bool full = false;  // a write stays in flight until `blocked` is resolved
  kj::Own<kj::PromiseFulfiller<void>> blocked;
  bool broken = false;  // a write fails in the call, as with kj's sockets
  bool ended = false;
  bool readAborted = false;

 private:
  kj::Promise<void> taken() {
    if (broken) kj::throwFatalException(KJ_EXCEPTION(DISCONNECTED, "gone"));
    if (!full) return kj::READY_NOW;
    auto pair = kj::newPromiseAndFulfiller<void>();
    blocked = kj::mv(pair.fulfiller);
    return kj::mv(pair.promise);
  }
};

class ManualClock final : public kj::MonotonicClock {
 public:
  kj::TimePoint now() const override { return time; }
  kj::TimePoint time = kj::origin<kj::TimePoint>();
};

/// A writer on such a stream. Time advances only by the timer and the clock.
struct Fixture {
  /// Starts to write; the message lives as long as this.
  kj::Promise<void> write(size_t words) {
    messages.emplace_back();
    messages.back().push_back(randomWords(random, words));
    views.push_back(viewOf(messages.back()));
    return writer.write(nullptr, asArray(views.back())).eagerlyEvaluate(nullptr);
  }
  /// The bytes of messages [first, last) on the wire.
  std::vector<kj::byte> bytesOf(size_t first, size_t last) {
    std::vector<kj::byte> out;
    for (size_t i = first; i < last; i++) {
      const auto bytes = framed(messages[i]);
      out.insert(out.end(), bytes.begin(), bytes.end());
    }
    return out;
  }
  void endTurn() { scope.poll(); }

  kj::EventLoop loop;
  kj::WaitScope scope{loop};
  kj::TimerImpl timer{kj::origin<kj::TimePoint>()};
  Random random{1};
  std::deque<Segments> messages;
  std::deque<std::vector<kj::ArrayPtr<const capnp::word>>> views;
  RecordingStream stream;
  int failures = 0;
  ManualClock clock;
  MessageWriter writer{stream, nullptr, timer, clock, [this] { failures++; }};
};

constexpr size_t kSmall = 10;  // words; with their table 88 bytes on the wire
constexpr size_t kSmallBytes = 88;
constexpr size_t kLarge = 10'000;

TEST_CASE("small messages of one turn leave in one write") {
  Fixture f;
  for (int i = 0; i < 20; i++) f.write(kSmall).wait(f.scope);
  CHECK(f.stream.writes.empty());
  CHECK(f.writer.heldMessages() == 20);
  CHECK(f.writer.heldBytes() == 20 * kSmallBytes);
  f.endTurn();
  REQUIRE(f.stream.writes.size() == 1);
  CHECK(f.stream.writes[0] == f.bytesOf(0, 20));
  CHECK(f.writer.heldMessages() == 0);
  CHECK(f.writer.heldBytes() == 0);
  f.write(kSmall).wait(f.scope);
  f.endTurn();
  CHECK(f.stream.writes.size() == 2);
}

TEST_CASE("a small message leaves immediately if nothing was written for a while") {
  Fixture f;
  f.clock.time += 1 * kj::MILLISECONDS;
  for (int i = 0; i < 3; i++) f.write(kSmall).wait(f.scope);
  REQUIRE(f.stream.writes.size() == 1);
  CHECK(f.stream.writes[0] == f.bytesOf(0, 1));
  CHECK(f.writer.heldMessages() == 2);
  f.endTurn();
  REQUIRE(f.stream.writes.size() == 2);
  CHECK(f.stream.writes[1] == f.bytesOf(1, 3));

  // Also in a turn that takes long, together with those gathered in it.
  f.write(kSmall).wait(f.scope);
  CHECK(f.stream.writes.size() == 2);
  f.clock.time += 1 * kj::MILLISECONDS;
  f.write(kSmall).wait(f.scope);
  REQUIRE(f.stream.writes.size() == 3);
  CHECK(f.stream.writes[2] == f.bytesOf(3, 5));
}

TEST_CASE("a large message carries the small ones before it") {
  Fixture f;
  f.write(kSmall).wait(f.scope);
  f.write(kSmall).wait(f.scope);
  f.write(kLarge).wait(f.scope);
  REQUIRE(f.stream.writes.size() == 1);
  CHECK(f.stream.writes[0] == f.bytesOf(0, 3));
  f.write(kSmall).wait(f.scope);
  f.endTurn();
  REQUIRE(f.stream.writes.size() == 2);
  CHECK(f.stream.writes[1] == f.bytesOf(3, 4));
}

TEST_CASE("accepted messages can be written before the turn ends") {
  Fixture f;
  f.write(kSmall).wait(f.scope);
  f.writer.flush();
  REQUIRE(f.stream.writes.size() == 1);
  CHECK(f.stream.writes[0] == f.bytesOf(0, 1));
  f.endTurn();
  CHECK(f.stream.writes.size() == 1);
}

TEST_CASE("what a peer does not read is bounded, counted and timed") {
  Fixture f;
  f.stream.full = true;
  f.write(kSmall).wait(f.scope);
  f.endTurn();
  REQUIRE(f.stream.writes.size() == 1);
  CHECK(f.writer.waitTime() == 0 * kj::SECONDS);
  f.timer.advanceTo(f.timer.now() + 3 * kj::SECONDS);
  CHECK(f.writer.waitTime() == 3 * kj::SECONDS);
  CHECK(f.writer.heldMessages() == 1);

  // After it, 16 KiB are accepted; the rest stays with the caller.
  constexpr size_t kRoom = (16u << 10) / kSmallBytes;
  for (size_t i = 0; i < kRoom; i++) f.write(kSmall).wait(f.scope);
  auto waiting = f.write(kSmall);
  f.endTurn();
  CHECK_FALSE(waiting.poll(f.scope));
  CHECK(f.writer.heldMessages() == 1 + kRoom);
  CHECK(f.writer.heldBytes() == (1 + kRoom) * kSmallBytes);
  CHECK(f.stream.writes.size() == 1);

  f.stream.full = false;
  f.stream.blocked->fulfill();
  waiting.wait(f.scope);
  f.endTurn();
  CHECK(f.writer.heldMessages() == 0);
  CHECK(f.writer.waitTime() == 0 * kj::SECONDS);
  std::vector<kj::byte> all;
  for (const auto& write : f.stream.writes) all.insert(all.end(), write.begin(), write.end());
  CHECK(all == f.bytesOf(0, f.messages.size()));
}

TEST_CASE("a large message waits for a write in flight, and those after it for its own") {
  Fixture f;
  f.stream.full = true;
  f.write(kSmall).wait(f.scope);
  f.endTurn();
  auto large = f.write(kLarge);
  f.endTurn();
  CHECK(f.stream.writes.size() == 1);
  f.stream.blocked->fulfill();
  f.endTurn();
  REQUIRE(f.stream.writes.size() == 2);
  CHECK_FALSE(large.poll(f.scope));
  f.write(kSmall).wait(f.scope);
  f.endTurn();
  CHECK(f.stream.writes.size() == 2);
  f.stream.full = false;
  f.stream.blocked->fulfill();
  large.wait(f.scope);
  f.endTurn();
  REQUIRE(f.stream.writes.size() == 3);
  CHECK(f.stream.writes[2] == f.bytesOf(2, 3));
}

TEST_CASE("a stream ends after the accepted messages") {
  Fixture f;
  f.stream.full = true;
  f.write(kSmall).wait(f.scope);
  auto end = f.writer.end().eagerlyEvaluate(nullptr);
  REQUIRE(f.stream.writes.size() == 1);
  f.endTurn();
  CHECK_FALSE(f.stream.ended);
  f.stream.blocked->fulfill();
  end.wait(f.scope);
  CHECK(f.stream.ended);
}

TEST_CASE("a failure to write accepted messages fails the reader and the next message") {
  Fixture f;
  f.stream.full = true;
  f.write(kSmall).wait(f.scope);
  f.endTurn();
  f.write(kSmall).wait(f.scope);
  auto waiting = f.write(kLarge);
  f.stream.blocked->reject(KJ_EXCEPTION(DISCONNECTED, "gone"));
  f.endTurn();
  CHECK(f.failures == 1);
  CHECK(f.stream.readAborted);
  CHECK(f.writer.heldMessages() == 0);
  KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&] { waiting.wait(f.scope); })) {
    CHECK(exception->getDescription() == "gone");
  } else {
    FAIL("the message counts as written");
  }
  CHECK(kj::runCatchingExceptions([&] { f.write(kSmall).wait(f.scope); }) != nullptr);
  CHECK(f.stream.writes.size() == 1);
}

TEST_CASE("a failure to write a large message is reported to its caller") {
  Fixture f;
  f.stream.full = true;
  auto large = f.write(kLarge);
  f.stream.blocked->reject(KJ_EXCEPTION(DISCONNECTED, "gone"));
  CHECK(kj::runCatchingExceptions([&] { large.wait(f.scope); }) != nullptr);
  CHECK(f.failures == 1);
  CHECK(kj::runCatchingExceptions([&] { f.write(kLarge).wait(f.scope); }) != nullptr);
}

TEST_CASE("a write that fails in the call is a failure like any other") {
  for (const size_t words : {kSmall, kLarge}) {
    INFO(words);
    Fixture f;
    f.stream.broken = true;
    auto written = f.write(words);
    f.endTurn();
    CHECK(f.failures == 1);
    CHECK((kj::runCatchingExceptions([&] { written.wait(f.scope); }) != nullptr) == (words == kLarge));
    CHECK(f.writer.heldMessages() == 0);
    CHECK(kj::runCatchingExceptions([&] { f.write(kSmall).wait(f.scope); }) != nullptr);
  }
}

TEST_CASE("memory that a small message references is released as soon as it is copied") {
  Fixture f;
  auto memory = std::make_shared<kj::Array<capnp::word>>(randomWords(f.random, 20));
  const std::weak_ptr<kj::Array<capnp::word>> watch = memory;
  std::vector<kj::ArrayPtr<const capnp::word>> segments{memory->asPtr()};
  const void* begin = memory->begin();
  f.writer.pin(begin, std::move(memory));
  CHECK(f.writer.pinCount() == 1);
  f.writer.write(nullptr, asArray(segments)).wait(f.scope);
  CHECK(f.writer.pinCount() == 0);
  CHECK(watch.expired());
}

}  // namespace
}  // namespace psd::wire
