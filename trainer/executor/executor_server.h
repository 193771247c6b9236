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

/// The unread answers to all peers of an executor. Owned by the event loop's
/// thread.
struct ExecutorAnswers {
  uint64_t bytes() const;

  std::set<ExecutorPeer*> peers;
  kj::TimePoint shortAt = kj::origin<kj::TimePoint>();  ///< when there was last no room for one
};

/// A peer that has connected.
struct ExecutorCaller {
  std::string where;  ///< its address, as logs name it
  std::string owner;  ///< see Executor::mayJoin()
  int fd = -1;        ///< of its socket
};

/// One trainer's connection to an executor: socket, message stream and RPC system. Belongs to the event loop.
class ExecutorPeer {
 public:
  /// The others outlive it.
  ExecutorPeer(kj::AsyncIoContext& io, wire::Socket socket, ExecutorCaller caller, Executor& executor,
               std::shared_ptr<wire::BufferPool> pool, std::shared_ptr<ByteBudget> budget,
               std::shared_ptr<ExecutorAnswers> answers);
  ~ExecutorPeer() { answers_->peers.erase(this); }

  kj::Promise<void> whenDisconnected() { return network_->onDisconnect(); }
  const std::string& where() const { return caller_.where; }
  /// Of answers that it has not read.
  uint64_t queuedBytes() { return network_->getCurrentQueueSize() + stream_->heldBytes(); }
  /// Why it is to end now: it is silent, does not read its answers, or sends what is no message.
  std::optional<std::string> mustEnd(kj::TimePoint now);

 private:
  wire::MessageStreamOptions options(std::shared_ptr<ByteBudget> budget);
  Status mayAnswer();
  bool readsNothing(kj::TimePoint now);

  const ExecutorConfig& config_;
  kj::Timer& timer_;
  const ExecutorCaller caller_;
  const std::shared_ptr<ExecutorAnswers> answers_;
  std::pair<uint64_t, uint64_t> unreadBytes_;  // queued; that the peer's system has not taken
  kj::TimePoint readAt_;                       // when these last changed
  bool greeted_ = false;
  std::string refused_;  // what it sent that is no message
  uint64_t receivedBytes_ = 0;
  const kj::TimePoint cameAt_;
  kj::TimePoint heardAt_;
  kj::Own<kj::AsyncIoStream> socket_;
  kj::Own<wire::MessageStream> stream_;
  kj::Own<capnp::TwoPartyVatNetwork> network_;
  kj::Maybe<capnp::RpcSystem<capnp::rpc::twoparty::VatId>> rpc_;
  const std::shared_ptr<PeerSession> session_ = std::make_shared<PeerSession>();  // alone
};

/// Lets trainers in, and ends connections that are to end. Owned by the event loop's thread.
class ExecutorServer final : private kj::TaskSet::ErrorHandler {
 public:
  /// The others outlive it. `tls`: for addresses with TLS; null where there are none.
  ExecutorServer(kj::AsyncIoContext& io, Executor& executor, std::vector<ListenSockets> listening,
                 std::shared_ptr<const TlsContext> tls = nullptr);

  const std::vector<ListenSockets>& listening() const { return listening_; }
  /// Why nobody can connect now; nothing where somebody can.
  Status checkRoom() const;

 private:
  kj::Promise<void> accept(kj::UnixEventPort::FdObserver& observer, int listening, bool tls);
  /// Takes all that wait. False: the system is out of something.
  bool acceptWaiting(int listening, bool tls);
  /// Shakes hands, within silence_ms.
  kj::Promise<void> handshake(wire::Socket socket, ExecutorCaller caller);
  void serve(wire::Socket socket, ExecutorCaller caller);
  kj::Promise<void> sweep();
  void taskFailed(kj::Exception&& exception) override;

  kj::AsyncIoContext& io_;
  Executor& executor_;
  const std::vector<ListenSockets> listening_;
  const std::shared_ptr<const TlsContext> tls_;
  const std::shared_ptr<wire::BufferPool> pool_;
  const std::shared_ptr<ByteBudget> budget_;  // of messages that come in
  const std::shared_ptr<ExecutorAnswers> answers_ = std::make_shared<ExecutorAnswers>();
  uint64_t numbers_ = 0;
  size_t handshakes_ = 0;  // under way
  std::map<uint64_t, std::unique_ptr<ExecutorPeer>> peers_;
  kj::TaskSet tasks_;
};

}  // namespace psd
