#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include "common/wire/message_stream.h"
#include "server/rpc/event_loop.h"

namespace psd {

class PullServer;
class TrainerSession;

/// One peer's connection: socket, message stream and RPC system. Used on its event loop's thread only.
///
/// Shared between the loop and the services behind it: a call in progress is not cancelled when the
/// peer goes, and its service, which may wait for other peers, goes on using the connection, closed by then.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<EventLoop> loop, int fd, std::string peer);

  /// Begins to serve.
  void open();
  /// Ends socket and RPC system; the services that no call holds go with it.
  void close();

  EventLoop& loop() { return *loop_; }

  /// "127.0.0.1:53211" or the Unix socket's path; with the peer's own words once it said hello.
  const std::string& peer() const { return peer_; }
  void setPeer(std::string name) { peer_ += " (" + std::move(name) + ")"; }

  /// Whether the peer can be given descriptors: it is on this machine, at a Unix socket.
  bool passesDescriptors() const { return passesDescriptors_; }

  kj::Promise<void> whenDisconnected() { return network_->onDisconnect(); }

  /// Bytes of answers that wait for the peer to read.
  uint64_t queuedBytes() { return network_ ? network_->getCurrentQueueSize() + stream_->heldBytes() : 0; }
  /// How many answers these are.
  size_t unreadAnswers() { return network_ ? network_->getCurrentQueueCount() + stream_->heldMessages() : 0; }
  /// Counts a call as in progress until its promise is done or dropped (limits.calls).
  kj::Promise<void> counted(kj::Promise<void> call);
  /// Does not count it as long as `waiting`, of which it is made, is not done: a call that is parked for as
  /// long as the peer likes, and of which there is one of each kind in a session.
  template <class T>
  kj::Promise<T> parked(kj::Promise<T> waiting) {
    parkedCalls_++;
    return waiting.attach(kj::defer([self = shared_from_this()] { self->parkedCalls_--; }));
  }

  /// Counts a service as one that the peer holds, which it may keep without a call, until this goes.
  std::shared_ptr<const void> holdService();
  /// Whether it may be given another one (limits.calls).
  Status mayServe() const;

  /// Counts a call as one that waits for what comes of the daemon's end, likewise.
  kj::Promise<void> untilOutcome(kj::Promise<void> call);
  /// Whether such a call is not answered yet, or its answer not read.
  bool owesOutcome() { return outcomeCalls_ > 0 || (outcomeAsked_ && queuedBytes() > 0); }

  /// Whether another call may be taken whose answer has payload (limits.outgoing_bytes).
  bool mayQueue();
  /// Counts what a call will answer as queued already, until its promise is done or dropped.
  kj::Promise<void> promising(uint64_t bytes, kj::Promise<void> call);
  /// Keeps `owner` alive until the answer that references `begin` is written.
  void pin(const void* begin, std::shared_ptr<const void> owner) {
    if (stream_) stream_->pin(begin, std::move(owner));
  }

  /// Why the RPC system ended a connection that the peer had not closed; empty when the peer did.
  std::string endReason();

  /// Looked at several times in a lease. Why this connection must end now, if it must; with an empty reason:
  /// the peer has gone. While the daemon does not listen to the connection (limits.calls,
  /// limits.in_flight_bytes) the silence is not its trainers', whose leases are renewed.
  std::optional<std::string> mustEnd();

  /// The stays of trainers over this connection, which learn when it is closed.
  void trainerCame(TrainerSession& trainer) { trainers_.insert(&trainer); }
  void trainerWent(TrainerSession& trainer) { trainers_.erase(&trainer); }
  size_t trainers() const { return trainers_.size(); }
  /// What answers pulls over this connection.
  void pullsCame(PullServer& pulls) { pulls_.insert(&pulls); }
  void pullsWent(PullServer& pulls) { pulls_.erase(&pulls); }

 private:
  wire::MessageStreamOptions streamOptions();
  bool mayRead();
  /// Counts what is queued among all connections' (limits.all_outgoing_bytes).
  void countQueued(uint64_t bytes);
  std::optional<std::string> unread();
  std::optional<std::string> standsStill();
  std::optional<std::string> forsaken();
  kj::Duration lease() const;
  /// Whether the peer shows that it lives, though nobody listens to it.
  bool livesUnheard();

  const std::shared_ptr<EventLoop> loop_;
  std::string peer_;
  std::set<TrainerSession*> trainers_;
  std::set<PullServer*> pulls_;
  bool passesDescriptors_ = false;
  size_t calls_ = 0, parkedCalls_ = 0;  // in progress; those that are parked among them
  size_t services_ = 0;
  uint64_t countedBytes_ = 0;   // of countQueued()
  uint64_t promisedBytes_ = 0;  // that calls in progress will answer
  size_t outcomeCalls_ = 0;
  bool outcomeAsked_ = false;
  bool paused_ = false;
  // As mustEnd() last saw it:
  uint64_t receivedBytes_ = 0;
  kj::TimePoint heardAt_;  // when they had changed
  unsigned quietLooks_ = 0;
  uint64_t unheardBytes_ = 0;  // in the socket
  kj::TimePoint unheardSince_;
  int fd_;
  kj::Own<kj::AsyncIoStream> socket_;
  kj::Own<wire::MessageStream> stream_;
  kj::Own<capnp::TwoPartyVatNetwork> network_;
  kj::Maybe<capnp::RpcSystem<capnp::rpc::twoparty::VatId>> rpc_;
};

}  // namespace psd
