#pragma once

#include <map>

#include <kj/async.h>

#include "common/status/status.h"
#include "server/membership/model_initialization.h"

namespace psd {

/// Parks trainers until the model is initialized; ModelInitialization selects the initializer. Owned by the
/// control loop's thread.
class InitializationGate {
 public:
  using Role = ModelInitialization::Role;

  /// The daemon starts with an initialized model.
  void skip() { start_ = ModelInitialization(true); }

  Role join(SessionId session) { return start_.join(session); }
  Role roleOf(SessionId session) const { return start_.roleOf(session); }
  /// The trainer's role; parked until it is the initializer or the model is initialized.
  kj::Promise<Result<Role>> await(SessionId session);
  /// The trainer has sent all values. False if it is not the initializer.
  bool complete(SessionId session) { return start_.complete(session); }
  /// The values are saved: all trainers may start.
  void open();
  bool complete() const { return start_.complete(); }
  bool ready() const { return start_.ready(); }
  /// A trainer has departed. If that changes the initializer, notifies and returns the new one.
  std::optional<SessionId> depart(SessionId session);
  /// Answers all parked trainers with `reason`.
  void endWaits(const Error& reason);

 private:
  void answer(SessionId session, Result<Role> role);

  ModelInitialization start_;
  std::map<SessionId, kj::Own<kj::PromiseFulfiller<Result<Role>>>> waiters_;
};

}  // namespace psd
