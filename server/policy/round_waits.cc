#include "server/policy/round_waits.h"

namespace psd {

kj::Promise<Result<RoundDue>> RoundWaits::add(SessionId session, uint64_t round, const RoundState& now) {
  if (const auto due = now.of(round)) return Result<RoundDue>(*due);
  const std::lock_guard lock(mutex_);
  rounds_[session] = round;
  return calls_.add(session);
}

void RoundWaits::notify(const RoundState& now) {
  const std::lock_guard lock(mutex_);
  calls_.answerDue([&](SessionId session) { return now.of(rounds_.at(session)); });
}

void RoundWaits::forget(SessionId session) {
  const std::lock_guard lock(mutex_);
  calls_.answer(session, RoundDue::closed);
  rounds_.erase(session);
}

void RoundWaits::end(const Error& why) {
  const std::lock_guard lock(mutex_);
  calls_.end(why);
}

}  // namespace psd
