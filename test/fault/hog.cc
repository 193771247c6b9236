// A peer that holds shared resources for as long as it lives: prints "ready" once it holds them.
//
//   hog ADDRESS KIND COUNT
//
// KIND   announce  COUNT connections, each of which starts a message of 1 MiB and sends none of its body
//        half      the same, and each sends half of it
//        readers   COUNT readers, each on its own connection and in the middle of a pull of every shard
//        deaf      one connection that requests the status COUNT times and reads no answer

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>
#include <kj/debug.h>
#include <poll.h>
#include <unistd.h>

#include "common/os/socket.h"
#include "schema/psd.capnp.h"

namespace psd {
namespace {

constexpr uint32_t kAnnouncedBytes = 1 << 20;

OwnFd connectTo(const std::string& address) {
  auto parsed = parseAddress(address);
  KJ_REQUIRE(parsed.ok());
  auto fd = psd::connectTo(*parsed, std::chrono::seconds(60));
  KJ_REQUIRE(fd.ok());
  return std::move(*fd);
}

/// The daemon may have closed the connection, or may have exited.
void send(int fd, const std::vector<uint32_t>& words) {
  const auto* at = reinterpret_cast<const char*>(words.data());
  for (size_t left = words.size() * sizeof words[0]; left > 0;) {
    pollfd ready{fd, POLLOUT, 0};
    poll(&ready, 1, 1000);
    const ssize_t written = write(fd, at, left);
    if (written < 0 && errno != EAGAIN) return;
    if (written < 0) continue;
    at += written;
    left -= static_cast<size_t>(written);
  }
}

/// A connection that speaks Cap'n Proto RPC. Owned by one thread.
class Peer {
 public:
  Peer(kj::AsyncIoContext& io, const std::string& address)
      : stream_(io.lowLevelProvider->wrapSocketFd(
            connectTo(address).release(),
            kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP | kj::LowLevelAsyncIoProvider::ALREADY_NONBLOCK)),
        client_(*stream_) {}

  /// The capabilities that the daemon offers this peer, by pipelining.
  capnp::RemotePromise<schema::LoginResult> login() {
    auto request = client_.bootstrap().castAs<schema::Login>().loginRequest();
    request.setProtocolVersion(schema::PROTOCOL_VERSION);
    return request.send();
  }

 private:
  kj::Own<kj::AsyncIoStream> stream_;
  capnp::TwoPartyClient client_;
};

/// Leaves a pull of each shard, starting at this one, unfinished.
kj::Promise<void> readABit(Peer& peer) {
  auto observe = peer.login().getReading().observeRequest();
  return observe.send().then([](capnp::Response<schema::ObserveResult> observed) {
    KJ_REQUIRE(observed.isObserving());
    auto reader = observed.getObserving().getReader();
    auto pulls = kj::Vector<kj::Promise<void>>();
    for (uint32_t shard = 0; shard < observed.getObserving().getAccess().getShards().size(); shard++) {
      auto pull = reader.pullRequest();
      pull.setPull(1);
      pull.setShard(shard);
      pull.setCount(16);
      pulls.add(pull.send().ignoreResult());
    }
    return kj::joinPromises(pulls.releaseAsArray()).attach(kj::mv(reader));
  });
}

void ready() {
  std::puts("ready");
  std::fflush(stdout);
}

void beginMessages(const std::string& address, size_t count, size_t sentBytes) {
  std::vector<OwnFd> sockets;
  std::vector<uint32_t> words(2 + sentBytes / sizeof(uint32_t));
  words[1] = kAnnouncedBytes / 8;  // size of the only segment
  for (size_t i = 0; i < count; i++) {
    sockets.push_back(connectTo(address));
    send(sockets.back().get(), words);
  }
  ready();
  pause();
}

void read(const std::string& address, size_t count) {
  auto io = kj::setupAsyncIo();
  std::vector<std::unique_ptr<Peer>> peers;
  kj::Vector<kj::Promise<void>> pulls;
  for (size_t i = 0; i < count; i++) {
    peers.push_back(std::make_unique<Peer>(io, address));
    pulls.add(readABit(*peers.back()).eagerlyEvaluate([](kj::Exception&&) {}));
  }
  // Some wait until others are dropped.
  io.provider->getTimer().afterDelay(50 * kj::MILLISECONDS).wait(io.waitScope);
  ready();
  kj::joinPromises(pulls.releaseAsArray()).wait(io.waitScope);
  kj::Promise<void>(kj::NEVER_DONE).wait(io.waitScope);
}

void askAndNotRead(const std::string& address, size_t count) {
  auto io = kj::setupAsyncIo();
  Peer peer(io, address);
  auto reading = peer.login().getReading();
  std::vector<kj::Promise<void>> asked;
  for (size_t i = 0; i < count; i++) {
    asked.push_back(reading.statusRequest().send().ignoreResult().eagerlyEvaluate([](kj::Exception&&) {}));
  }
  io.waitScope.poll();  // sends
  ready();
  pause();
}

int run(const std::string& address, const std::string& kind, size_t count) {
  if (kind == "announce") {
    beginMessages(address, count, 0);
  } else if (kind == "half") {
    beginMessages(address, count, kAnnouncedBytes / 2);
  } else if (kind == "readers") {
    read(address, count);
  } else if (kind == "deaf") {
    askAndNotRead(address, count);
  } else {
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace psd

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: hog ADDRESS KIND COUNT\n");
    return 2;
  }
  return psd::run(argv[1], argv[2], std::strtoull(argv[3], nullptr, 10));
}
