#pragma once

#include <functional>
#include <memory>
#include <string>

#include "schema/executor.capnp.h"
#include "trainer/executor/execution_session.h"

namespace psd {

/// What a connection begins with: translates between Cap'n Proto and the session of its trainer, and decides
/// nothing. Belongs to the event loop.
class ExecutorService final : public schema::Executor::Server {
 public:
  /// `executor` outlives it. `where`: the peer, for people. `saidHello` is called when it has.
  ExecutorService(Executor& executor, std::string where, std::function<void()> saidHello)
      : executor_(executor), peer_(std::move(where)), saidHello_(std::move(saidHello)) {}
  /// The connection is gone: the session with it.
  ~ExecutorService() noexcept(false);

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
  std::shared_ptr<ExecutionSession> session_;
};

}  // namespace psd
