#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "schema/executor.capnp.h"
#include "trainer/executor/execution_session.h"

namespace psd {

/// The session of a connection, which ends with it, whatever call of it is under way. Belongs to the event
/// loop.
class PeerSession {
 public:
  ~PeerSession() {
    if (current_) current_->close();
  }
  bool isOpen() const { return current_ && !current_->over(); }
  /// Why no large answer may be queued for the peer, which does not read, or for any; nothing where one may.
  std::function<Status()> mayAnswer = [] { return Status(); };
  std::string owner;  ///< see Executor::mayJoin()
  void begin(std::shared_ptr<ExecutionSession> session) { current_ = std::move(session); }

 private:
  std::shared_ptr<ExecutionSession> current_;  // null before the first
};

/// What a connection begins with: translates between Cap'n Proto and the session of its trainer, and decides
/// nothing. Belongs to the event loop.
class ExecutorService final : public schema::Executor::Server {
 public:
  /// `executor` outlives it. `where`: the peer, for people. `saidHello` is called when it has. `session` may
  /// go before it, as calls keep it.
  ExecutorService(Executor& executor, std::string where, std::function<void()> saidHello,
                  std::weak_ptr<PeerSession> session)
      : executor_(executor),
        peer_(std::move(where)),
        saidHello_(std::move(saidHello)),
        session_(std::move(session)) {}

 protected:
  kj::Promise<void> hello(HelloContext context) override;
  kj::Promise<void> join(JoinContext context) override;
  kj::Promise<void> status(StatusContext context) override;
  kj::Promise<void> keepAlive(KeepAliveContext) override { return kj::READY_NOW; }

 private:
  Status greeted() const;

  Executor& executor_;
  std::string peer_;  // for people
  const std::function<void()> saidHello_;
  bool greeted_ = false;
  const std::weak_ptr<PeerSession> session_;  // expired: the connection is gone
};

}  // namespace psd
