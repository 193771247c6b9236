#include "trainer/client/client_lock.h"

#include <algorithm>

namespace psd {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kKeepWaitingInterval{50};

}  // namespace

bool ClientLock::await(const std::function<bool(milliseconds)>& readyWithin,
                       const std::function<void()>& waitsLong) {
  const Outside outside(mutex_);
  const milliseconds interval = keepWaiting_ ? kKeepWaitingInterval : kLongWait;
  const Clock::time_point longWait = Clock::now() + kLongWait;
  for (bool reported = waitsLong == nullptr; !readyWithin(interval);) {
    if (!keepWaiting()) return false;
    if (reported || Clock::now() < longWait) continue;
    waitsLong();
    reported = true;
  }
  return true;
}

bool ClientLock::pause(milliseconds time) {
  const Outside outside(mutex_);
  const Clock::time_point end = Clock::now() + time;
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
    if (left.count() <= 0) return true;
    std::this_thread::sleep_for(keepWaiting_ ? std::min(left, kKeepWaitingInterval) : left);
    if (!keepWaiting()) return false;
  }
}

bool ClientLock::awaitChange(const std::function<bool()>& condition) {
  while (!condition()) {
    std::unique_lock lock(mutex_, std::adopt_lock);
    // Not wait(), for which gcc 12 emits a symbol that libstdc++ 11 lacks.
    changed_.wait_until(lock, Clock::now() + (keepWaiting_ ? kKeepWaitingInterval : kLongWait));
    lock.release();
    if (condition()) break;
    if (!outside([this] { return keepWaiting(); })) return false;
  }
  return true;
}

Status ClientLock::awaitTurn() {
  if (awaitChange([this] { return !alone_ || isAlone(); })) return {};
  return waitEndedError();
}

Status ClientLock::enter(Turn turn) {
  mutex_.lock();
  threads_++;
  if (turn == Turn::any) return {};
  if (isAlone() || isWithinCallback()) {
    return {ErrorCode::invalidArgument, "this client is called from within a callback of its own"};
  }
  return awaitTurn();
}

bool ClientLock::isWithinCallback() const {
  const WithinCallback* within = WithinCallback::innermost;
  while (within != nullptr && &within->lock != this) within = within->outer;
  return within != nullptr;
}

void ClientLock::leave() {
  threads_--;
  changed_.notify_all();  // before the lock may be destroyed
  mutex_.unlock();
}

Status ClientLock::becomeAlone() {
  PSD_RETURN_IF_ERROR(awaitTurn());
  alone_ = std::this_thread::get_id();
  return {};
}

void ClientLock::endAlone() {
  alone_.reset();
  changed_.notify_all();
}

}  // namespace psd
