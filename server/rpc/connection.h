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

/// A trainer's session as far as it goes over one connection, which tells it how it fares.
class ConnectedTrainer {
 public:
  virtual ~ConnectedTrainer() noexcept(false) = default;
  /// The peer is gone, or dropped.
  virtual void connectionClosed() = 0;
  /// The daemon has not listened to the connection: silence is not the trainer's.
  virtual void excuseSilence() = 0;
  /// Whether the trainer counts as lost, or goes on over another connection.
  virtual bool lost() const = 0;
};

/// Something that keeps memory for what a peer is to ask for next.
class IdleKeeper {
 public:
  virtual ~IdleKeeper() = default;
  /// Lets go of what nobody has asked for since then.
  virtual void letGoOfIdle(kj::TimePoint since) = 0;
};

/// A peer that has come in: its socket, and what that tells of who it is.
struct Entrant {
  int fd = -1;          ///< of `socket`, which owns it
  wire::Socket socket;  ///< a connected one, after its TLS handshake where it has one
  Peer peer;
};

/// One peer's connection over Cap'n Proto: socket, message stream and RPC system.
class Connection final : public PeerConnection, public std::enable_shared_from_this<Connection> {
 public:
  /// Makes the capability that the peer begins with.
  using Bootstrap = std::function<capnp::Capability::Client(std::shared_ptr<Connection>)>;

  /// `authenticator` and `answers` outlive it.
  Connection(std::shared_ptr<EventLoop> loop, Entrant entrant, const Authenticator& authenticator,
             OutgoingAnswers& answers, Bootstrap bootstrap);

  void open() override;
  void close() override;

  EventLoop& loop() { return *loop_; }

  /// "127.0.0.1:53211" or the Unix socket's path; with the peer's own words once it has logged in.
  const std::string& peer() const override { return caller_.described(); }

  Caller& caller() { return caller_; }
  void lookAtAccess() override;

  /// Whether the peer can be given descriptors: it is on this machine, at a Unix socket.
  bool passesDescriptors() const { return passesDescriptors_; }

  kj::Promise<void> whenDisconnected() override { return network_->onDisconnect(); }

  uint64_t queuedBytes() override {
    return network_ ? network_->getCurrentQueueSize() + stream_->heldBytes() : 0;
  }
  /// How many answers queuedBytes() is made of.
  size_t unreadAnswers() { return network_ ? network_->getCurrentQueueCount() + stream_->heldMessages() : 0; }
  /// Counts a call as in progress until its promise is done or dropped (limits.calls).
  kj::Promise<void> counted(kj::Promise<void> call);
  /// Takes a call out of those in progress until `waiting`, of which it is made, is done: it is parked for as
  /// long as the peer likes, and a session has one of each kind.
  template <class T>
  kj::Promise<T> parked(kj::Promise<T> waiting) {
    parkedCalls_++;
    return waiting.attach(kj::defer([self = shared_from_this()] { self->parkedCalls_--; }));
  }

  /// Counts a service as one that the peer holds, which it may keep without a call, until the result goes.
  std::shared_ptr<const void> holdService();
  /// Whether the peer may be given another service (limits.calls).
  Status mayServe() const;

  /// Counts a call as one that waits for what comes of the daemon's end until its promise is done or dropped.
  kj::Promise<void> untilOutcome(kj::Promise<void> call);
  bool owesOutcome() override { return outcomeCalls_ > 0 || (outcomeAsked_ && queuedBytes() > 0); }

