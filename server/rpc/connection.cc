#include "server/rpc/connection.h"

#include <kj/debug.h>
#include <spdlog/spdlog.h>

#include "server/rpc/daemon_service.h"

namespace psd {
namespace {

// More replies than any trainer's window keeps referenced at once.
constexpr size_t kPinsMax = 4096;

wire::MessageStreamOptions streamOptions(EventLoop& loop, Connection& connection) {
  const Limits& limits = loop.environment().config.limits;
  wire::MessageStreamOptions options;
  options.messageBytesMax = limits.messageBytes;
  options.readTimeout = limits.readTimeoutMs * kj::MILLISECONDS;
  options.onRefused = [&loop, &connection](kj::StringPtr reason) {
    loop.drop(connection, std::string(reason.cStr()));
  };
  return options;
}

}  // namespace

Connection::Connection(EventLoop& loop, int fd, std::string peer) : loop_(loop), peer_(std::move(peer)) {
  socket_ = loop.io().lowLevelProvider->wrapSocketFd(fd, kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP |
                                                             kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC |
                                                             kj::LowLevelAsyncIoProvider::ALREADY_NONBLOCK);
  stream_ = kj::heap<wire::MessageStream>(*socket_, loop.pool(), loop.timer(), streamOptions(loop, *this));
  network_ = kj::heap<capnp::TwoPartyVatNetwork>(*stream_, capnp::rpc::twoparty::Side::SERVER);
  rpc_ = capnp::makeRpcServer(*network_, capnp::Capability::Client(kj::heap<DaemonService>(loop, *this)));
}

Connection::~Connection() {
  // The services refer to this object and the network; they go first.
  rpc_ = nullptr;
}

bool Connection::mayQueue() {
  return queuedBytes() < loop_.environment().config.limits.outgoingBytes && stream_->pinCount() < kPinsMax;
}

std::optional<std::string> Connection::stalled() {
  uint64_t limitMs = loop_.environment().config.limits.writeTimeoutMs;
  if (limitMs == 0 || network_->getOutgoingMessageWaitTime() < limitMs * kj::MILLISECONDS) return {};
  return "it has not read its answers for limits.write_timeout_ms (" + std::to_string(limitMs) + ")";
}

}  // namespace psd
