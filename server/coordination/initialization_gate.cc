#include "server/coordination/initialization_gate.h"

#include <utility>

namespace psd {

kj::Promise<Result<ModelInitialization::Role>> InitializationGate::await(SessionId session) {
  if (ready()) return Result<Role>(Role::go);
  if (start_.initializer() == session) return Result<Role>(Role::initialize);
  auto waiter = kj::newPromiseAndFulfiller<Result<Role>>();
  waiters_[session] = kj::mv(waiter.fulfiller);
  return kj::mv(waiter.promise);
}

void InitializationGate::answer(SessionId session, Result<Role> role) {
  const auto waiter = waiters_.find(session);
  if (waiter == waiters_.end()) return;
  waiter->second->fulfill(std::move(role));
  waiters_.erase(waiter);
}

void InitializationGate::open() {
  start_.open();
  for (auto& [session, waiter] : waiters_) waiter->fulfill(Role::go);
  waiters_.clear();
}

std::optional<SessionId> InitializationGate::depart(SessionId session) {
  waiters_.erase(session);
  const auto next = start_.depart(session);
  if (next) answer(*next, Role::initialize);
  return next;
}

void InitializationGate::endWaits(const Error& reason) {
  for (auto& [session, waiter] : waiters_) waiter->fulfill(Result<Role>(reason));
  waiters_.clear();
}

}  // namespace psd
