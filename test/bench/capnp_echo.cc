#include <stdexcept>

#include <capnp/message.h>
#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include "test/bench/echo.capnp.h"
#include "test/bench/references.h"

namespace psd::bench {
namespace {

/// Answers with `values`, copied into the message, as is usual with the generated code.
class EchoService final : public Echo::Server {
 public:
  explicit EchoService(kj::ArrayPtr<const kj::byte> values) : values_(values) {}

  kj::Promise<void> call(CallContext) override { return kj::READY_NOW; }
  kj::Promise<void> pull(PullContext context) override {
    context.initResults().setValues(values_);
    return kj::READY_NOW;
  }

 private:
  kj::ArrayPtr<const kj::byte> values_;
};

kj::ArrayPtr<const kj::byte> asBytes(std::span<const char> bytes) {
  return kj::arrayPtr(reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size());
}

/// Without the default limit of 64 MiB per message.
capnp::ReaderOptions readerOptions() {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = UINT64_MAX;
  return options;
}

void serveEcho(int fd, uint64_t bytes) {
  const Floats values(bytes);
  auto io = kj::setupAsyncIo();
  auto stream = io.lowLevelProvider->wrapSocketFd(fd, kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP);
  capnp::TwoPartyVatNetwork network(*stream, capnp::rpc::twoparty::Side::SERVER, readerOptions());
  auto rpc = capnp::makeRpcServer(network, kj::heap<EchoService>(asBytes(values.bytes())));
  network.onDisconnect().wait(io.waitScope);
}

}  // namespace

Timing measureCapnp(StreamKind kind, uint64_t bytes, double seconds) {
  PeerProcess peer(kind, 0, [&](int fd) { serveEcho(fd, bytes); });
  auto io = kj::setupAsyncIo();
  auto stream =
      io.lowLevelProvider->wrapSocketFd(peer.release(), kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP);
  capnp::TwoPartyVatNetwork network(*stream, capnp::rpc::twoparty::Side::CLIENT, readerOptions());
  auto rpc = capnp::makeRpcClient(network);
  capnp::MallocMessageBuilder server;
  server.initRoot<capnp::rpc::twoparty::VatId>().setSide(capnp::rpc::twoparty::Side::SERVER);
  Echo::Client echo = rpc.bootstrap(server.getRoot<capnp::rpc::twoparty::VatId>()).castAs<Echo>();
  return measure(seconds, [&] {
    if (bytes == 0) {
      echo.callRequest().send().wait(io.waitScope);
    } else if (echo.pullRequest().send().wait(io.waitScope).getValues().size() != bytes) {
      throw std::runtime_error("the answer has another size");
    }
  });
}

}  // namespace psd::bench
