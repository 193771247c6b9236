#include <algorithm>
#include <cstring>
#include <vector>

#include <pthread.h>

#include "test/support/catch.h"
#include "test/support/random.h"
#include "test/unit/common/wire/wire_streams.h"

namespace psd::wire {
namespace {

using testing::asArray;
using testing::framed;
using testing::hasSegments;
using testing::PipedStream;
using testing::Random;
using testing::randomWords;
using testing::Segments;
using testing::viewOf;

/// Segments of `words` each.
Segments segmentsOf(const std::vector<size_t>& words, uint64_t seed = 1) {
  Random random(seed);
  Segments segments;
  for (size_t count : words) segments.push_back(randomWords(random, count));
  return segments;
}

/// A message's first bytes: the number of segments, and their lengths.
std::vector<kj::byte> header(std::vector<uint32_t> numbers) {
  std::vector<kj::byte> bytes(numbers.size() * sizeof(uint32_t));
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

void requireRoundTrip(const Segments& segments) {
  PipedStream near;
  MessageStream far(*near.far, near.pool, near.timer, {});
  auto view = viewOf(segments);
  auto written = far.writeMessage(nullptr, asArray(view)).eagerlyEvaluate(nullptr);
  auto message = near.got(near.read());
  written.wait(near.scope);
  REQUIRE(hasSegments(*message, segments));
}

TEST_CASE("messages of any number of segments arrive as sent") {
  for (size_t count : {1, 2, 3, 4, 5, 8, 63, 64, 511, 512}) {
    INFO(count << " segments");
    requireRoundTrip(segmentsOf(std::vector<size_t>(count, 5)));
  }
}

TEST_CASE("messages of any size arrive as sent") {
  for (size_t words : {0, 1, 2, 511, 1022, 1023, 1024, 1025, 2048, 4096, 131'072}) {
    INFO(words << " words");
    requireRoundTrip(segmentsOf({words}));
    requireRoundTrip(segmentsOf({3, words}));
    requireRoundTrip(segmentsOf({words, 0, 3}));
  }
}

TEST_CASE("the bytes of an incomplete message are counted") {
  for (size_t words : {size_t{4}, size_t{20'000}}) {
    PipedStream near;
    auto reading = near.read();
    CHECK(near.stream->receivedBytes() == 0);
    const std::vector<kj::byte> bytes = framed(segmentsOf({words}));
    const auto half = bytes.begin() + static_cast<ptrdiff_t>(bytes.size() / 2);
    near.send({bytes.begin(), half}).wait(near.scope);
    near.settle();
    CHECK(near.stream->receivedBytes() == bytes.size() / 2);
    auto rest = near.send({half, bytes.end()});
    near.got(kj::mv(reading));
    CHECK(near.stream->receivedBytes() == bytes.size());
  }
}

TEST_CASE("messages of random shapes follow each other on one stream") {
  for (uint64_t seed = 1; seed <= 30; seed++) {
    INFO("seed " << seed);
    Random random(seed);
    PipedStream near;
    MessageStream far(*near.far, near.pool, near.timer, {});
    for (int i = 0; i < 20; i++) {
      std::vector<size_t> words(random.between(1, random.oneIn(3) ? 20 : 2));
      for (size_t& count : words) count = random.between(0, uint64_t{1} << random.between(0, 13));
      const Segments segments = segmentsOf(words, random.engine()());
      auto view = viewOf(segments);
      auto written = far.writeMessage(nullptr, asArray(view)).eagerlyEvaluate(nullptr);
      auto message = near.got(near.read());
      written.wait(near.scope);
      REQUIRE(hasSegments(*message, segments));
    }
  }
}

TEST_CASE("messages written together are read one by one") {
  PipedStream near;
  MessageStream far(*near.far, near.pool, near.timer, {});
  std::vector<Segments> messages;
  for (size_t i = 0; i < 50; i++) messages.push_back(segmentsOf({i, 50 - i}, i + 1));
  std::vector<std::vector<kj::ArrayPtr<const capnp::word>>> views;
  for (const auto& segments : messages) views.push_back(viewOf(segments));
  std::vector<kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>>> all;
  for (const auto& view : views) all.push_back(asArray(view));
  auto written = far.writeMessages(kj::arrayPtr(all.data(), all.size())).eagerlyEvaluate(nullptr);
  for (const auto& segments : messages) {
    auto message = near.got(near.read());
    REQUIRE(hasSegments(*message, segments));
  }
  written.wait(near.scope);
}

TEST_CASE("a message that was read stays intact while later ones arrive") {
  PipedStream near;
  const Segments first = segmentsOf({100, 50}, 1), second = segmentsOf({100, 50}, 2);
  auto bytes = framed(first), more = framed(second);
  bytes.insert(bytes.end(), more.begin(), more.end());
  auto sent = near.send(bytes);
  auto a = near.got(near.read());
  auto b = near.got(near.read());
  CHECK(hasSegments(*a, first));
  CHECK(hasSegments(*b, second));
}

TEST_CASE("a message may be cut anywhere in transit") {
  const Segments segments = segmentsOf({3, 7, 0, 2});
  const auto bytes = framed(segments);
  for (size_t cut = 1; cut < bytes.size(); cut++) {
    INFO("cut at byte " << cut);
    PipedStream near;
    auto reading = near.read();
    auto all = kj::arrayPtr(bytes.data(), bytes.size());
    near.send(all.slice(0, cut)).wait(near.scope);
    REQUIRE_FALSE(reading.poll(near.scope));
    auto rest = near.send(all.slice(cut, all.size()));
    auto message = near.got(kj::mv(reading));
    REQUIRE(hasSegments(*message, segments));
  }
}

/// Runs `body` on a thread with a stack of `bytes`. Assertions are up to the caller.
template <class Body>
void onSmallStack(size_t bytes, Body body) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  REQUIRE(pthread_attr_setstacksize(&attributes, bytes) == 0);
  pthread_t thread;
  auto run = [](void* argument) -> void* {
    (*static_cast<Body*>(argument))();
    return nullptr;
  };
  REQUIRE(pthread_create(&thread, &attributes, run, &body) == 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

TEST_CASE("a message that arrives byte by byte does not grow the stack") {
  // One segment that is read into the read-ahead buffer's pieces, one that is read in place.
  const Segments segments = segmentsOf({200, 8000});
  const auto bytes = framed(segments);
  bool whole = false;
  onSmallStack(256u << 10, [&] {
    PipedStream near;
    auto reading = near.read();
    for (const kj::byte& byte : bytes) near.send(kj::arrayPtr(&byte, 1)).wait(near.scope);
    auto message = reading.wait(near.scope);
    KJ_IF_MAYBE (found, message) {
      whole = hasSegments(*found->reader, segments);
    }
  });
  CHECK(whole);
}

TEST_CASE("the end between messages is an end, not an error") {
  PipedStream near;
  const Segments segments = segmentsOf({3});
  auto sent = near.send(framed(segments));
  near.got(near.read());
  near.far->shutdownWrite();
  auto reading = near.read();
  REQUIRE(reading.poll(near.scope));
  auto message = reading.wait(near.scope);
  CHECK(message == nullptr);
  CHECK(near.refusals.empty());
}

TEST_CASE("the end within a message is a broken connection, at any position") {
  const auto bytes = framed(segmentsOf({3, 7, 2}));
  for (size_t cut = 1; cut < bytes.size(); cut++) {
    INFO("after byte " << cut);
    PipedStream near;
    auto reading = near.read();
    near.send(kj::arrayPtr(bytes.data(), cut)).wait(near.scope);
    near.far->shutdownWrite();
    const kj::Exception exception = near.failure(kj::mv(reading));
    REQUIRE(exception.getType() == kj::Exception::Type::DISCONNECTED);
    REQUIRE(exception.getDescription() == "the connection ended within a message");
  }
}

TEST_CASE("a message that is too large is rejected by its header alone") {
  PipedStream near({.messageBytesMax = 800});
  auto reading = near.read();
  near.send(header({0, 101})).wait(near.scope);
  const kj::Exception exception = near.failure(kj::mv(reading));
  CHECK(exception.getDescription() == "a message of 808 bytes; limits.message_bytes is 800");
  CHECK(near.refusals == std::vector<std::string>{"a message of 808 bytes; limits.message_bytes is 800"});
}

TEST_CASE("a message's size is the sum of its segments, however large") {
  PipedStream near({.messageBytesMax = 800});
  SECTION("just too large") {
    auto reading = near.read();
    near.send(header({1, 50, 51, 0})).wait(near.scope);
    CHECK(near.failure(kj::mv(reading)).getDescription() ==
          "a message of 808 bytes; limits.message_bytes is 800");
  }
  SECTION("far beyond 2^32 bytes") {
    std::vector<uint32_t> numbers(514, UINT32_MAX);  // the last is padding
    numbers[0] = 511;
    auto reading = near.read();
    auto sent = near.send(header(numbers));
    CHECK(near.failure(kj::mv(reading)).getDescription() ==
          "a message of 17592186040320 bytes; limits.message_bytes is 800");
  }
  CHECK(near.refusals.size() == 1);
}

TEST_CASE("a message of exactly the limit is accepted") {
  PipedStream near({.messageBytesMax = 800});
  for (const auto& words : {std::vector<size_t>{100}, {50, 50}}) {
    const Segments segments = segmentsOf(words);
    auto sent = near.send(framed(segments));
    auto message = near.got(near.read());
    CHECK(hasSegments(*message, segments));
  }
  CHECK(near.refusals.empty());
}

TEST_CASE("bytes that are not a Cap'n Proto message are rejected by their segment count") {
  for (uint32_t first : {512u, 0x54534f50u /* "POST" */, 0x20544547u /* "GET " */, UINT32_MAX}) {
    INFO(first);
    PipedStream near;
    auto reading = near.read();
    near.send(header({first, 1})).wait(near.scope);
    CHECK(near.failure(kj::mv(reading)).getDescription() == "not a Cap'n Proto message (segment count)");
    CHECK(near.refusals == std::vector<std::string>{"not a Cap'n Proto message (segment count)"});
  }
}

TEST_CASE("random bytes end in a rejection, a message or a wait") {
  for (uint64_t seed = 1; seed <= 500; seed++) {
    INFO("seed " << seed);
    Random random(seed);
    PipedStream near({.messageBytesMax = 4096});
    std::vector<kj::byte> bytes(random.between(8, 200));
    for (kj::byte& byte : bytes) byte = static_cast<kj::byte>(random.oneIn(2) ? 0 : random.below(256));
    auto sent = near.send(bytes).then([&near] { near.far->shutdownWrite(); }).eagerlyEvaluate(nullptr);
    for (bool open = true; open;) {
      auto reading = near.read();
      REQUIRE(reading.poll(near.scope));  // the stream has ended: nothing left to wait for
      KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&] {
                     auto message = reading.wait(near.scope);
                     open = message != nullptr;
                   })) {
        open = false;
        REQUIRE(exception->getDescription().size() > 0);
      }
    }
  }
}

constexpr auto kTimeout = 5 * kj::SECONDS;

TEST_CASE("a message whose first byte has arrived must be complete in time") {
  const auto bytes = framed(segmentsOf({3, 7}));
  for (size_t part : {size_t{1}, size_t{8}, bytes.size() - 1}) {
    INFO(part << " bytes have arrived");
    PipedStream near({.readTimeout = kTimeout});
    auto reading = near.read();
    near.send(kj::arrayPtr(bytes.data(), part)).wait(near.scope);
    near.timer.advanceTo(near.timer.now() + kTimeout - 1 * kj::NANOSECONDS);
    REQUIRE_FALSE(reading.poll(near.scope));
    near.timer.advanceTo(near.timer.now() + 1 * kj::NANOSECONDS);
    const std::string late = "an incoming message was not complete within limits.read_timeout_ms";
    CHECK(near.failure(kj::mv(reading)).getDescription() == late.c_str());
    CHECK(near.refusals == std::vector<std::string>{late});
  }
}

TEST_CASE("an idle connection has no time limit") {
  PipedStream near({.readTimeout = kTimeout});
  const Segments segments = segmentsOf({3, 7});
  for (int i = 0; i < 3; i++) {
    auto reading = near.read();
    near.timer.advanceTo(near.timer.now() + 1 * kj::DAYS);
    REQUIRE_FALSE(reading.poll(near.scope));
    auto sent = near.send(framed(segments));
    auto message = near.got(kj::mv(reading));
    CHECK(hasSegments(*message, segments));
  }
  near.timer.advanceTo(near.timer.now() + 1 * kj::DAYS);
  CHECK(near.refusals.empty());
}

TEST_CASE("without a time limit a message may take forever") {
  PipedStream near;
  const Segments segments = segmentsOf({3, 7});
  const auto bytes = framed(segments);
  auto reading = near.read();
  near.send(kj::arrayPtr(bytes.data(), 9)).wait(near.scope);
  near.timer.advanceTo(near.timer.now() + 365 * kj::DAYS);
  REQUIRE_FALSE(reading.poll(near.scope));
  near.send(kj::arrayPtr(bytes.data() + 9, bytes.size() - 9)).wait(near.scope);
  CHECK(hasSegments(*near.got(kj::mv(reading)), segments));
}

TEST_CASE("closing a stream notifies the other side, and reading continues") {
  PipedStream near;
  near.stream->end().wait(near.scope);
  CHECK(near.far->readAllBytes().wait(near.scope).size() == 0);
  const Segments segments = segmentsOf({3});
  auto sent = near.send(framed(segments));
  CHECK(hasSegments(*near.got(near.read()), segments));
}

TEST_CASE("a message outlives its stream") {
  kj::Own<capnp::MessageReader> message;
  const Segments segments = segmentsOf({3, 70'000});
  {
    PipedStream near;
    auto sent = near.send(framed(segments));
    message = near.got(near.read());
  }
  CHECK(hasSegments(*message, segments));
}

}  // namespace
}  // namespace psd::wire
