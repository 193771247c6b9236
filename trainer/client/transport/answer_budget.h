#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include <kj/async.h>

namespace psd {

/// Limits the bytes of outstanding answers to all pulls of a connection, so that the daemon, which buffers
/// them, never refuses one. Calls start in FIFO order; a call above the limit starts when nothing else is
/// outstanding. Belongs to one event loop; calls may outlive it.
class AnswerBudget {
 public:
  /// 0: no limit. Applies from the next call on.
  void setBytes(uint64_t bytes) { state_->limit = bytes; }
  uint64_t underWay() const { return state_->underWay; }

  /// Runs `send()` when an answer of `bytes` fits the limit, immediately if it does now and no call waits,
  /// and returns its promise.
  template <class Send>
  auto call(uint64_t bytes, Send send) -> decltype(send()) {
    bytes += kEnvelopeBytes;
    if (state_->waiting.empty() && state_->fits(bytes)) {
      auto lease = kj::heap<Lease>(state_, bytes);
      return kj::evalNow(std::move(send)).attach(kj::mv(lease));
    }
    auto turn = kj::newPromiseAndFulfiller<kj::Own<Lease>>();
    state_->waiting.push_back({bytes, kj::mv(turn.fulfiller)});
    return turn.promise.then([send = std::move(send)](kj::Own<Lease> lease) mutable {
      return kj::evalNow(std::move(send)).attach(kj::mv(lease));
    });
  }

 private:
  static constexpr uint64_t kEnvelopeBytes = 512;  // of an answer, in addition to its values

  struct State;
  struct Lease {
    Lease(std::shared_ptr<State> of, uint64_t size) : state(std::move(of)), bytes(size) {
      state->underWay += bytes;
    }
    ~Lease() {
      state->underWay -= bytes;
      state->admitWaiting();
    }
    Lease(const Lease&) = delete;
    const std::shared_ptr<State> state;
    const uint64_t bytes;
  };
  struct Waiter {
    uint64_t bytes;
    kj::Own<kj::PromiseFulfiller<kj::Own<Lease>>> turn;
  };
  struct State : std::enable_shared_from_this<State> {
    bool fits(uint64_t bytes) const { return limit == 0 || underWay == 0 || underWay + bytes <= limit; }
    void admitWaiting() {
      while (!waiting.empty()) {
        if (waiting.front().turn->isWaiting() && !fits(waiting.front().bytes)) return;
        Waiter next = std::move(waiting.front());
        waiting.pop_front();
        // Skips a waiter that was cancelled.
        if (next.turn->isWaiting()) next.turn->fulfill(kj::heap<Lease>(shared_from_this(), next.bytes));
      }
    }

    uint64_t limit = 0, underWay = 0;
    std::deque<Waiter> waiting;
  };

  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace psd
