#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace psd {

/// Among calls of equal priority a backward pass runs first: it frees the memory that its forward pass holds,
/// and running it early keeps the staleness of its gradient low.
enum class CallKind { forward, backward };

/// As in logs, metrics and the status JSON.
constexpr std::string_view nameOf(CallKind kind) {
  return kind == CallKind::forward ? "forward" : "backward";
}

/// A priority queue of calls. The order is: priority, which rises by one for each `age` that a call has
/// waited, so that no call starves; then backward before forward; then order of arrival. Not thread-safe.
template <class Payload>
class CallQueue {
 public:
  using Clock = std::chrono::steady_clock;

  struct Call {
    int8_t priority = 0;
    CallKind kind = CallKind::forward;
    Clock::time_point since;
    uint64_t arrival = 0;  ///< set by the queue
    Payload payload;
  };

  explicit CallQueue(std::chrono::milliseconds age) : age_(age) {}

  bool empty() const { return calls_.empty(); }
  size_t size() const { return calls_.size(); }
  void add(Call call) {
    call.arrival = arrivals_++;
    calls_.push_back(std::move(call));
  }
  /// Removes and returns the next call as of `now`. The queue must not be empty.
  Call take(Clock::time_point now) {
    const size_t next = nextOf(now);
    Call call = std::move(calls_[next]);
    calls_.erase(calls_.begin() + static_cast<ptrdiff_t>(next));
    return call;
  }
  /// All calls, in the order in which take() would return them at `now`.
  std::vector<const Call*> inOrder(Clock::time_point now) const {
    std::vector<const Call*> calls;
    for (const Call& call : calls_) calls.push_back(&call);
    std::sort(calls.begin(), calls.end(),
              [&](const Call* one, const Call* other) { return before(*one, *other, now); });
    return calls;
  }
  /// Empties the queue and returns its calls, so that the caller can notify their waiters.
  std::vector<Call> drain() { return std::exchange(calls_, {}); }

 private:
  int64_t urgency(const Call& call, Clock::time_point now) const {
    return call.priority + (now - call.since) / age_;
  }
  bool before(const Call& one, const Call& other, Clock::time_point now) const {
    const int64_t mine = urgency(one, now), its = urgency(other, now);
    if (mine != its) return mine > its;
    if (one.kind != other.kind) return one.kind == CallKind::backward;
    return one.arrival < other.arrival;
  }
  size_t nextOf(Clock::time_point now) const {
    size_t next = 0;
    for (size_t i = 1; i < calls_.size(); i++) {
      if (before(calls_[i], calls_[next], now)) next = i;
    }
    return next;
  }

  const std::chrono::milliseconds age_;
  uint64_t arrivals_ = 0;
  std::vector<Call> calls_;
};

}  // namespace psd
