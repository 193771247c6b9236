#pragma once

#include <map>
#include <optional>

#include <kj/async.h>

#include "common/status/status.h"
#include "common/types/ids.h"

namespace psd {

/// Calls of trainers that wait to be told something, one of each session at most. The mutex of whoever owns
/// it guards it; promises are for the loops that the calls came on.
template <class T>
class ParkedCalls {
 public:
  /// Ends a call of the session's from before (ErrorCode::notReady).
  kj::Promise<Result<T>> add(SessionId session) {
    if (ended_) return Result<T>(*ended_);
    answer(session, Error{ErrorCode::notReady, "a newer call has taken its place"});
    auto call = kj::newPromiseAndCrossThreadFulfiller<Result<T>>();
    calls_.emplace(session, kj::mv(call.fulfiller));
    return kj::mv(call.promise);
  }
  /// Nothing where none waits.
  void answer(SessionId session, const Result<T>& with) {
    if (auto call = calls_.extract(session)) call.mapped()->fulfill(Result<T>(with));
  }
  void answerAll(const Result<T>& with) {
    for (auto& [session, call] : calls_) call->fulfill(Result<T>(with));
    calls_.clear();
  }
  /// `due(session)` gives what a call is told now, as std::optional<T>; nothing: it waits on.
  template <class Due>
  void answerDue(const Due& due) {
    for (auto call = calls_.begin(); call != calls_.end();) {
      const std::optional<T> told = due(call->first);
      if (told) call->second->fulfill(Result<T>(*told));
      call = told ? calls_.erase(call) : std::next(call);
    }
  }
  /// Answers all, and those that come after.
  void end(const Error& why) {
    ended_ = why;
    answerAll(why);
  }

 private:
  std::map<SessionId, kj::Own<kj::CrossThreadPromiseFulfiller<Result<T>>>> calls_;
  std::optional<Error> ended_;
};

}  // namespace psd
