#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>
#include <kj/async-unix.h>

#include "common/os/socket.h"
#include "common/tls/tls_context.h"
#include "common/wire/message_stream.h"
#include "trainer/executor/executor.h"
#include "trainer/executor/executor_service.h"

namespace psd {

class ExecutorPeer;

/// The unread answers to all peers of an executor. Owned by the event loop's thread.
struct ExecutorAnswers {
  uint64_t bytes() const;

  std::set<ExecutorPeer*> peers;
  kj::TimePoint shortAt = kj::origin<kj::TimePoint>();  ///< when an answer last exceeded the limit of all
};

/// The identity of a connected peer.
struct ExecutorCaller {
  std::string where;  ///< its address, as in logs
  std::string owner;  ///< see Executor::checkOwner()
  int fd = -1;        ///< its socket
};

/// One trainer's connection to an executor: socket, message stream and RPC system. Used by the event loop's
/// thread.
class ExecutorPeer {
 public:
  /// `io` and `executor` outlive it.
  ExecutorPeer(kj::AsyncIoContext& io, wire::Socket socket, ExecutorCaller caller, Executor& executor,
               std::shared_ptr<wire::BufferPool> pool, std::shared_ptr<ByteBudget> budget,
               std::shared_ptr<ExecutorAnswers> answers);
  ~ExecutorPeer() { answers_->peers.erase(this); }

  kj::Promise<void> whenDisconnected() { return network_->onDisconnect(); }
  const std::string& where() const { return caller_.where; }
  /// Bytes of answers that the peer has not read.
  uint64_t queuedBytes() { return network_->getCurrentQueueSize() + stream_->heldBytes(); }
  /// Why the connection must be closed now (idle, unread answers, or malformed input); nothing if it need
  /// not.
  std::optional<std::string> closeReason(kj::TimePoint now);

 private:
  wire::MessageStreamOptions options(std::shared_ptr<ByteBudget> budget);
  Status checkMayAnswer();
  bool hasStoppedReading(kj::TimePoint now);

  const ExecutorConfig& config_;
  kj::Timer& timer_;
  const ExecutorCaller caller_;
  const std::shared_ptr<ExecutorAnswers> answers_;
  std::pair<uint64_t, uint64_t> unreadBytes_;  // queued here; sent but not acknowledged by the peer's kernel
  kj::TimePoint readAt_;                       // when unreadBytes_ last changed
  bool greeted_ = false;
  std::string refused_;  // what was malformed in its input
  uint64_t receivedBytes_ = 0;
  const kj::TimePoint connectedAt_;
  kj::TimePoint receivedAt_;
  kj::Own<kj::AsyncIoStream> socket_;
  kj::Own<wire::MessageStream> stream_;
  kj::Own<capnp::TwoPartyVatNetwork> network_;
  kj::Maybe<capnp::RpcSystem<capnp::rpc::twoparty::VatId>> rpc_;
  const std::shared_ptr<PeerSession> session_ = std::make_shared<PeerSession>();  // the only owner
};

/// Accepts connections of trainers, and closes those that ExecutorPeer::closeReason() names. Owned by the
/// event loop's thread.
class ExecutorServer final : private kj::TaskSet::ErrorHandler {
 public:
  /// `io` and `executor` outlive it. `tls`: for addresses with TLS; null if there are none.
  ExecutorServer(kj::AsyncIoContext& io, Executor& executor, std::vector<ListenSockets> listening,
                 std::shared_ptr<const TlsContext> tls = nullptr);

  const std::vector<ListenSockets>& listening() const { return listening_; }
  /// Ok if another peer can connect.
  Status checkCapacity() const;

 private:
  kj::Promise<void> accept(kj::UnixEventPort::FdObserver& observer, int listening, bool tls);
  /// Accepts all pending connections. False: accept() failed, as when descriptors are exhausted.
  bool acceptWaiting(int listening, bool tls);
  /// Does the TLS handshake, within silence_ms.
  kj::Promise<void> handshake(wire::Socket socket, ExecutorCaller caller);
  void serve(wire::Socket socket, ExecutorCaller caller);
  kj::Promise<void> sweep();
  void taskFailed(kj::Exception&& exception) override;

  kj::AsyncIoContext& io_;
  Executor& executor_;
  const std::vector<ListenSockets> listening_;
  const std::shared_ptr<const TlsContext> tls_;
  const std::shared_ptr<wire::BufferPool> pool_;
  const std::shared_ptr<ByteBudget> budget_;  // of incoming messages
  const std::shared_ptr<ExecutorAnswers> answers_ = std::make_shared<ExecutorAnswers>();
  uint64_t numbers_ = 0;
  size_t handshakes_ = 0;  // in progress
  std::map<uint64_t, std::unique_ptr<ExecutorPeer>> peers_;
  kj::TaskSet tasks_;
};

}  // namespace psd
