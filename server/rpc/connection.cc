#include "server/rpc/connection.h"

#include <kj/debug.h>
#include <spdlog/spdlog.h>

#include "server/rpc/daemon_service.h"

namespace psd {
namespace {

// More replies than any trainer's window keeps referenced at once.
constexpr size_t kPinsMax = 4096;
// Even an answer without payload, a refusal say, takes some 8 KiB until it is read. A peer with this many
// unread ones is not listened to.
constexpr size_t kUnreadAnswersMax = 1024;

wire::MessageStreamOptions streamOptions(EventLoop& loop, Connection& connection) {
  const Limits& limits = loop.environment().config.limits;
  wire::MessageStreamOptions options;
  options.messageBytesMax = limits.messageBytes;
  options.readTimeout = limits.readTimeoutMs * kj::MILLISECONDS;
  options.onRefused = [&loop, &connection](kj::StringPtr reason) {
    loop.drop(connection, std::string(reason.cStr()));
  };
  options.mayRead = [&connection] { return connection.unreadAnswers() < kUnreadAnswersMax; };
  return options;
}

}  // namespace

Connection::Connection(std::shared_ptr<EventLoop> loop, int fd, std::string peer)
    : loop_(std::move(loop)), peer_(std::move(peer)) {
  wire::Socket socket = wire::wrapSocket(*loop_->io().lowLevelProvider, fd);
  socket_ = kj::mv(socket.stream);
  passesDescriptors_ = socket.descriptors != nullptr;
  wire::MessageStreamOptions options = streamOptions(*loop_, *this);
  options.descriptors = socket.descriptors;
  stream_ = kj::heap<wire::MessageStream>(*socket_, loop_->pool(), loop_->timer(), std::move(options));
  // It sends descriptors only where it may take some too; the stream takes none.
  const kj::uint descriptors = passesDescriptors_ ? 1 : 0;
  network_ = kj::heap<capnp::TwoPartyVatNetwork>(*stream_, descriptors, capnp::rpc::twoparty::Side::SERVER);
}

void Connection::open() {
  rpc_ =
      capnp::makeRpcServer(*network_, capnp::Capability::Client(kj::heap<DaemonService>(shared_from_this())));
}

void Connection::close() {
  // The RPC system uses the network, the network the stream, the stream the socket.
  rpc_ = nullptr;
  network_ = nullptr;
  stream_ = nullptr;
  socket_ = nullptr;
}

bool Connection::mayQueue() {
  return stream_ && queuedBytes() < loop_->environment().config.limits.outgoingBytes &&
         stream_->pinCount() < kPinsMax;
}

std::string Connection::endReason() {
  if (!stream_ || stream_->ended()) return "";
  return "its messages break the Cap'n Proto RPC protocol";
}

std::optional<std::string> Connection::stalled() {
  uint64_t limitMs = loop_->environment().config.limits.writeTimeoutMs;
  if (limitMs == 0 || !network_ || network_->getOutgoingMessageWaitTime() < limitMs * kj::MILLISECONDS)
    return {};
  return "it has not read its answers for limits.write_timeout_ms (" + std::to_string(limitMs) + ")";
}

}  // namespace psd
