#include "server/rpc/connection.h"

#include <kj/debug.h>
#include <spdlog/spdlog.h>

#include "server/rpc/daemon_service.h"
#include "server/rpc/trainer_session.h"

namespace psd {
namespace {

// More replies than any trainer's window keeps referenced at once.
constexpr size_t kPinsMax = 4096;

}  // namespace

Connection::Connection(std::shared_ptr<EventLoop> loop, int fd, std::string peer)
    : loop_(std::move(loop)), peer_(std::move(peer)) {
  wire::Socket socket = wire::wrapSocket(*loop_->io().lowLevelProvider, fd);
  socket_ = kj::mv(socket.stream);
  passesDescriptors_ = socket.descriptors != nullptr;
  wire::MessageStreamOptions options = streamOptions();
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
  for (TrainerSession* trainer : trainers_) trainer->connectionClosed();  // that calls in progress keep
}

wire::MessageStreamOptions Connection::streamOptions() {
  LoopEnvironment& environment = loop_->environment();
  const Limits& limits = loop_->config().limits;
  wire::MessageStreamOptions options;
  options.messageBytesMax = limits.messageBytes;
  options.readTimeout = limits.readTimeoutMs * kj::MILLISECONDS;
  options.onRefused = [this](kj::StringPtr reason) { loop_->drop(*this, std::string(reason.cStr())); };
  options.mayRead = [this] { return mayRead(); };
  options.budget = environment.inFlight;
  options.spinner = &loop_->spinner();
  options.onBudgetSpent = [&environment] { environment.counters.pausedBytes.add(); };
  return options;
}

bool Connection::mayRead() {
  // Even an answer without payload, a refusal say, takes some 8 KiB until it is read.
  size_t most = loop_->config().limits.calls;
  bool may = unreadAnswers() < most && calls_ < most;
  if (!may && !paused_) loop_->environment().counters.pausedCalls.add();
  paused_ = !may;
  return may;
}

void Connection::excuseSilence() {
  if (!paused_ && !(stream_ && stream_->waitsForBudget())) return;
  for (const auto& trainer : trainers_) trainer->excuseSilence();
}

kj::Promise<void> Connection::counted(kj::Promise<void> call) {
  calls_++;
  return call.attach(kj::defer([self = shared_from_this()] { self->calls_--; }));
}

std::shared_ptr<const void> Connection::holdService() {
  services_++;
  return {nullptr, [self = shared_from_this()](const void*) { self->services_--; }};
}

Status Connection::mayServe() const {
  const size_t most = loop_->config().limits.calls;
  if (services_ < most) return {};
  return {ErrorCode::overloaded, "this connection holds " + std::to_string(services_) +
                                     " capabilities; limits.calls allows " + std::to_string(most)};
}

kj::Promise<void> Connection::untilOutcome(kj::Promise<void> call) {
  outcomeCalls_++;
  outcomeAsked_ = true;
  return call.attach(kj::defer([self = shared_from_this()] { self->outcomeCalls_--; }));
}

bool Connection::mayQueue() {
  return stream_ && queuedBytes() + promisedBytes_ < loop_->config().limits.outgoingBytes &&
         stream_->pinCount() < kPinsMax;
}

kj::Promise<void> Connection::promising(uint64_t bytes, kj::Promise<void> call) {
  promisedBytes_ += bytes;
  return call.attach(kj::defer([self = shared_from_this(), bytes] { self->promisedBytes_ -= bytes; }));
}

std::string Connection::endReason() {
  if (!stream_ || stream_->ended() || stream_->aborted()) return "";
  return "its messages break the Cap'n Proto RPC protocol";
}

std::optional<std::string> Connection::stalled() {
  uint64_t limitMs = loop_->config().limits.writeTimeoutMs;
  if (limitMs == 0 || !network_) return {};
  kj::Duration waited = kj::max(network_->getOutgoingMessageWaitTime(), stream_->writeWaitTime());
  if (waited < limitMs * kj::MILLISECONDS) return {};
  return "it has not read its answers for limits.write_timeout_ms (" + std::to_string(limitMs) + ")";
}

}  // namespace psd
