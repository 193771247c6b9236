#include <sys/socket.h>
#include <unistd.h>

#include "test/support/catch.h"
#include "test/support/random.h"
#include "test/unit/common/wire/wire_streams.h"

namespace psd::wire {
namespace {

using testing::asArray;
using testing::hasSegments;
using testing::Random;
using testing::randomWords;
using testing::Segments;
using testing::viewOf;

/// Two message streams at the ends of a real Unix socket.
struct SocketPair {
  explicit SocketPair(bool takeDescriptors) {
    int fds[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    sender = wrapSocket(*io.lowLevelProvider, fds[0]);
    receiver = wrapSocket(*io.lowLevelProvider, fds[1]);
    MessageStreamOptions sending, receiving;
    sending.descriptors = sender.descriptors;
    receiving.descriptors = receiver.descriptors;
    receiving.takeDescriptors = takeDescriptors;
    near = std::make_unique<MessageStream>(*sender.stream, pool, io.provider->getTimer(), std::move(sending));
    far = std::make_unique<MessageStream>(*receiver.stream, pool, io.provider->getTimer(),
                                          std::move(receiving));
  }

  kj::AsyncIoContext io = kj::setupAsyncIo();
  std::shared_ptr<BufferPool> pool = BufferPool::make(16u << 20);
  Socket sender{{}, nullptr}, receiver{{}, nullptr};
  std::unique_ptr<MessageStream> near, far;
};

/// A pipe whose reading end identifies its writing end.
struct Pipe {
  Pipe() { REQUIRE(pipe(ends) == 0); }
  ~Pipe() {
    close(ends[0]);
    close(ends[1]);
  }
  int ends[2];
};

}  // namespace

TEST_CASE("a descriptor arrives with the message that it was sent with, among any other messages") {
  SocketPair pair(true);
  Random random(1);
  // Small ones are read ahead together, large ones bypass the buffer.
  const std::vector<size_t> sizes = {4, 4, 20'000, 4, 1, 4, 20'000, 20'000, 3, 3};
  for (size_t carrier = 0; carrier < sizes.size(); carrier++) {
    INFO("message " << carrier << " carries it");
    Pipe pipe;
    std::vector<Segments> messages;
    for (size_t words : sizes) {
      messages.emplace_back();
      messages.back().push_back(randomWords(random, words));
    }
    auto writing = kj::Promise<void>(kj::READY_NOW);
    for (size_t i = 0; i < sizes.size(); i++) {
      writing = writing.then([&, i] {
        auto view = kj::heap(viewOf(messages[i]));
        const int fd = pipe.ends[0];
        auto fds = kj::heapArray<int>(&fd, i == carrier ? 1 : 0);
        auto written = pair.near->writeMessage(fds, asArray(*view));
        return written.attach(kj::mv(view), kj::mv(fds));
      });
    }
    writing = writing.eagerlyEvaluate(nullptr);
    for (size_t i = 0; i < sizes.size(); i++) {
      kj::AutoCloseFd space[2];
      auto read = pair.far->tryReadMessage(space, {}, nullptr).wait(pair.io.waitScope);
      auto& message = KJ_REQUIRE_NONNULL(read);
      REQUIRE(hasSegments(*message.reader, messages[i]));
      REQUIRE(message.fds.size() == (i == carrier ? 1 : 0));
      if (i != carrier) continue;
      char byte = 0;
      REQUIRE(write(pipe.ends[1], "x", 1) == 1);
      REQUIRE(::read(message.fds[0], &byte, 1) == 1);
      CHECK(byte == 'x');
    }
    writing.wait(pair.io.waitScope);
  }
}

TEST_CASE("a peer that takes no descriptors gets the messages without them") {
  SocketPair pair(false);
  Random random(2);
  Segments segments;
  segments.push_back(randomWords(random, 5));
  Pipe pipe;
  auto view = viewOf(segments);
  pair.near->writeMessage(kj::arrayPtr(pipe.ends, 1), asArray(view)).wait(pair.io.waitScope);
  kj::AutoCloseFd space[2];
  auto read = pair.far->tryReadMessage(space, {}, nullptr).wait(pair.io.waitScope);
  auto& message = KJ_REQUIRE_NONNULL(read);
  CHECK(hasSegments(*message.reader, segments));
  CHECK(message.fds.size() == 0);
}

TEST_CASE("a flood of descriptors is bounded") {
  SocketPair pair(true);
  Random random(3);
  Pipe pipe;
  const std::vector<int> many(64, pipe.ends[0]);
  Segments segments;
  segments.push_back(randomWords(random, 5));
  auto view = viewOf(segments);
  for (int i = 0; i < 3; i++) {
    pair.near->writeMessage(kj::arrayPtr(many.data(), many.size()), asArray(view)).wait(pair.io.waitScope);
    kj::AutoCloseFd space[1];
    auto read = pair.far->tryReadMessage(space, {}, nullptr).wait(pair.io.waitScope);
    auto& message = KJ_REQUIRE_NONNULL(read);
    CHECK(hasSegments(*message.reader, segments));
    CHECK(message.fds.size() == 1);
  }
}

}  // namespace psd::wire
