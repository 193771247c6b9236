#include "server/rpc/connection.h"

#include <algorithm>

#include <kj/debug.h>

#include "common/log/log_line.h"
#include "common/os/peer_socket.h"

namespace psd {
namespace {

// More replies than any trainer's window references at once.
constexpr size_t kPinsMax = 4096;
// Clients of some languages keep answers for a while; do not disconnect them for a few.
constexpr uint64_t kUnfinishedCallsMin = 2048;  // above the largest --window
// Consecutive looks by mustEnd() without progress on a message whose memory others wait for.
constexpr unsigned kStalledLooksMax = 3;
// Consecutive looks, two seconds in total, in which a peer may read nothing while others wait for the memory
// of its answers.
constexpr unsigned kUnreadLooksMax = 8;
// Answers up to this size are covered by each connection's base memory.
constexpr uint64_t kSmallAnswerBytes = 32u << 10;
// Longer than a peer that reads nothing keeps its connection while others wait.
constexpr kj::Duration kReserveTimeout = 5 * kj::SECONDS;
constexpr kj::Duration kReserveRetry = 50 * kj::MILLISECONDS;
constexpr size_t kReserveWaitersMax = 4;

}  // namespace

Connection::Connection(std::shared_ptr<EventLoop> loop, AcceptedPeer acceptedPeer,
                       const Authenticator& authenticator, OutgoingAnswers& answers, Bootstrap bootstrap)
    : loop_(std::move(loop)),
      answers_(answers),
      caller_(std::move(acceptedPeer.peer), authenticator, loop_->now()),
      bootstrap_(std::move(bootstrap)),
      receivedAt_(loop_->now()),
      pausedSince_(receivedAt_),
      fd_(acceptedPeer.fd),
      socket_(kj::mv(acceptedPeer.socket.stream)) {
  enableKeepAlive(fd_, std::chrono::milliseconds(loop_->config().membership.leaseMs));
  passesDescriptors_ = acceptedPeer.socket.descriptors != nullptr;
  wire::MessageStreamOptions options = streamOptions();
  options.descriptors = acceptedPeer.socket.descriptors;
  stream_ = kj::heap<wire::MessageStream>(*socket_, loop_->pool(), loop_->timer(), std::move(options));
  // The network sends descriptors only if it may also receive them; the stream accepts none.
  const kj::uint descriptors = passesDescriptors_ ? 1 : 0;
  network_ = kj::heap<capnp::TwoPartyVatNetwork>(*stream_, descriptors, capnp::rpc::twoparty::Side::SERVER);
}

void Connection::open() { rpc_ = capnp::makeRpcServer(*network_, bootstrap_(shared_from_this())); }

void Connection::close() {
  // Destruction order: the RPC system uses the network, the network the stream, the stream the socket.
  countQueued(0);
  rpc_ = nullptr;
  network_ = nullptr;
  stream_ = nullptr;
  socket_ = nullptr;
  fd_ = -1;
  for (ConnectedTrainer* trainer : trainers_) trainer->connectionClosed();  // kept alive by calls in progress
}

wire::MessageStreamOptions Connection::streamOptions() {
  LoopEnvironment& environment = loop_->environment();
  const Limits& limits = loop_->config().limits;
  wire::MessageStreamOptions options;
  options.messageBytesMax = limits.messageBytes;
  options.readTimeout = limits.readTimeoutMs * kj::MILLISECONDS;
  options.onRefused = [this](kj::StringPtr reason) {
    loop_->connections().drop(*this, std::string(reason.cStr()));
  };
  options.mayRead = [this] { return mayRead(); };
  options.unfinishedCallsMax = std::max<uint64_t>(uint64_t{4} * limits.calls, kUnfinishedCallsMin);
  options.budget = environment.budgets.inFlight;
  options.spinner = &loop_->spinner();
  options.onBudgetSpent = [&environment] { environment.counters.pausedMessages.add(); };
  return options;
}

bool Connection::mayRead() {
  // Even an answer without payload, such as an error, takes some 8 KiB until it is read.
  const size_t most = loop_->config().limits.calls;
  const bool paused = calls_ - parkedCalls_ >= most;
  if (paused && !paused_) loop_->environment().counters.pausedCalls.add();
  paused_ = paused;
  countQueued(queuedBytes() + reservedBytes_);
  if (paused || unreadAnswers() >= most) return false;
  const Limits& limits = loop_->config().limits;
  // A peer that has read all its answers is not held up by peers that have not.
  return countedBytes_ == 0 || (countedBytes_ < 2 * limits.outgoingBytes &&
                                loop_->environment().budgets.outgoing < limits.allOutgoingBytes);
}

void Connection::countQueued(uint64_t bytes) {
  std::atomic<uint64_t>& all = loop_->environment().budgets.outgoing;
  all += bytes - countedBytes_;  // may wrap around, as intended
  countedBytes_ = bytes;
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

Connection::Reservation Connection::tryReserve(uint64_t bytes) {
  const uint64_t own = queuedBytes() + reservedBytes_ + promisedBytes_;
  if (own > 0 && own + bytes > loop_->config().limits.outgoingBytes) return nullptr;
  return tryReserveCopy(bytes, false);
}

Connection::Reservation Connection::tryReserveCopy(uint64_t bytes, bool isReader) {
  if (!stream_) return nullptr;
  const uint64_t own = queuedBytes() + reservedBytes_;
  countQueued(own);
  const bool small = own == 0 && bytes <= kSmallAnswerBytes;
  const uint64_t all = loop_->config().limits.allOutgoingBytes;
  if (!small && !answers_.fits(bytes, isReader ? all - all / 4 : all)) return nullptr;
  reservedBytes_ += bytes;
  countQueued(own + bytes);
  // The answer is counted as queued at the next count; until then it remains counted here.
  return {this, [self = shared_from_this(), bytes](const void*) { self->reservedBytes_ -= bytes; }};
}

kj::Promise<Connection::Reservation> Connection::awaitCopy(uint64_t bytes, bool isReader) {
  return loop_->timer()
      .afterDelay(kReserveRetry)
      .then([self = shared_from_this(), bytes, isReader]() -> kj::Promise<Reservation> {
        Reservation room = self->tryReserveCopy(bytes, isReader);
        if (!room && self->stream_) return self->awaitCopy(bytes, isReader);
        return room;
      });
}

Error Connection::reservationFailed() const {
  return {ErrorCode::overloaded,
          "unread answers have reached limits.outgoing_bytes or limits.all_outgoing_bytes; try "
          "again"};
}

kj::Promise<Result<Connection::Reservation>> Connection::reserve(uint64_t bytes) {
  if (reserveWaiters_ == 0) {
    if (Reservation room = tryReserve(bytes)) return Result<Reservation>(std::move(room));
  }
  if (!stream_ || reserveWaiters_ >= kReserveWaitersMax) {
    loop_->environment().counters.refusedOverload.add();
    return Result<Reservation>(reservationFailed());
  }
  reserveWaiters_++;
  return awaitReservation(bytes, loop_->now() + kReserveTimeout)
      .attach(kj::defer([self = shared_from_this()] { self->reserveWaiters_--; }));
}

kj::Promise<Result<Connection::Reservation>> Connection::awaitReservation(uint64_t bytes,
                                                                          kj::TimePoint until) {
  return loop_->timer()
      .afterDelay(kReserveRetry)
      .then([self = shared_from_this(), bytes, until]() -> kj::Promise<Result<Reservation>> {
        if (Reservation room = self->tryReserve(bytes)) return Result<Reservation>(std::move(room));
        if (self->stream_ && self->loop_->now() < until) return self->awaitReservation(bytes, until);
        self->loop_->environment().counters.refusedOverload.add();
        return Result<Reservation>(self->reservationFailed());
      });
}

bool Connection::canQueueAnswer() {
  return stream_ && queuedBytes() + promisedBytes_ + reservedBytes_ < loop_->config().limits.outgoingBytes &&
         stream_->pinCount() < kPinsMax;
}

kj::Promise<void> Connection::countPromised(uint64_t bytes, kj::Promise<void> call) {
  promisedBytes_ += bytes;
  return call.attach(kj::defer([self = shared_from_this(), bytes] { self->promisedBytes_ -= bytes; }));
}

std::string Connection::endReason() {
  if (!stream_ || stream_->ended() || stream_->aborted()) return "";
  return "its messages violate the Cap'n Proto RPC protocol";
}

std::optional<std::string> Connection::mustEnd() {
  if (!stream_) return {};
  const uint64_t received = stream_->receivedBytes();
  const kj::TimePoint now = loop_->now();
  if (received != receivedBytes_) receivedAt_ = now;
  stalledLooks_ = received == receivedBytes_ && !stream_->waitsForBudget() ? stalledLooks_ + 1 : 0;
  receivedBytes_ = received;
  countQueued(queuedBytes() + reservedBytes_);
  if (countedBytes_ == 0) {  // the peer may not have seen answers in transit yet
    const kj::Duration pullTimeout = loop_->config().limits.pullTimeoutMs * kj::MILLISECONDS;
    for (IdleCache* keeper : keepers_) keeper->dropIdle(now - pullTimeout);
  }
  if (caller_.expired()) recheckAccess();
  const auto loginTimeout = std::chrono::milliseconds(loop_->config().limits.loginTimeoutMs);
  if (auto reason = caller_.mustEnd(now, loginTimeout)) return reason;
  if (auto reason = unread()) return reason;
  if (auto reason = hasStoppedReading()) return reason;
  if (auto reason = stalledInMessage()) return reason;
  if (!paused_ && !stream_->waitsForBudget()) {
    pausedSince_ = now;
  } else {
    if (hasDisconnected(fd_)) return "";
    if (showsActivity()) {
      for (ConnectedTrainer* trainer : trainers_) trainer->extendLease();
    }
  }
  return abandonedByTrainers();
}

void Connection::recheckAccess() {
  if (!stream_ || !caller_.recheckAccess(loop_->now())) return;
  loop_->environment().counters.accessRevoked.add();
  logLine(spdlog::level::warn, {.event = "access", .peer = peer()}, "{}: {}", peer(),
          caller_.revoked()->message);
}

std::optional<std::string> Connection::unread() {
  const uint64_t limitMs = loop_->config().limits.writeTimeoutMs;
  const kj::Duration waited = kj::max(network_->getOutgoingMessageWaitTime(), stream_->writeWaitTime());
  if (waited < limitMs * kj::MILLISECONDS) return {};
  return "it has not read its answers for limits.write_timeout_ms (" + std::to_string(limitMs) + ")";
}

std::optional<std::string> Connection::hasStoppedReading() {
  const uint64_t queued = queuedBytes();
  const auto before = std::exchange(unreadBytes_, {queued, queued == 0 ? 0 : unacknowledgedBytes(fd_)});
  unreadLooks_ = queued > kSmallAnswerBytes && unreadBytes_ == before ? unreadLooks_ + 1 : 0;
  if (unreadLooks_ < kUnreadLooksMax) return {};
  if (!answers_.isShort()) return {};
  return "it does not read its answers while others wait for limits.all_outgoing_bytes";
}

std::optional<std::string> Connection::stalledInMessage() {
  if (stalledLooks_ < kStalledLooksMax || !stream_->holdsBudgetForMore()) return {};
  if (loop_->environment().budgets.inFlight->waiting() == 0) return {};
  return "it stalled within a message while others wait for limits.in_flight_bytes";
}

kj::Duration Connection::lease() const { return loop_->config().membership.leaseMs * kj::MILLISECONDS; }

bool Connection::showsActivity() {
  const uint64_t before = std::exchange(unreadSocketBytes_, unreadBytes(fd_));
  // The budget is granted in request order, so this wait ends, but the peer cannot shorten it.
  if (stream_->waitsForBudget() || unreadSocketBytes_ != before) return true;
  // With a full socket buffer a peer cannot show activity.
  return loop_->now() - pausedSince_ < lease();
}

std::optional<std::string> Connection::abandonedByTrainers() {
  if (trainers_.empty() || loop_->now() - receivedAt_ < lease()) return {};
  for (const ConnectedTrainer* trainer : trainers_) {
    if (!trainer->lost()) return {};
  }
  return "its trainer has departed, and nothing was received for membership.lease_ms (" +
         std::to_string(loop_->config().membership.leaseMs) + ")";
}

}  // namespace psd
