#include "trainer/executor/executor_server.h"

#include <utility>

#include <fmt/format.h>

#include "common/log/log_line.h"
#include "common/os/peer_socket.h"
#include "common/text/quantity.h"
#include "common/text/text.h"
#include "common/tls/tls_stream.h"
#include "trainer/executor/remote/tensor_wire.h"

namespace psd {
namespace {

constexpr size_t kPooledBytesMax = 64u << 20;
constexpr uint64_t kMessagesInFlight = 8;  // of message_bytes each
constexpr uint64_t kUnfinishedCallsMax = 4096;
constexpr size_t kUnreadAnswersMax = 64;
constexpr kj::Duration kSweepEvery = 100 * kj::MILLISECONDS;
constexpr kj::Duration kAcceptPause = 100 * kj::MILLISECONDS;
constexpr uint64_t kAnswersInFlight = 16;  // of message_bytes each, to all peers together
// How long a peer may read none of its answers while others need their memory; networks may pause for a
// while.
constexpr kj::Duration kUnreadTime = 2 * kj::SECONDS;
// How long answers count as short of memory after one was refused.
constexpr kj::Duration kShortage = 500 * kj::MILLISECONDS;

}  // namespace

ExecutorPeer::ExecutorPeer(kj::AsyncIoContext& io, wire::Socket socket, ExecutorCaller caller,
                           Executor& executor, std::shared_ptr<wire::BufferPool> pool,
                           std::shared_ptr<ByteBudget> budget, std::shared_ptr<ExecutorAnswers> answers)
    : config_(executor.config()),
      timer_(io.provider->getTimer()),
      caller_(std::move(caller)),
      answers_(std::move(answers)),
      readAt_(timer_.now()),
      connectedAt_(timer_.now()),
      receivedAt_(connectedAt_) {
  session_->checkMayAnswer = [this] { return checkMayAnswer(); };
  session_->owner = caller_.owner;
  socket_ = kj::mv(socket.stream);
  stream_ = kj::heap<wire::MessageStream>(*socket_, std::move(pool), io.provider->getTimer(),
                                          options(std::move(budget)));
  network_ = kj::heap<capnp::TwoPartyVatNetwork>(*stream_, capnp::rpc::twoparty::Side::SERVER,
                                                 wire::readerOptions(config_.messageBytes));
  answers_->peers.insert(this);
  rpc_ = capnp::makeRpcServer(*network_, kj::heap<ExecutorService>(
                                             executor, caller_.where, [this] { greeted_ = true; }, session_));
}

uint64_t ExecutorAnswers::bytes() const {
  uint64_t sum = 0;
  for (ExecutorPeer* peer : peers) sum += peer->queuedBytes();
  return sum;
}

Status ExecutorPeer::checkMayAnswer() {
  const uint64_t most = 2 * config_.messageBytes, all = kAnswersInFlight * config_.messageBytes;
  if (queuedBytes() >= most) {
    return {ErrorCode::overloaded,
            fmt::format("this peer's unread answers have reached {}, twice message_bytes: read them",
                        bytesText(most))};
  }
  if (answers_->bytes() + config_.messageBytes > all) {
    answers_->shortAt = timer_.now();
    return {ErrorCode::overloaded,
            fmt::format("all peers' unread answers have reached {}, {} times message_bytes; try again",
                        bytesText(all), kAnswersInFlight)};
  }
  return {};
}

bool ExecutorPeer::hasStoppedReading(kj::TimePoint now) {
  const uint64_t queued = queuedBytes();
  const auto before =
      std::exchange(unreadBytes_, {queued, queued == 0 ? 0 : unacknowledgedBytes(caller_.fd)});
  if (queued == 0 || unreadBytes_ != before) readAt_ = now;
  return now - readAt_ >= kUnreadTime && answers_->shortAt > kj::origin<kj::TimePoint>() &&
         now - answers_->shortAt < kShortage;
}

wire::MessageStreamOptions ExecutorPeer::options(std::shared_ptr<ByteBudget> budget) {
  wire::MessageStreamOptions options;
  options.messageBytesMax = config_.messageBytes;
  options.readTimeout = config_.silence.count() * kj::MILLISECONDS;
  options.onRefused = [this](kj::StringPtr reason) { refused_ = reason.cStr(); };
  // Requests of a peer that does not read its answers are not read either.
  options.mayRead = [this] {
    return network_->getCurrentQueueCount() + stream_->heldMessages() < kUnreadAnswersMax &&
           network_->getCurrentQueueSize() < config_.messageBytes;
  };
  options.unfinishedCallsMax = kUnfinishedCallsMax;
  options.budget = std::move(budget);
  return options;
}

std::optional<std::string> ExecutorPeer::closeReason(kj::TimePoint now) {
  const kj::Duration silence = config_.silence.count() * kj::MILLISECONDS;
  if (!refused_.empty()) return refused_;
  if (const uint64_t received = stream_->receivedBytes(); received != receivedBytes_) {
    receivedBytes_ = received;
    receivedAt_ = now;
  }
  if (!greeted_ && now - connectedAt_ >= silence) return "it sent no hello within silence_ms";
  if (now - receivedAt_ >= silence) {
    return fmt::format("it sent nothing for silence_ms ({})", durationText(config_.silence));
  }
  if (kj::max(network_->getOutgoingMessageWaitTime(), stream_->writeWaitTime()) >= silence) {
    return "it left answers unread for silence_ms";
  }
  if (hasStoppedReading(now)) return "it does not read its answers, and other peers need the memory";
  return {};
}

ExecutorServer::ExecutorServer(kj::AsyncIoContext& io, Executor& executor,
                               std::vector<ListenSockets> listening, std::shared_ptr<const TlsContext> tls)
    : io_(io),
      executor_(executor),
      listening_(std::move(listening)),
      tls_(std::move(tls)),
      pool_(wire::BufferPool::make(kPooledBytesMax)),
      budget_(ByteBudget::make(kMessagesInFlight * executor.config().messageBytes)),
      tasks_(*this) {
  for (const ListenSockets& sockets : listening_) {
    for (const OwnFd& socket : sockets.sockets()) {
      auto observer = kj::heap<kj::UnixEventPort::FdObserver>(io_.unixEventPort, socket.get(),
                                                              kj::UnixEventPort::FdObserver::OBSERVE_READ);
      auto& ref = *observer;
      tasks_.add(accept(ref, socket.get(), sockets.address().tls).attach(kj::mv(observer)));
    }
  }
  tasks_.add(sweep());
}

kj::Promise<void> ExecutorServer::accept(kj::UnixEventPort::FdObserver& observer, int listening, bool tls) {
  auto next = acceptWaiting(listening, tls) ? observer.whenBecomesReadable()
                                            : io_.provider->getTimer().afterDelay(kAcceptPause);
  return next.then([this, &observer, listening, tls] { return accept(observer, listening, tls); });
}

Status ExecutorServer::checkCapacity() const {
  const size_t most = executor_.config().connections;
  if (peers_.size() + handshakes_ < most) return {};
  return {ErrorCode::overloaded, fmt::format("`connections` ({}) are open", most)};
}

bool ExecutorServer::acceptWaiting(int listening, bool tls) {
  for (;;) {
    auto accepted = acceptFrom(listening);
    if (!accepted.ok()) {
      logLine(spdlog::level::warn, {.event = "accept_failed", .limited = true},
              "cannot accept a connection: {}; trying again", accepted.message());
      return false;
    }
    if (accepted->fd.get() < 0) return true;
    if (const Status room = checkCapacity(); !room.ok()) {
      logLine(spdlog::level::warn, {.event = "connection_refused", .peer = accepted->peer, .limited = true},
              "refused {}: {}", accepted->peer, room.message());
      continue;
    }
    enableKeepAlive(accepted->fd.get(), executor_.config().silence);
    ExecutorCaller caller{std::move(accepted->peer),
                          accepted->user ? fmt::format("user {}", *accepted->user) : "", accepted->fd.get()};
    wire::Socket socket = wire::wrapSocket(*io_.lowLevelProvider, accepted->fd.release());
    if (tls) {
      tasks_.add(handshake(kj::mv(socket), std::move(caller)));
    } else {
      serve(kj::mv(socket), std::move(caller));
    }
  }
}

kj::Promise<void> ExecutorServer::handshake(wire::Socket socket, ExecutorCaller caller) {
  handshakes_++;
  const auto refused = [where = caller.where](const std::string& why) {
    logLine(spdlog::level::warn, {.event = "handshake_refused", .peer = where, .limited = true},
            "refused {}: {}", where, why);
  };
  return io_.provider->getTimer()
      .timeoutAfter(executor_.config().silence.count() * kj::MILLISECONDS,
                    TlsStream::accept(kj::mv(socket.stream), tls_))
      .then(
          [this, caller = std::move(caller), refused](Result<kj::Own<TlsStream>> stream) mutable {
            if (!stream.ok()) return refused(stream.message());
            const auto names = (*stream)->peerNames();
            const std::string name = names.empty() ? "" : printable(names.front());
            caller.where += " as '" + name + "'";
            if (!names.empty()) caller.owner = "certificate '" + name + "'";
            serve({*kj::mv(stream), nullptr}, std::move(caller));
          },
          [refused](kj::Exception&& exception) {
            const bool late = exception.getType() == kj::Exception::Type::OVERLOADED;
            refused(late ? "no TLS handshake within silence_ms"
                         : "the connection broke in the TLS handshake");
          })
      .attach(kj::defer([this] { handshakes_--; }));
}

void ExecutorServer::serve(wire::Socket socket, ExecutorCaller caller) {
  const uint64_t number = numbers_++;
  auto peer = std::make_unique<ExecutorPeer>(io_, kj::mv(socket), std::move(caller), executor_, pool_,
                                             budget_, answers_);
  tasks_.add(peer->whenDisconnected().then([this, number] {
    const auto gone = peers_.find(number);
    if (gone == peers_.end()) return;
    const std::string& where = gone->second->where();
    logLine(spdlog::level::info, {.event = "disconnected", .peer = where, .limited = true},
            "{}: disconnected", where);
    peers_.erase(gone);
  }));
  peers_.emplace(number, std::move(peer));
}

kj::Promise<void> ExecutorServer::sweep() {
  return io_.provider->getTimer().afterDelay(kSweepEvery).then([this] {
    const kj::TimePoint now = io_.provider->getTimer().now();
    std::erase_if(peers_, [&](const auto& each) {
      const auto reason = each.second->closeReason(now);
      if (reason) {
        const std::string& where = each.second->where();
        logLine(spdlog::level::warn, {.event = "dropped", .peer = where, .limited = true}, "{}: dropped: {}",
                where, *reason);
      }
      return reason.has_value();
    });
    executor_.dropIdle();
    return sweep();
  });
}

void ExecutorServer::taskFailed(kj::Exception&& exception) {
  logLine(spdlog::level::warn, {.event = "dropped", .limited = true}, "a connection ended: {}",
          exception.getDescription().cStr());
}

}  // namespace psd
