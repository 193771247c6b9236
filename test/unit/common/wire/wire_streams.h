#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/async-io.h>
#include <kj/timer.h>

#include "common/wire/message_stream.h"
#include "test/support/catch.h"
#include "test/support/random.h"

namespace psd::testing {

/// The segments of one message.
using Segments = std::vector<kj::Array<capnp::word>>;

inline kj::Array<capnp::word> randomWords(Random& random, size_t words) {
  auto out = kj::heapArray<capnp::word>(words);
  auto bytes = out.asBytes();
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t value = random.engine()();
    std::memcpy(bytes.begin() + i, &value, 8);
  }
  return out;
}

inline std::vector<kj::ArrayPtr<const capnp::word>> viewOf(const Segments& segments) {
  return {segments.begin(), segments.end()};
}

inline kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>> asArray(
    const std::vector<kj::ArrayPtr<const capnp::word>>& segments) {
  return kj::arrayPtr(segments.data(), segments.size());
}

/// The bytes of a message on the wire, framed by Cap'n Proto itself.
inline std::vector<kj::byte> framed(const Segments& segments) {
  auto flat = capnp::messageToFlatArray(asArray(viewOf(segments)));
  return {flat.asBytes().begin(), flat.asBytes().end()};
}

inline bool hasSegments(capnp::MessageReader& message, const Segments& expected) {
  for (size_t i = 0; i < expected.size(); i++) {
    auto segment = message.getSegment(static_cast<kj::uint>(i));
    if (segment.asBytes() != expected[i].asPtr().asBytes()) return false;
  }
  return message.getSegment(static_cast<kj::uint>(expected.size())) == nullptr;
}

/// Two ends of a pipe in memory, a MessageStream on one of them. The event loop has no system behind it, so a
/// wait for what never happens fails immediately, and time advances only by `timer.advanceTo()`. Owned by one
/// thread.
struct PipedStream {
  explicit PipedStream(wire::MessageStreamOptions options = {}) : stream(make(std::move(options))) {}

  using Reading = kj::Promise<kj::Maybe<capnp::MessageReaderAndFds>>;

  /// Starts to read the next message.
  Reading read() { return stream->tryReadMessage(nullptr, {}, nullptr).eagerlyEvaluate(nullptr); }
  kj::Promise<void> send(kj::ArrayPtr<const kj::byte> bytes) {
    return far->write(bytes.begin(), bytes.size()).eagerlyEvaluate(nullptr);
  }
  kj::Promise<void> send(std::vector<kj::byte> bytes) {
    auto kept = kj::heap(std::move(bytes));
    auto sent = far->write(kept->data(), kept->size());
    return sent.attach(kj::mv(kept)).eagerlyEvaluate(nullptr);
  }
  kj::Own<capnp::MessageReader> got(Reading reading) {
    auto message = reading.wait(scope);
    KJ_IF_MAYBE (found, message) {
      return kj::mv(found->reader);
    }
    FAIL("the stream ended");
    return {};
  }
  /// The exception of a read that fails.
  kj::Exception failure(Reading reading) {
    REQUIRE(reading.poll(scope));
    KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&] { reading.wait(scope); })) {
      return kj::mv(*exception);
    }
    FAIL("the read did not fail");
    return KJ_EXCEPTION(FAILED, "");
  }
  /// Runs everything that can run.
  void settle() {
    kj::evalLast([] {}).wait(scope);
  }

  kj::EventLoop loop;
  kj::WaitScope scope{loop};
  kj::TimerImpl timer{kj::origin<kj::TimePoint>()};
  kj::TwoWayPipe pipe = kj::newTwoWayPipe();
  kj::Own<kj::AsyncIoStream>& far = pipe.ends[1];
  std::shared_ptr<wire::BufferPool> pool = wire::BufferPool::make(16u << 20);
  std::vector<std::string> refusals;  // the reasons passed to onRefused
  std::unique_ptr<wire::MessageStream> stream;

 private:
  std::unique_ptr<wire::MessageStream> make(wire::MessageStreamOptions options) {
    options.onRefused = [this](kj::StringPtr reason) { refusals.emplace_back(reason.cStr()); };
    return std::make_unique<wire::MessageStream>(*pipe.ends[0], pool, timer, std::move(options));
  }
};

}  // namespace psd::testing
