#include <algorithm>
#include <stdexcept>

#include "server/store/cpu/racy_loops.h"
#include "test/bench/references.h"

namespace psd::bench {
namespace {

constexpr uint64_t kApplyBytes = 256 << 10;  // received, then applied while they are in the cache

/// A request of the near end. The answer to a push is one byte.
struct Request {
  uint64_t direction;
  uint64_t offset, bytes;
};

/// The far end: holds the parameters and serves until the stream ends.
void serveStream(int fd, uint64_t bytes) {
  const Floats parameters(bytes), received(kApplyBytes);
  const Optimizer sgd;
  Request request{};
  while (receiveValue(fd, request)) {
    if (request.direction == static_cast<uint64_t>(Direction::pull)) {
      sendAll(fd, parameters.bytes().subspan(request.offset, request.bytes));
      continue;
    }
    for (uint64_t done = 0; done < request.bytes;) {
      const uint64_t size = std::min(kApplyBytes, request.bytes - done);
      if (!receiveAll(fd, received.bytes().first(size))) return;
      racyApply(sgd, {.number = 1, .learningRate = 1e-2}, (request.offset + done) / sizeof(float),
                size / sizeof(float), parameters.data(), received.data(), {});
      done += size;
    }
    sendValue(fd, char{1});
  }
}

/// One transfer of all parameters.
class Transfer {
 public:
  Transfer(int fd, const StreamOptions& options, std::span<char> bytes)
      : fd_(fd), options_(options), bytes_(bytes) {}

  void run() {
    uint64_t asked = 0, answered = 0;
    while (answered < bytes_.size()) {
      while (asked < bytes_.size() && (asked - answered) < options_.window * options_.pieceBytes) {
        asked += ask(asked);
      }
      answered += awaitAnswer(answered);
    }
  }

 private:
  uint64_t sizeAt(uint64_t offset) const { return std::min(options_.pieceBytes, bytes_.size() - offset); }

  uint64_t ask(uint64_t offset) {
    const uint64_t size = sizeAt(offset);
    sendValue(fd_, Request{static_cast<uint64_t>(options_.direction), offset, size});
    if (options_.direction == Direction::push) sendAll(fd_, bytes_.subspan(offset, size));
    return size;
  }

  uint64_t awaitAnswer(uint64_t offset) {
    const uint64_t size = sizeAt(offset);
    char applied = 0;
    const bool whole = options_.direction == Direction::pull ? receiveAll(fd_, bytes_.subspan(offset, size))
                                                             : receiveValue(fd_, applied);
    if (!whole) throw std::runtime_error("the peer ended early");
    return size;
  }

  int fd_;
  const StreamOptions& options_;
  std::span<char> bytes_;
};

}  // namespace

Timing measureStream(const StreamOptions& options, double seconds) {
  const PeerProcess peer(options.kind, options.bufferBytes, [&](int fd) { serveStream(fd, options.bytes); });
  const Floats values(options.bytes);
  Transfer transfer(peer.fd(), options, values.bytes());
  return measure(seconds, [&] { transfer.run(); });
}

Timing measurePingPong(StreamKind kind, double seconds) {
  const PeerProcess peer(kind, 0, [](int fd) {
    uint64_t ball = 0;
    while (receiveValue(fd, ball)) sendValue(fd, ball);
  });
  return measure(seconds, [fd = peer.fd()] {
    uint64_t ball = 1;
    sendValue(fd, ball);
    if (!receiveValue(fd, ball)) throw std::runtime_error("the peer ended early");
  });
}

}  // namespace psd::bench
