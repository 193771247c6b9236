#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "schema/executor.capnp.h"
#include "trainer/executor/execution_session.h"

namespace psd {

/// The session of a connection. The session is closed when the connection is, even if a call is in progress.
/// Used by the event loop's thread.
class PeerSession {
 public:
  ~PeerSession() {
    if (current_) current_->close();
  }
  bool isOpen() const { return current_ && !current_->over(); }
  /// Whether a large answer may be queued for this peer; an Error if it, or all peers together, have too many
  /// unread answers.
  std::function<Status()> checkMayAnswer = [] { return Status(); };
  std::string owner;  ///< see Executor::checkOwner()
  void begin(std::shared_ptr<ExecutionSession> session) { current_ = std::move(session); }

 private:
  std::shared_ptr<ExecutionSession> current_;  // null before the first
};

/// The bootstrap interface of a connection: translates between Cap'n Proto and the trainer's session, and
/// contains no logic of its own. Used by the event loop's thread.
class ExecutorService final : public schema::Executor::Server {
 public:
  /// `executor` outlives it. `where`: the peer, human-readable. `onHello` is called after a successful
  /// hello. `session` may expire earlier, since calls in progress keep this object alive.
  ExecutorService(Executor& executor, std::string where, std::function<void()> onHello,
                  std::weak_ptr<PeerSession> session)
      : executor_(executor),
        peer_(std::move(where)),
        onHello_(std::move(onHello)),
        session_(std::move(session)) {}

 protected:
  kj::Promise<void> hello(HelloContext context) override;
  kj::Promise<void> join(JoinContext context) override;
  kj::Promise<void> status(StatusContext context) override;
  kj::Promise<void> keepAlive(KeepAliveContext) override { return kj::READY_NOW; }

 private:
  Status greeted() const;

  Executor& executor_;
  std::string peer_;  // human-readable
  const std::function<void()> onHello_;
  bool greeted_ = false;
  const std::weak_ptr<PeerSession> session_;  // expired: the connection is gone
};

}  // namespace psd
