#pragma once

#include <map>
#include <optional>

#include <kj/async.h>

#include "common/status/status.h"
#include "common/types/ids.h"

namespace psd {

/// Parked calls of trainers, at most one per session. Guarded by the owner's mutex; each promise belongs to
/// the event loop that called add().
template <class T>
class ParkedCalls {
 public:
  /// Parks a call. A previous call of the session fails with ErrorCode::notReady.
  kj::Promise<Result<T>> add(SessionId session) {
    if (ended_) return Result<T>(*ended_);
    answer(session, Error{ErrorCode::notReady, "superseded by a newer call"});
    auto call = kj::newPromiseAndCrossThreadFulfiller<Result<T>>();
    calls_.emplace(session, kj::mv(call.fulfiller));
    return kj::mv(call.promise);
  }
  /// Does nothing if the session has no parked call.
  void answer(SessionId session, const Result<T>& with) {
    if (auto call = calls_.extract(session)) call.mapped()->fulfill(Result<T>(with));
  }
  void answerAll(const Result<T>& with) {
    for (auto& [session, call] : calls_) call->fulfill(Result<T>(with));
    calls_.clear();
  }
  /// Answers each call for which `due(session)`, a std::optional<T>, has a value; the others stay parked.
  template <class Due>
  void answerDue(const Due& due) {
    for (auto call = calls_.begin(); call != calls_.end();) {
      const std::optional<T> answered = due(call->first);
      if (answered) call->second->fulfill(Result<T>(*answered));
      call = answered ? calls_.erase(call) : std::next(call);
    }
  }
  /// Fails all parked and future calls with `why`.
  void end(const Error& why) {
    ended_ = why;
    answerAll(why);
  }

 private:
  std::map<SessionId, kj::Own<kj::CrossThreadPromiseFulfiller<Result<T>>>> calls_;
  std::optional<Error> ended_;
};

}  // namespace psd
