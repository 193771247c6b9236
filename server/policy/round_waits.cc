#include "server/policy/round_waits.h"

#include <utility>

namespace psd {

kj::Promise<Result<RoundDue>> RoundWaits::add(SessionId session, uint64_t round, const RoundStanding& now) {
  if (const auto due = now.of(round)) return Result<RoundDue>(*due);
  auto answer = kj::newPromiseAndCrossThreadFulfiller<Result<RoundDue>>();
  const std::lock_guard lock(mutex_);
  if (ended_) return Result<RoundDue>(*ended_);
  Wait& wait = waits_[session];
  if (wait.answer) {
    wait.answer->fulfill(Result<RoundDue>(ErrorCode::notReady, "the trainer has asked again"));
  }
  wait = {round, kj::mv(answer.fulfiller)};
  return kj::mv(answer.promise);
}

void RoundWaits::tell(const RoundStanding& now) {
  const std::lock_guard lock(mutex_);
  for (auto wait = waits_.begin(); wait != waits_.end();) {
    const auto due = now.of(wait->second.round);
    if (due) wait->second.answer->fulfill(Result<RoundDue>(*due));
    wait = due ? waits_.erase(wait) : std::next(wait);
  }
}

void RoundWaits::forget(SessionId session) {
  const std::lock_guard lock(mutex_);
  const auto found = waits_.find(session);
  if (found == waits_.end()) return;
  found->second.answer->fulfill(Result<RoundDue>(RoundDue::closed));
  waits_.erase(found);
}

void RoundWaits::end(const Error& why) {
  const std::lock_guard lock(mutex_);
  ended_ = why;
  for (auto& [session, wait] : waits_) wait.answer->fulfill(Result<RoundDue>(why));
  waits_.clear();
}

}  // namespace psd
