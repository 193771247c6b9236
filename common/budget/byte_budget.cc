#include "common/budget/byte_budget.h"

#include <algorithm>
#include <vector>

#include <kj/common.h>

namespace psd {

bool ByteBudget::takeNow(uint64_t bytes) {
  const uint64_t most = bytesMax();
  uint64_t used = used_.load();
  do {
    if (bytes > most || used > most - bytes) return false;
  } while (!used_.compare_exchange_weak(used, used + bytes));
  return true;
}

std::optional<ByteBudget::Lease> ByteBudget::tryTake(uint64_t bytes) {
  if (waiting() > 0 || !takeNow(bytes)) return {};
  return Lease(shared_from_this(), bytes);
}

kj::Promise<ByteBudget::Lease> ByteBudget::take(uint64_t bytes) {
  auto pair = kj::newPromiseAndCrossThreadFulfiller<Lease>();
  uint64_t turn = 0;
  {
    const std::lock_guard lock(mutex_);
    turn = ++turns_;
    waiters_.push_back({turn, bytes, kj::mv(pair.fulfiller)});
    waiting_++;
  }
  serve();  // for bytes that were returned before this waiter was counted
  return pair.promise.attach(kj::defer([self = shared_from_this(), turn] { self->cancel(turn); }));
}

void ByteBudget::cancel(uint64_t turn) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(waiters_.begin(), waiters_.end(),
                                    [&](const Waiter& waiter) { return waiter.turn == turn; });
    if (found == waiters_.end()) return;  // already served
    waiters_.erase(found);
    waiting_--;
  }
  serve();
}

void ByteBudget::setBytesMax(uint64_t bytes) {
  bytesMax_ = bytes;
  if (waiting() > 0) serve();
}

void ByteBudget::release(uint64_t bytes) {
  used_.fetch_sub(bytes);
  if (waiting() > 0) serve();
}

void ByteBudget::serve() {
  std::vector<std::pair<Waiter, Lease>> served;
  {
    const std::lock_guard lock(mutex_);
    while (!waiters_.empty()) {
      Waiter& first = waiters_.front();
      if (first.fulfiller->isWaiting()) {
        const uint64_t bytes = std::min(first.bytes, bytesMax());
        if (!takeNow(bytes)) break;
        served.emplace_back(std::move(first), Lease(shared_from_this(), bytes));
      }
      waiters_.pop_front();
      waiting_--;
    }
  }
  // Without the mutex: a waiter that is dropped at this moment returns its lease at once.
  for (auto& [waiter, lease] : served) waiter.fulfiller->fulfill(std::move(lease));
}

}  // namespace psd
