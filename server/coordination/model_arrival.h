#pragma once

#include <map>

#include <kj/async.h>

#include "common/status/status.h"
#include "server/membership/model_start.h"

namespace psd {

/// How trainers wait for the model's first values, which ModelStart has one of them bring. Owned by the
/// control loop's thread.
class ModelArrival {
 public:
  using Role = ModelStart::Role;

  /// A daemon that begins with a model that has its values.
  void skip() { start_ = ModelStart(true); }

  Role join(SessionId session) { return start_.join(session); }
  Role roleOf(SessionId session) const { return start_.roleOf(session); }
  /// Whether the trainer is to bring the values; parked until that is known or the values are there.
  kj::Promise<Result<Role>> await(SessionId session);
  /// The trainer has brought all values. False for one that was not asked for them.
  bool complete(SessionId session) { return start_.complete(session); }
  /// The values are kept: everybody may go.
  void open();
  bool complete() const { return start_.complete(); }
  bool ready() const { return start_.ready(); }
  /// A trainer is gone. Names the one that is to bring the values from now on, if that changed, and tells it.
  std::optional<SessionId> depart(SessionId session);
  /// Answers all who wait.
  void endWaits(const Error& reason);

 private:
  void answer(SessionId session, Result<Role> role);

  ModelStart start_;
  std::map<SessionId, kj::Own<kj::PromiseFulfiller<Result<Role>>>> waiters_;
};

}  // namespace psd
