#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include "common/wire/message_stream.h"
#include "server/loop/event_loop.h"
#include "server/rpc/caller.h"
#include "server/rpc/outgoing_answers.h"

namespace psd {

/// The part of a trainer's session that uses one connection, which notifies it.
class ConnectedTrainer {
 public:
  virtual ~ConnectedTrainer() noexcept(false) = default;
  /// The connection broke or was dropped.
  virtual void connectionClosed() = 0;
  /// The event loop did not read from the connection; the trainer's lease is extended by that time.
  virtual void extendLease() = 0;
  /// Whether the trainer was lost, or continues over another connection.
  virtual bool lost() const = 0;
};

/// Holds memory for a peer's next requests.
class IdleCache {
 public:
  virtual ~IdleCache() = default;
  /// Drops what has not been requested since `since`.
  virtual void dropIdle(kj::TimePoint since) = 0;
};

/// An accepted peer: its socket and what is known about it.
struct AcceptedPeer {
  int fd = -1;          ///< of `socket`, which owns it
  wire::Socket socket;  ///< connected; after the TLS handshake, if any
  Peer peer;
};

/// One peer's Cap'n Proto connection: socket, message stream and RPC system.
class Connection final : public PeerConnection, public std::enable_shared_from_this<Connection> {
 public:
  /// Creates the bootstrap capability for the peer.
  using Bootstrap = std::function<capnp::Capability::Client(std::shared_ptr<Connection>)>;

  /// `authenticator` and `answers` outlive it.
  Connection(std::shared_ptr<EventLoop> loop, AcceptedPeer acceptedPeer, const Authenticator& authenticator,
             OutgoingAnswers& answers, Bootstrap bootstrap);

  void open() override;
  void close() override;

  EventLoop& loop() { return *loop_; }

  /// "127.0.0.1:53211" or the Unix socket's path; includes the peer's self-description once it has logged in.
  const std::string& peer() const override { return caller_.described(); }

  Caller& caller() { return caller_; }
  void recheckAccess() override;

  /// Whether descriptors can be passed to the peer: it is connected over a Unix socket.
  bool passesDescriptors() const { return passesDescriptors_; }

  kj::Promise<void> whenDisconnected() override { return network_->onDisconnect(); }

  uint64_t queuedBytes() override {
    return network_ ? network_->getCurrentQueueSize() + stream_->heldBytes() : 0;
  }
  /// Number of answers counted in queuedBytes().
  size_t unreadAnswers() { return network_ ? network_->getCurrentQueueCount() + stream_->heldMessages() : 0; }
  /// Counts a call as in progress until its promise is done or dropped (limits.calls).
  kj::Promise<void> counted(kj::Promise<void> call);
  /// Excludes the surrounding call from those in progress until `waiting` is done: it may be parked
  /// indefinitely, and a session has at most one of each kind.
  template <class T>
  kj::Promise<T> parked(kj::Promise<T> waiting) {
    parkedCalls_++;
    return waiting.attach(kj::defer([self = shared_from_this()] { self->parkedCalls_--; }));
  }

  /// Counts a service as held by the peer, which needs no call in progress, until the result is dropped.
  std::shared_ptr<const void> holdService();
  /// Whether the peer may receive another service (limits.calls).
  Status mayServe() const;

  /// Counts a call as waiting for the outcome of the daemon's end until its promise is done or dropped.
  kj::Promise<void> untilOutcome(kj::Promise<void> call);
  bool owesOutcome() override { return outcomeCalls_ > 0 || (outcomeAsked_ && queuedBytes() > 0); }

  /// Memory for an answer, counted as queued until this is destroyed.
  using Reservation = std::shared_ptr<const void>;
  /// Reserves memory for an answer of up to `bytes` (limits.outgoing_bytes, limits.all_outgoing_bytes);
  /// request it before building the answer and keep it as long as the call. If none is free the call waits up
  /// to kReserveTimeout, unless kReserveWaitersMax calls of the connection already wait; then
  /// ErrorCode::overloaded.
  kj::Promise<Result<Reservation>> reserve(uint64_t bytes);
  /// Answers a call with `make()`, which may return a promise, once memory for `bytes` is reserved, or with
  /// `refuse(error)` if it cannot be.
  template <class Make, class Refuse>
  kj::Promise<void> answerWithin(uint64_t bytes, Make make, Refuse refuse) {
    return reserve(bytes).then([make = kj::mv(make), refuse = kj::mv(refuse)](
                                   Result<Reservation> room) mutable -> kj::Promise<void> {
      if (!room.ok()) {
        refuse(room.error());
        return kj::READY_NOW;
      }
      if constexpr (std::is_void_v<decltype(make())>) {
        make();
        return kj::Promise<void>(kj::READY_NOW).attach(*std::move(room));
      } else {
        return make().attach(*std::move(room));
      }
    });
  }