  /// Memory for an answer, counted as queued until this is destroyed.
  using Room = std::shared_ptr<const void>;
  /// Room for an answer of up to `bytes` (limits.outgoing_bytes, limits.all_outgoing_bytes), to be asked for
  /// before it is made and kept as long as its call. If there is none the call waits up to kRoomWait, unless
  /// kRoomWaitersMax calls of the connection do; then `overloaded`.
  kj::Promise<Result<Room>> roomFor(uint64_t bytes);
  /// Has `make()`, which may promise something, answer a call once there is room for `bytes`, and
  /// `refuse(error)` where there is none.
  template <class Make, class Refuse>
  kj::Promise<void> answerWithin(uint64_t bytes, Make make, Refuse refuse) {
    return roomFor(bytes).then(
        [make = kj::mv(make), refuse = kj::mv(refuse)](Result<Room> room) mutable -> kj::Promise<void> {
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

  /// Memory for a pull's answer that is a copy, counted as Room is (limits.all_outgoing_bytes, of which pulls
  /// of readers leave a quarter to others). Null: there is none now. awaitShare() waits for it; null there:
  /// the connection has ended.
  Room takeShare(uint64_t bytes, bool ofReader);
  kj::Promise<Room> awaitShare(uint64_t bytes, bool ofReader);
  /// Whether another call may be taken whose answer has payload (limits.outgoing_bytes).
  bool mayQueue();
  /// Counts what a call will answer as queued already, until its promise is done or dropped.
  kj::Promise<void> promising(uint64_t bytes, kj::Promise<void> call);
  /// Keeps `owner` alive until the answer that references `begin` is written.
  void pin(const void* begin, std::shared_ptr<const void> owner) {
    if (stream_) stream_->pin(begin, std::move(owner));
  }

  std::string endReason() override;
  /// While the daemon does not listen to the connection (limits.calls, limits.in_flight_bytes) the silence is
  /// not its trainers', whose leases are renewed.
  std::optional<std::string> mustEnd() override;

  void trainerCame(ConnectedTrainer& trainer) { trainers_.insert(&trainer); }
  void trainerWent(ConnectedTrainer& trainer) { trainers_.erase(&trainer); }
  size_t trainers() const override { return trainers_.size(); }
  void keeperCame(IdleKeeper& keeper) { keepers_.insert(&keeper); }
  void keeperWent(IdleKeeper& keeper) { keepers_.erase(&keeper); }

 private:
  wire::MessageStreamOptions streamOptions();
  bool mayRead();
  /// Counts what is queued among all connections' (limits.all_outgoing_bytes).
  void countQueued(uint64_t bytes);
  /// Room for an answer; null: there is none now.
  Room takeRoom(uint64_t bytes);
  kj::Promise<Result<Room>> awaitRoom(uint64_t bytes, kj::TimePoint until);
  Error noRoom() const;
  std::optional<std::string> unread();
  std::optional<std::string> readsNothing();
  std::optional<std::string> standsStill();
  std::optional<std::string> forsaken();
  kj::Duration lease() const;
  /// Whether the peer shows that it lives, though nobody listens to it.
  bool livesUnheard();

  const std::shared_ptr<EventLoop> loop_;
  OutgoingAnswers& answers_;
  Caller caller_;
  Bootstrap bootstrap_;
  std::set<ConnectedTrainer*> trainers_;
  std::set<IdleKeeper*> keepers_;
  bool passesDescriptors_ = false;
  size_t calls_ = 0, parkedCalls_ = 0;  // in progress; those that are parked among them
  size_t services_ = 0;
  uint64_t countedBytes_ = 0;   // of countQueued()
  uint64_t promisedBytes_ = 0;  // bytes that calls in progress will answer
  uint64_t roomBytes_ = 0;      // of takeRoom(), apart from promisedBytes_
  size_t roomWaiters_ = 0;
  size_t outcomeCalls_ = 0;
  bool outcomeAsked_ = false;
  bool paused_ = false;
  // As mustEnd() last saw it:
  uint64_t receivedBytes_ = 0;
  kj::TimePoint heardAt_;  // when receivedBytes_ had changed
  unsigned quietLooks_ = 0;
  std::pair<uint64_t, uint64_t> unreadBytes_;  // queued; that the peer's system has not taken
  unsigned unreadLooks_ = 0;                   // in a row at which these were the same
  uint64_t unheardBytes_ = 0;                  // in the socket
  kj::TimePoint unheardSince_;
  int fd_;
  kj::Own<kj::AsyncIoStream> socket_;
  kj::Own<wire::MessageStream> stream_;
  kj::Own<capnp::TwoPartyVatNetwork> network_;
  kj::Maybe<capnp::RpcSystem<capnp::rpc::twoparty::VatId>> rpc_;
};

}  // namespace psd
