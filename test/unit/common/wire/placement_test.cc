#include <memory>
#include <optional>
#include <vector>

#include <capnp/message.h>
#include <capnp/rpc.capnp.h>
#include <capnp/serialize.h>

#include "test/support/catch.h"
#include "test/support/random.h"
#include "test/unit/common/wire/wire_streams.h"

namespace psd::wire {
namespace {

using testing::asArray;
using testing::PipedStream;
using testing::Random;
using testing::randomWords;

constexpr size_t kPlaceWordsMin = 2048;  // smaller blobs are not worth a placement

/// A call that carries `values` in its own segment, as the RPC system sends it.
struct Call {
  Call(uint32_t question, kj::ArrayPtr<const capnp::word> values) {
    auto call = message.initRoot<capnp::rpc::Message>().initCall();
    call.setQuestionId(question);
    auto blob = message.getOrphanage().referenceExternalData(values.asBytes());
    call.initParams().getContent().adopt(kj::mv(blob));
    auto flat = capnp::messageToFlatArray(message);
    bytes.assign(flat.asBytes().begin(), flat.asBytes().end());
  }
  capnp::MallocMessageBuilder message;
  std::vector<kj::byte> bytes;  // on the wire
};

capnp::Data::Reader blobOf(capnp::MessageReader& message) {
  return message.getRoot<capnp::rpc::Message>().getCall().getParams().getContent().getAs<capnp::Data>();
}

/// A stream that wants the blob of question 7 in `destination`, and records the questions that it was asked
/// about.
struct PlacingStream {
  explicit PlacingStream(size_t words)
      : destination(kj::heapArray<capnp::word>(words)),
        stream({.placer = [this](capnp::rpc::Message::Reader envelope, size_t asked) {
          askedWords.push_back(asked);
          const bool mine = envelope.isCall() && envelope.getCall().getQuestionId() == 7;
          return mine ? destination.asPtr() : kj::ArrayPtr<capnp::word>();
        }}) {}
  kj::Array<capnp::word> destination;
  std::vector<size_t> askedWords;
  PipedStream stream;
};

TEST_CASE("a large blob is read straight into its destination") {
  Random random(1);
  for (size_t words : {kPlaceWordsMin, size_t{10'000}, size_t{131'072}}) {
    INFO(words << " words");
    const auto values = randomWords(random, words);
    const Call call(7, values);
    PlacingStream near(words);
    auto sent = near.stream.send(call.bytes);
    auto message = near.stream.got(near.stream.read());
    CHECK(near.askedWords == std::vector<size_t>{words});
    auto blob = blobOf(*message);
    CHECK(static_cast<const void*>(blob.begin()) == near.destination.begin());
    CHECK(blob.size() == words * sizeof(capnp::word));
    CHECK(near.destination.asPtr().asBytes() == values.asPtr().asBytes());
    CHECK(message->getRoot<capnp::rpc::Message>().getCall().getQuestionId() == 7);
  }
}

TEST_CASE("a blob without a destination is read into a buffer") {
  Random random(2);
  const auto values = randomWords(random, 10'000);
  const Call call(8, values);
  PlacingStream near(10'000);
  auto sent = near.stream.send(call.bytes);
  auto message = near.stream.got(near.stream.read());
  CHECK(near.askedWords.size() == 1);
  auto blob = blobOf(*message);
  CHECK(blob == values.asPtr().asBytes());
  CHECK(static_cast<const void*>(blob.begin()) != near.destination.begin());
}

TEST_CASE("a small blob is not placed") {
  Random random(3);
  const auto values = randomWords(random, kPlaceWordsMin - 1);
  const Call call(7, values);
  PlacingStream near(values.size());
  auto sent = near.stream.send(call.bytes);
  auto message = near.stream.got(near.stream.read());
  CHECK(near.askedWords.empty());
  CHECK(blobOf(*message) == values.asPtr().asBytes());
}

TEST_CASE("placed and other messages mix on one stream, cut anywhere") {
  for (uint64_t seed = 1; seed <= 30; seed++) {
    INFO("seed " << seed);
    Random random(seed);
    PlacingStream near(5000);
    for (int i = 0; i < 10; i++) {
      const bool mine = random.oneIn(2);
      const auto values = randomWords(random, mine ? 5000 : random.between(1, 6000));
      const Call call(mine ? 7 : 8, values);
      auto reading = near.stream.read();
      for (size_t at = 0; at < call.bytes.size();) {
        const size_t count = std::min<size_t>(random.between(1, 20'000), call.bytes.size() - at);
        near.stream.send(kj::arrayPtr(call.bytes.data() + at, count)).wait(near.stream.scope);
        at += count;
      }
      auto message = near.stream.got(kj::mv(reading));
      REQUIRE(blobOf(*message) == values.asPtr().asBytes());
      REQUIRE((static_cast<const void*>(blobOf(*message).begin()) == near.destination.begin()) == mine);
    }
  }
}

TEST_CASE("a malformed envelope does not crash") {
  for (uint64_t seed = 1; seed <= 200; seed++) {
    INFO("seed " << seed);
    Random random(seed);
    const auto values = randomWords(random, kPlaceWordsMin);
    Call call(7, values);
    // The first segment starts after the table of a message of two segments: 2 words.
    for (int i = 0; i < 3; i++)
      call.bytes[16 + random.below(80)] ^= static_cast<kj::byte>(random.between(1, 255));
    PlacingStream near(values.size());
    auto sent = near.stream.send(call.bytes);
    auto reading = near.stream.read();
    REQUIRE(reading.poll(near.stream.scope));
    KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&] { reading.wait(near.stream.scope); })) {
      REQUIRE(exception->getDescription().size() > 0);
    }
  }
}

/// Memory that reports when it is no longer referenced.
struct Referenced {
  Referenced() : memory(std::make_shared<kj::Array<capnp::word>>(kj::heapArray<capnp::word>(50'000))) {
    memset(memory->begin(), 0, memory->asBytes().size());
    watch = memory;
  }
  std::shared_ptr<kj::Array<capnp::word>> memory;
  std::weak_ptr<kj::Array<capnp::word>> watch;

  bool released() const { return watch.expired(); }
  /// Transfers ownership to the stream; returns the one segment of a message that references it.
  std::vector<kj::ArrayPtr<const capnp::word>> pinTo(MessageStream& stream) {
    std::vector<kj::ArrayPtr<const capnp::word>> segments{memory->asPtr()};
    const void* begin = memory->begin();
    stream.pin(begin, std::move(memory));
    return segments;
  }
};

TEST_CASE("pinned memory lives until its message is written") {
  PipedStream near;
  Referenced pinned;
  auto segments = pinned.pinTo(*near.stream);
  CHECK(near.stream->pinCount() == 1);
  near.settle();
  CHECK_FALSE(pinned.released());
  auto written = near.stream->writeMessage(nullptr, asArray(segments)).eagerlyEvaluate(nullptr);
  CHECK(near.stream->pinCount() == 0);
  auto buffer = kj::heapArray<kj::byte>(8 + 50'000 * 8);
  near.far->read(buffer.begin(), buffer.size() - 1).wait(near.scope);
  near.settle();
  CHECK_FALSE(pinned.released());  // one byte is still to be sent
  near.far->read(buffer.begin(), 1).wait(near.scope);
  written.wait(near.scope);
  written = nullptr;
  CHECK(pinned.released());
}

TEST_CASE("pinned memory is released with messages that are written together") {
  PipedStream near;
  Referenced pinned;
  auto segments = pinned.pinTo(*near.stream);
  std::vector<kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>>> messages{asArray(segments)};
  auto written =
      near.stream->writeMessages(kj::arrayPtr(messages.data(), messages.size())).eagerlyEvaluate(nullptr);
  CHECK(near.stream->pinCount() == 0);
  CHECK_FALSE(pinned.released());
  auto buffer = kj::heapArray<kj::byte>(8 + 50'000 * 8);
  near.far->read(buffer.begin(), buffer.size()).wait(near.scope);
  written.wait(near.scope);
  written = nullptr;
  CHECK(pinned.released());
}

TEST_CASE("pinned memory is released when its write is abandoned") {
  PipedStream near;
  Referenced pinned;
  auto segments = pinned.pinTo(*near.stream);
  {
    auto written = near.stream->writeMessage(nullptr, asArray(segments)).eagerlyEvaluate(nullptr);
    near.settle();
    CHECK_FALSE(pinned.released());
  }
  CHECK(pinned.released());
}

TEST_CASE("pinned memory that was never written is released with the stream") {
  PipedStream near;
  Referenced pinned;
  pinned.pinTo(*near.stream);
  CHECK_FALSE(pinned.released());
  near.stream.reset();
  CHECK(pinned.released());
}

TEST_CASE("memory pinned twice is released after the second message") {
  PipedStream near;
  Referenced pinned;
  near.stream->pin(pinned.memory->begin(), pinned.memory);
  auto segments = pinned.pinTo(*near.stream);
  CHECK(near.stream->pinCount() == 2);
  auto buffer = kj::heapArray<kj::byte>(8 + 50'000 * 8);
  for (int message = 0; message < 2; message++) {
    CHECK_FALSE(pinned.released());
    auto written = near.stream->writeMessage(nullptr, asArray(segments)).eagerlyEvaluate(nullptr);
    near.far->read(buffer.begin(), buffer.size()).wait(near.scope);
    written.wait(near.scope);
  }
  CHECK(pinned.released());
}

TEST_CASE("messages that reference nothing leave pins unchanged") {
  PipedStream near;
  Referenced pinned;
  pinned.pinTo(*near.stream);
  Random random(1);
  const auto other = randomWords(random, 3);
  std::vector<kj::ArrayPtr<const capnp::word>> segments{other.asPtr()};
  auto written = near.stream->writeMessage(nullptr, asArray(segments)).eagerlyEvaluate(nullptr);
  kj::byte buffer[32];
  near.far->read(buffer, sizeof buffer).wait(near.scope);
  written.wait(near.scope);
  CHECK(near.stream->pinCount() == 1);
  CHECK_FALSE(pinned.released());
}

}  // namespace
}  // namespace psd::wire