  /// Memory for a pull's answer that is a copy, counted like Reservation (limits.all_outgoing_bytes, of which
  /// readers' pulls leave a quarter to others). Null if none is free now. awaitCopy() waits for it; null if
  /// the connection has ended.
  Reservation tryReserveCopy(uint64_t bytes, bool isReader);
  kj::Promise<Reservation> awaitCopy(uint64_t bytes, bool isReader);
  /// Whether another call with payload in its answer may be accepted (limits.outgoing_bytes).
  bool canQueueAnswer();
  /// Counts a call's answer as queued in advance, until its promise is done or dropped.
  kj::Promise<void> countPromised(uint64_t bytes, kj::Promise<void> call);
  /// Keeps `owner` alive until the answer that references `begin` is written.
  void pin(const void* begin, std::shared_ptr<const void> owner) {
    if (stream_) stream_->pin(begin, std::move(owner));
  }

  std::string endReason() override;
  /// While the daemon does not read from the connection (limits.calls, limits.in_flight_bytes), the leases of
  /// its trainers are renewed.
  std::optional<std::string> mustEnd() override;

  void addTrainer(ConnectedTrainer& trainer) { trainers_.insert(&trainer); }
  void removeTrainer(ConnectedTrainer& trainer) { trainers_.erase(&trainer); }
  size_t trainers() const override { return trainers_.size(); }
  void addKeeper(IdleCache& keeper) { keepers_.insert(&keeper); }
  void removeKeeper(IdleCache& keeper) { keepers_.erase(&keeper); }

 private:
  wire::MessageStreamOptions streamOptions();
  bool mayRead();
  /// Updates this connection's share of the queued bytes of all connections (limits.all_outgoing_bytes).
  void countQueued(uint64_t bytes);
  /// Memory for an answer; null if none is free now.
  Reservation tryReserve(uint64_t bytes);
  kj::Promise<Result<Reservation>> awaitReservation(uint64_t bytes, kj::TimePoint until);
  Error reservationFailed() const;
  std::optional<std::string> unread();
  std::optional<std::string> hasStoppedReading();
  std::optional<std::string> stalledInMessage();
  std::optional<std::string> abandonedByTrainers();
  kj::Duration lease() const;
  /// Whether the peer shows activity although the daemon does not read from it.
  bool showsActivity();

  const std::shared_ptr<EventLoop> loop_;
  OutgoingAnswers& answers_;
  Caller caller_;
  Bootstrap bootstrap_;
  std::set<ConnectedTrainer*> trainers_;
  std::set<IdleCache*> keepers_;
  bool passesDescriptors_ = false;
  size_t calls_ = 0, parkedCalls_ = 0;  // in progress; parked ones among them
  size_t services_ = 0;
  uint64_t countedBytes_ = 0;   // counted by countQueued()
  uint64_t promisedBytes_ = 0;  // answers of calls in progress
  uint64_t reservedBytes_ = 0;  // reserved by tryReserve(), not in promisedBytes_
  size_t reserveWaiters_ = 0;
  size_t outcomeCalls_ = 0;
  bool outcomeAsked_ = false;
  bool paused_ = false;
  // As of the last mustEnd():
  uint64_t receivedBytes_ = 0;
  kj::TimePoint receivedAt_;  // last change of receivedBytes_
  unsigned stalledLooks_ = 0;
  std::pair<uint64_t, uint64_t> unreadBytes_;  // queued; not yet taken by the peer's system
  unsigned unreadLooks_ = 0;                   // consecutive looks at which these were the same
  uint64_t unreadSocketBytes_ = 0;             // unread in the socket
  kj::TimePoint pausedSince_;
  int fd_;
  kj::Own<kj::AsyncIoStream> socket_;
  kj::Own<wire::MessageStream> stream_;
  kj::Own<capnp::TwoPartyVatNetwork> network_;
  kj::Maybe<capnp::RpcSystem<capnp::rpc::twoparty::VatId>> rpc_;
};

}  // namespace psd
